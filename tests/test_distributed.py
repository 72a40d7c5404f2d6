"""Several processes give the numbers of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import distributed_worker

pytestmark = pytest.mark.distributed

RELATED = [name for name, *_ in distributed_worker.related_runs()]
NAMES = [name for name, *_ in distributed_worker.runs()]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return distributed_worker.everything(rank=0, world=1)


@pytest.fixture(scope="module", params=[2, 4], ids=["2_ranks", "4_ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank of one process group saw, all cases in one group."""
    world: int = request.param
    out = tmp_path_factory.mktemp(f"world{world}")
    root = Path(__file__).parent.parent
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.distributed_worker",
                str(rank),
                str(world),
                str(out / "store"),
                str(out),
            ],
            cwd=root,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    # what a rank wrote counts, not its exit code: gloo sometimes aborts after the work is done
    assert all((out / f"rank{rank}.pt").exists() for rank in range(world)), "\n".join(errors)
    return [torch.load(out / f"rank{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize("name", NAMES)
def test_averaged_gradients_equal_the_one_process_gradient(
    name: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    expected = one["steps"][name]["gradients"]
    assert expected
    for rank in ranks:
        torch.testing.assert_close(rank["steps"][name]["gradients"], expected, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_stats_on_every_rank_are_the_global_ones(
    name: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        for quantity in ("loss", "stats", "buffers"):
            torch.testing.assert_close(rank["steps"][name][quantity], one["steps"][name][quantity], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_the_objective_get_the_full_gradient_on_every_rank(
    name: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    expected = {n: g for n, g in one["steps"][name]["gradients"].items() if n.startswith("objective.")}
    for rank in ranks:
        got = {n: rank["steps"][name]["unaveraged"][n] for n in expected}
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_own_rows_get_w_times_the_global_partial_derivative(
    name: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    gathered = torch.cat([rank["steps"][name]["d_z_a"] for rank in ranks])
    torch.testing.assert_close(gathered, len(ranks) * one["steps"][name]["d_z_a"], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_backward_of_a_mean_over_anchors_needs_no_collective(name: str, ranks: list[dict[str, Any]]) -> None:
    assert all(rank["steps"][name]["collectives_in_backward"] == [] for rank in ranks)


@pytest.mark.parametrize("name", RELATED)
def test_every_relation_gives_the_numbers_and_gradients_of_one_process(
    name: str, one: dict[str, Any], ranks: list[dict[str, Any]]
) -> None:
    want = one["related"][name]
    for rank in ranks:
        got = rank["related"][name]
        for quantity in ("loss", "stats", "counts", "averaged", "own", "buffers"):
            torch.testing.assert_close(got[quantity], want[quantity], equal_nan=True, **CLOSE)
        assert got["collectives_in_backward"] == []
    gathered = torch.cat([rank["related"][name]["d_view"] for rank in ranks])
    torch.testing.assert_close(gathered, len(ranks) * want["d_view"], **CLOSE)


@pytest.mark.parametrize("name", RELATED)
def test_reading_the_stats_of_several_views_needs_no_collective(name: str, ranks: list[dict[str, Any]]) -> None:
    """One rank may log them alone."""
    assert all(rank["related"][name]["collectives_in_stats"] == [] for rank in ranks)


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
        torch.testing.assert_close(rank["fused"], one["fused"], rtol=1e-4, atol=1e-5)


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
