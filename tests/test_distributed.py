"""Several processes give the numbers of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import distributed_worker

pytestmark = pytest.mark.distributed

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return distributed_worker.everything(rank=0, world=1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what every rank of two and of four processes saw, all cases in one group each."""
    out = tmp_path_factory.mktemp("seen")
    command = [sys.executable, "-m", "tests.support.distributed_worker", str(out), "2", "4"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=480)
    # what a rank wrote counts, not its exit code: gloo sometimes aborts after the work is done
    assert len(list(out.glob("rank*.pt"))) == 6, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module", params=[2, 4], ids=["2_ranks", "4_ranks"])
def ranks(request: pytest.FixtureRequest, seen: Path) -> list[dict[str, Any]]:
    return [torch.load(seen / f"rank{rank}of{request.param}.pt") for rank in range(request.param)]


def pairs_of(
    part: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], Callable[[str], str]]]:
    """(what a rank saw, what one process saw, a message that names it) of every run of a part, rank by rank."""
    assert ranks[0][part].keys() <= one[part].keys()
    assert len(ranks[0][part]) > 50
    for number, rank in enumerate(ranks):
        for name, got in rank[part].items():
            yield got, one[part][name], f"{name} on rank {number}: {{}}".format


def test_averaged_gradients_equal_the_one_process_gradient(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for got, want, said in pairs_of("steps", one, ranks):
        assert want["gradients"]
        torch.testing.assert_close(got["gradients"], want["gradients"], **CLOSE, msg=said)


def test_loss_and_stats_on_every_rank_are_the_global_ones(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for got, want, said in pairs_of("steps", one, ranks):
        for quantity in ("loss", "stats", "buffers"):
            torch.testing.assert_close(got[quantity], want[quantity], **CLOSE, msg=said)


def test_parameters_of_the_objective_get_the_full_gradient_on_every_rank(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    learned = 0
    for got, want, said in pairs_of("steps", one, ranks):
        expected = {n: g for n, g in want["gradients"].items() if n.startswith("objective.")}
        found = {n: got["unaveraged"][n] for n in expected}
        torch.testing.assert_close(found, expected, **CLOSE, msg=said)
        learned += len(expected)
    assert learned


def test_own_rows_get_w_times_the_global_partial_derivative(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]["steps"]:
        gathered = torch.cat([rank["steps"][name]["d_z_a"] for rank in ranks])
        expected = len(ranks) * one["steps"][name]["d_z_a"]
        torch.testing.assert_close(gathered, expected, **CLOSE, msg=f"{name}: {{}}".format)


def test_backward_of_a_mean_over_anchors_needs_no_collective(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for got, _, said in pairs_of("steps", one, ranks):
        assert got["collectives_in_backward"] == [], said("")


def test_every_relation_gives_the_numbers_and_gradients_of_one_process(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for got, want, said in pairs_of("related", one, ranks):
        for quantity in ("loss", "stats", "counts", "averaged", "own", "buffers"):
            torch.testing.assert_close(got[quantity], want[quantity], equal_nan=True, **CLOSE, msg=said)
        assert got["collectives_in_backward"] == [], said("")
    for name, want in one["related"].items():
        gathered = torch.cat([rank["related"][name]["d_view"] for rank in ranks])
        torch.testing.assert_close(gathered, len(ranks) * want["d_view"], **CLOSE, msg=f"{name}: {{}}".format)


def test_batches_of_several_tiles_and_strips_give_the_numbers_of_one_process(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for number, rank in enumerate(ranks):
        for name, got in rank["pieces"].items():
            for quantity in ("loss", "gradient"):
                want = one["pieces"][name][quantity]
                torch.testing.assert_close(
                    got[quantity], want, **CLOSE, msg=f"{name} on rank {number}: {quantity} {{}}".format
                )


def test_a_rank_holds_everyones_rows_and_a_strip_of_its_own_by_them(ranks: list[dict[str, Any]]) -> None:
    """O((own rows + everyone's) d + strip), and far less than its own rows by everyone's."""
    rows = 2 * distributed_worker.MANY_SAMPLES
    most = max(rows * distributed_worker.FEATURES, distributed_worker.STRIP_NUMBERS)
    assert most < rows * rows / len(ranks) / 8
    for rank in ranks:
        for name, got in rank["pieces"].items():
            assert got["largest"] <= most, name


def test_reading_the_stats_of_several_views_needs_no_collective(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    """One rank may log them alone."""
    for got, _, said in pairs_of("related", one, ranks):
        assert got["collectives_in_stats"] == [], said("")


def test_own_losses_of_every_relation_average_to_the_global_gradient(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["related_local"], one["related_local"], **CLOSE)


@pytest.mark.parametrize(
    "what",
    [
        "labels missing",
        "ids missing",
        "labels short",
        "labels of floats",
        "queue labels missing",
        "hard negatives missing",
        "hard negatives of another type",
        "fewer hard negatives",
        "views",
        "one label",
        "index missing",
    ],
)
def test_what_one_rank_says_of_its_samples_must_fit_the_others(what: str, ranks: list[dict[str, Any]]) -> None:
    assert all(what in rank["related_refusals"] for rank in ranks)


def test_losses_that_differ_between_ranks_average_to_the_global_gradient(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["local"], one["local"], **CLOSE)


def test_ten_ddp_steps_follow_the_one_process_trajectory(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["ddp"], one["ddp"], **CLOSE)


@pytest.mark.parametrize("quantity", ["gradients", "losses", "weights"])
def test_a_sharded_encoder_follows_the_one_process_trajectory(
    quantity: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        for name, want in one["sharded"].items():
            assert want[quantity]
            torch.testing.assert_close(
                rank["sharded"][name][quantity], want[quantity], **CLOSE, msg=f"{name}: {{}}".format
            )


def test_a_sharded_encoder_is_saved_whole_or_not_at_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (
            "an encoder must be whole to be saved, got 'layer1.linear.weight' sharded over processes"
            in rank["sharded_files"]
        )


def test_a_shared_queue_gets_the_one_process_gradient(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank["queue"], one["queue"], **CLOSE)


def test_ranks_may_use_different_outputs_of_the_stats(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    positive, negative = one["different"]
    expected = (positive + (len(ranks) - 1) * negative) / len(ranks)
    for rank in ranks:
        torch.testing.assert_close(rank["different"], expected, **CLOSE)


@pytest.mark.skipif(not distributed_worker.interprets_kernels(), reason="needs Triton's interpreter")
def test_fused_kernels_on_several_ranks_give_the_one_process_gradient(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    assert len(one["fused"]) == 8
    for rank in ranks:
        assert len(rank["fused"]) == (8 if len(ranks) == 2 else 2)
        expected = {name: one["fused"][name] for name in rank["fused"]}
        torch.testing.assert_close(rank["fused"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not distributed_worker.interprets_kernels(), reason="needs Triton's interpreter")
def test_ranks_with_gpus_take_the_routes_of_one_if_all_of_them_can(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    expected = {"narrow": "fused", "wide": "strips", "labels": "strips", "broken": "streamed", "in a graph": "streamed"}
    for rank, saw in enumerate(ranks):
        assert {name: run["route"] for name, run in saw["automatic"].items()} == expected
        for name, run in saw["automatic"].items():
            of_one = one["automatic"]["broken" if name == "in a graph" else name]
            for got, whole in zip(run["gradient"], of_one["gradient"], strict=True):
                want = len(ranks) * distributed_worker.own_slice(whole, rank, len(ranks))
                assert (got - want).norm() < 1e-2 * want.norm(), name


def test_one_graph_of_model_and_loss_gives_the_one_process_gradient(
    one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    """What the host asks of the ranks in eager code, an operator asks when the graph runs."""
    for rank in ranks:
        assert len(rank["compiled"]) == (5 if len(ranks) == 2 else 2)
        for name, gradient in rank["compiled"].items():
            torch.testing.assert_close(gradient, one["compiled"][name], **CLOSE, msg=f"{name}: {{}}".format)


def test_a_graph_refuses_what_eager_code_does_and_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    """A rank that raised while it is traced would leave the others in a collective that it does not join."""
    for number, rank in enumerate(ranks if len(ranks) == 2 else []):
        heard = rank["compiled_refusals"]
        assert "gather=True needs the same batch" in heard["sizes"]
        assert "rank 1: batch 4, d 4" in heard["sizes"]
        for what, said in {"labels": "labels must be 6 whole numbers", "hard": "hard_negatives must be"}.items():
            assert (said if number == 1 else "got a problem on ranks [1]") in heard[what]


@pytest.mark.parametrize(
    ("what", "told"),
    {
        "batch": ("rank 0: batch 3", "rank 1: batch 4"),
        "width": ("d 4", "d 5"),
        "queue": ("queue 5", "queue 6"),
        "dtype": ("torch.float32", "torch.float64"),
    }.items(),
)
def test_ranks_that_differ_are_refused_on_every_rank(
    what: str, told: tuple[str, str], ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        assert "same batch, embedding and queue size and dtype on every rank" in rank["refusals"][what]
        assert all(part in rank["refusals"][what] for part in told)


def test_bad_input_on_one_rank_is_refused_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert "rank 1: bad input" in ranks[0]["refusals"]["empty"]
    assert "z_a must not be empty" in ranks[1]["refusals"]["empty"]


def test_a_bad_row_on_one_rank_stops_all_of_them(ranks: list[dict[str, Any]]) -> None:
    assert "z_a must be finite, got NaN or Inf in 1 of 4 rows, first in row 2" in ranks[1]["failure"]
    assert "got a problem on ranks [1]" in ranks[0]["failure"]


def test_gather_without_a_process_group_is_one_process() -> None:
    import flatclr

    z = torch.randn(4, 3)
    torch.testing.assert_close(flatclr.InfoNCE(gather=True)(z, z), flatclr.InfoNCE()(z, z))
