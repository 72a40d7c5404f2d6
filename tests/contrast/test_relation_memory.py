"""No relation makes a tensor that grows with the square of the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast import relation
from flatclr.contrast.kernels import strips, tiled_torch
from flatclr.contrast.route import LARGEST_DENSE
from tests.support.memory import LargestTensor, PeakMemory
from tests.support.relation_harness import PAIRINGS

N, D, EDGE, STRIP = 256, 2, 64, 2**18
LARGE = math.isqrt(LARGEST_DENSE) // 2 + 1  # samples whose two views are no longer one tile

SAID: dict[str, dict[str, Any]] = {
    "views": {},
    "labels": {"labels": torch.arange(N) % 10},
    "ids": {"ids": torch.arange(N) // 2},
    "margin": {"false_negative_margin": 0.1},
    "hard": {"hard_negatives": torch.randn(N, 3, D)},
    "everything": {
        "labels": torch.arange(N) % 10,
        "ids": torch.arange(N) // 2,
        "false_negative_margin": 0.1,
        "hard_negatives": torch.randn(N, 3, D),
        "negatives": torch.randn(N, D),
        "negative_labels": torch.arange(N) % 10,
        "negative_ids": torch.arange(N) // 2,
    },
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: EDGE)
    monkeypatch.setattr(relation, "ENTRIES_AT_ONCE", EDGE * EDGE)
    monkeypatch.setattr(strips, "STRIP_BYTES", STRIP)


def largest_of(views: int, samples: int = N, **options: Any) -> int:
    """Elements of the largest tensor of a loss, its ESS and its gradient."""
    views_d = [torch.randn(samples, D, requires_grad=True) for _ in range(views)]
    with LargestTensor() as largest:
        stats = flatclr.contrast_stats(*views_d, inverse_temperature=5.0, **options)
        (stats.mean(stats.info_nce) + stats.ess.nan_to_num().mean() + stats.mean(stats.positive_logsumexp)).backward()
    return largest.elements


@pytest.mark.parametrize(
    ("said", "pairing"), [*((name, "one_way") for name in SAID), *(("everything", p) for p in PAIRINGS)]
)
@pytest.mark.parametrize("options", [{"route": "streamed"}, {"route": "strips", "backend": "torch"}], ids=str)
def test_no_operation_makes_a_matrix_of_pairs(said: str, pairing: str, options: dict[str, Any]) -> None:
    assert largest_of(3, pairing=pairing, **options, **SAID[said]) < N * N // 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("said", SAID)
def test_all_that_is_made_of_a_strip_fits_its_budget(said: str, dtype: torch.dtype) -> None:
    views = [torch.randn(N, D, dtype=dtype, requires_grad=True) for _ in range(2)]
    given = {n: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in SAID[said].items()}
    with PeakMemory() as peak:
        stats = flatclr.contrast_stats(
            *views, inverse_temperature=5.0, pairing="cross", route="strips", backend="torch", **given
        )
        stats.mean(stats.gap).backward()
    of_rows = 500 * N  # bytes: embeddings, sums and gradients
    assert STRIP // 2 < peak.bytes < STRIP + of_rows


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_mean_score_of_a_label_visits_no_pairs(pairing: str) -> None:
    views = [torch.randn(N, D, requires_grad=True) for _ in range(3)]
    pairs = flatclr.PairSet.of(*views, pairing=pairing, route="dense", labels=torch.arange(N) % 10)
    with LargestTensor() as largest:
        pairs.positive(torch.rand(pairs.layout.anchors) + 1).sum().backward()
    assert largest.elements <= 9 * N * D


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_no_draw_makes_a_matrix_of_pairs(pairing: str) -> None:
    assert largest_of(2, pairing=pairing, negatives_per_anchor=2, **SAID["everything"]) < N * N // 4


@pytest.mark.parametrize("pairing", ["cross", "within"])
def test_an_objective_of_single_pairs_makes_no_matrix_of_them(pairing: str) -> None:
    for objective in (
        flatclr.FMICL("js", pairing=pairing, route="streamed"),
        flatclr.HolderFlatNCE(gamma=float("inf"), pairing=pairing, route="streamed"),
    ):
        views = [torch.randn(N, D, requires_grad=True) for _ in range(3)]
        with LargestTensor() as largest:
            objective(*views, labels=torch.arange(N) % 10, hard_negatives=torch.randn(N, 3, D)).backward()
        assert largest.elements < N * N // 4


@pytest.mark.parametrize(
    "negatives",
    [
        {"negatives": torch.randn(2, D), "negative_labels": torch.tensor([90, 91])},
        {"hard_negatives": torch.randn(LARGE, 1, D)},
    ],
    ids=["queue", "hard"],
)
def test_many_label_positives_and_few_negatives_are_streamed_too(negatives: dict[str, Any]) -> None:
    elements = largest_of(2, LARGE, labels=torch.arange(LARGE) % 10, in_batch_negatives=False, **negatives)
    assert elements < LARGE * LARGE // 4
