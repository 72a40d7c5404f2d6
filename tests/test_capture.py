"""What is to be captured must not wait for the device, and a broken capture says what broke it."""

from typing import Any

import pytest
import torch
from torch import nn

from flatclr import capture
from flatclr.capture import (
    WARMUPS,
    WaitsForDeviceError,
    first_line,
    first_of,
    is_out_of_memory,
    warm_up,
    without_waiting,
)


@pytest.mark.parametrize(
    ("message", "kind"),
    [("called a synchronizing CUDA operation", WaitsForDeviceError), ("out of memory", RuntimeError)],
)
def test_waiting_is_told_from_other_errors_and_the_mode_is_put_back(
    message: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def work() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError) as raised:
        without_waiting(work, "the step")
    assert type(raised.value) is kind
    assert modes == [0, "error", 0]


def test_a_broken_capture_is_explained_by_what_broke_it() -> None:
    ending = RuntimeError("operation failed due to a previous error during capture")
    ending.__context__ = RuntimeError("the cause.\nand more")
    assert first_of(ending) is ending.__context__
    assert first_line(first_of(ending)) == "the cause"


def test_the_cpu_allocator_is_understood_when_it_runs_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.float32)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize("fails", [False, True], ids=["", "an error on the way"])
def test_what_is_tried_before_a_capture_leaves_no_trace(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "without_waiting", lambda work, _: work())
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    optimizer = torch.optim.AdamW(layer.parameters(), capturable=False)
    tries: list[int] = []

    def step() -> None:
        tries.append(1)
        optimizer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        if fails and len(tries) == WARMUPS:
            raise RuntimeError("broken")

    def state() -> list[torch.Tensor]:
        moments = [value for values in optimizer.state.values() for value in values.values()]
        return [*(p.detach() for p in layer.parameters()), *layer.buffers(), *moments]

    before, random = {name: value.clone() for name, value in layer.state_dict().items()}, torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            warm_up(step, "it", state, torch.device("cpu"))
    else:
        warm_up(step, "it", state, torch.device("cpu"))
    assert len(tries) == WARMUPS
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(not moment.any() for values in optimizer.state.values() for moment in values.values())


def test_a_capture_is_made_on_the_device_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device may be another, and the stream that PyTorch captures on by default that of another still."""
    seen: list[Any] = []

    class Entered:
        def __init__(self, *given: Any, **options: Any) -> None:
            seen.append((*given, options))

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "device", Entered)
    monkeypatch.setattr(torch.cuda, "graph", Entered)
    device = torch.device("cuda:1")
    assert capture.captured(lambda: 3, device, others_may_allocate=True) == ("graph", 3)
    options = {"pool": None, "stream": "stream of cuda:1", "capture_error_mode": "thread_local"}
    assert seen == [("graph", options), (device, {})]


def test_a_broken_capture_that_ran_out_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, kind in (
        (torch.OutOfMemoryError("none"), torch.OutOfMemoryError),
        (RuntimeError("no"), capture.CaptureError),
    ):

        def fails(device: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
        monkeypatch.setattr(torch.cuda, "Stream", fails)
        with pytest.raises(RuntimeError) as raised:
            capture.captured(lambda: None, torch.device("cuda"))
        assert type(raised.value) is kind
