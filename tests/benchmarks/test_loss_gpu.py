"""What the GPU benchmark of the loss says of its targets follows from the numbers."""

import pytest

from benchmarks.loss_gpu import Measured, Target, verdicts


def found(*measured: Measured) -> dict[str, Measured]:
    return {m.loss: m for m in measured}


def test_a_missed_target_is_explained_by_the_host_where_it_takes_the_time() -> None:
    fused = Measured("triton", (1.76, 0.3), 1.7, (0.139, 0.001), 20.0)
    graphed = Measured("triton, graphed callable", (0.24, 0.04), 0.2)
    in_graph, eager, callable_ = verdicts(Target("two_view", 8192, 128, 0.35), found(fused, graphed), 0.063)
    assert in_graph == "two_view, N = 8192, d = 128: 0.139 ms in a graph, meets 0.35."
    assert eager.endswith("misses 0.35: the host takes 1.7 ms to launch what the device does in 0.139.")
    assert callable_.endswith("0.24 ms eager (triton, graphed callable), meets 0.35.")


def test_a_missed_target_is_explained_by_the_device_where_the_host_is_early() -> None:
    fused = Measured("triton", (12.0, 0.3), 1.7, (11.0, 0.1), 20.0)
    in_graph, eager = verdicts(Target("two_view", 65536, 128, 10.0), found(fused), 4.0)
    assert in_graph.endswith("11 ms in a graph, misses 10: its arithmetic alone needs 4 ms.")
    assert eager.endswith("12 ms eager (triton), misses 10: the device needs 11 ms.")


@pytest.mark.parametrize(
    ("auto_ms", "expected"),
    [
        (1.0, "auto takes 0.91 (no slower)."),
        (1.25, "auto takes 1.14 (slower): the host takes 1.2 ms to launch it, 1 for plain."),
        (2.2, "auto takes 2.00 (slower)."),
    ],
)
def test_a_size_without_a_target_is_held_against_the_plain_loss(auto_ms: float, expected: str) -> None:
    plain = Measured("plain", (1.1, 0.2), 1.0, (0.08, 0.001), 4.0)
    auto = Measured("auto", (auto_ms, 0.2), 1.2, (0.06, 0.001), 4.0)
    fused = Measured("triton", (1.7, 0.2), 1.6, (0.02, 0.001), 2.0)
    (said,) = verdicts(Target("two_view", 512, 128, None), found(plain, auto, fused), 0.0002)
    assert "in a graph the fused loss takes 0.25 (no slower) of plain's time" in said
    assert said.endswith(expected)


def test_what_does_not_fit_is_held_against_nothing() -> None:
    fused = Measured("triton", (17.0, 0.2), 1.6, (17.0, 0.1), 2.0)
    assert verdicts(Target("two_view", 65536, 256, None), found(fused), 8.0) == []
    assert verdicts(Target("two_view", 65536, 128, 10.0), {}, 8.0) == []
