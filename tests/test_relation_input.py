"""What may be passed of views, labels, ids and hard negatives: types, layouts, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from tests import relation_oracles as ro
from tests.relation_harness import CASES, PAIRINGS, RELATIONS, ROUTES, Case, Tensors, options_of, problem_of

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_route = pytest.mark.parametrize("route", ROUTES)
Z = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
HARD = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
QUEUE = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1, 0, 1])

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "labels of the wrong length": ({"labels": torch.arange(3)}, "labels must be 4 whole numbers, one per sample, got"),
    "labels of every row": ({"labels": torch.arange(12)}, "labels must be 4 whole numbers"),
    "labels one-hot": ({"labels": torch.eye(4).long()}, "labels must be 4 whole numbers"),
    "labels of floats": ({"labels": LABELS.float()}, "got torch.float32 of shape [4]; number them with integers"),
    "ids of floats": ({"ids": LABELS.double()}, "ids must be 4 whole numbers"),
    "labels without the queue's": (
        {"labels": LABELS, "negatives": QUEUE},
        "labels with a queue must come with negative_labels [5], got none",
    ),
    "ids without the queue's": (
        {"ids": LABELS, "negatives": QUEUE},
        "ids with a queue must come with negative_ids [5], got none",
    ),
    "queue labels without a queue": (
        {"labels": LABELS, "negative_labels": LABELS},
        "negative_labels must come with negatives=, got them alone",
    ),
    "queue ids without a queue": (
        {"ids": LABELS, "negative_ids": LABELS},
        "negative_ids must come with negatives=, got them alone",
    ),
    "queue labels without labels": (
        {"negatives": QUEUE, "negative_labels": torch.arange(5)},
        "negative_labels must come with labels=, got them alone",
    ),
    "queue labels of the wrong length": (
        {"labels": LABELS, "negatives": QUEUE, "negative_labels": torch.arange(4)},
        "negative_labels must be 5 whole numbers",
    ),
    "hard negatives of another batch": (
        {"hard_negatives": HARD[:3]},
        "hard_negatives must have shape [4, H, 3], got [3, 2, 3]",
    ),
    "hard negatives of another width": ({"hard_negatives": HARD[..., :2]}, "got [4, 2, 2]"),
    "no hard negatives": ({"hard_negatives": HARD[:, :0]}, "got [4, 0, 3]"),
    "one hard negative each": ({"hard_negatives": HARD[:, 0]}, "got [4, 3]; row n holds those of sample n"),
    "hard negatives of another type": (
        {"hard_negatives": HARD.double()},
        "hard_negatives must be torch.float32 on cpu as the views, got torch.float64",
    ),
    "hard negatives in a list": ({"hard_negatives": HARD.tolist()}, "hard_negatives must be a torch.Tensor"),
    "a margin off the sphere": (
        {"false_negative_margin": 0.1, "normalize": False},
        "false_negative_margin must be measured in cosines, got normalize=False",
    ),
    "a margin that is no number": ({"false_negative_margin": float("nan")}, "false_negative_margin must be"),
    "labels in the fused kernels": ({"labels": LABELS, "route": "fused"}, "route='fused' (backend='triton') must be"),
    "labels in Triton": ({"labels": LABELS, "backend": "triton"}, "route='fused' (backend='triton') must be"),
    "three views in the fused kernels": ({"route": "fused"}, "use route='streamed'"),
    "a route that contradicts": ({"backend": "triton", "route": "dense"}, "route must be 'fused' with backend='triton'"),
    "too many to draw": ({"negatives_per_anchor": 10}, "negatives_per_anchor must be"),
    "an unknown pairing": ({"pairing": "all"}, "pairing must be one of"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        flatclr.contrast_stats(*Z, inverse_temperature=2.0, **options)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ((), "a contrast must have at least 2 views, got 0"),
        ((Z[0],), "a contrast must have at least 2 views, got 1; pass z_a and z_b, or one tensor [V, N, d]"),
        ((Z[:1],), "a contrast must have at least 2 views, got 1"),
        ((Z[:2], Z[:2]), "must have shape [N, d]"),
        ((Z[0], Z[1], Z[2][:3]), "must have the same shape, got [4, 3] and [3, 3]"),
        ((Z[0], Z[1], Z[2].double()), "dtype"),
    ],
)
def test_views_that_do_not_fit_are_named(views: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        flatclr.InfoNCE()(*views)


@pytest.mark.parametrize("shape", [(4,), (11,), (13,), (3, 4)])
def test_temperatures_per_anchor_must_be_as_many_as_anchors(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"inverse_temperature must be .*one (value )?per anchor"):
        flatclr.contrast_stats(*Z, inverse_temperature=torch.ones(shape))


def test_a_temperature_per_anchor_that_is_not_positive_is_refused() -> None:
    betas = torch.ones(12)
    betas[7] = 0.0
    with pytest.raises(ValueError, match="inverse_temperature must be"):
        flatclr.contrast_stats(*Z, inverse_temperature=betas)


@pytest.mark.parametrize(("value", "told"), [(torch.nan, "finite"), (0.0, "zero")])
def test_hard_negatives_are_looked_at_when_embeddings_are(value: float, told: str) -> None:
    hard = HARD.clone()
    hard[2, 1] = value
    with pytest.raises(ValueError, match=f"hard_negatives must .*{told}"):
        flatclr.InfoNCE(check_embeddings=True)(*Z, hard_negatives=hard)
