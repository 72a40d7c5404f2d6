"""Negatives that were chosen are not of the marginal: what they give is no bound on the mutual information."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flatclr

PER_CLASS = 100
CLASSES = torch.arange(2 * PER_CLASS) % 2


def indicators() -> torch.Tensor:
    """A view that says its class and nothing else: two of them share ln 2 nats."""
    return torch.eye(2, dtype=torch.float64)[CLASSES]


def stats(**options: Any) -> flatclr.ContrastStats:
    z = indicators()
    return flatclr.contrast_stats(z, z, inverse_temperature=30.0, pairing="one_way", **options)


def naive_bound(of: flatclr.ContrastStats) -> float:
    """What InfoNCE would report: its ceiling less the mean loss."""
    return float(of.ceiling_nats) - of.mean(of.info_nce).item()


def test_negatives_of_the_marginal_report_the_truth() -> None:
    of = stats()
    assert of.mi_nats.item() == pytest.approx(math.log(2), abs=1e-6)
    assert of.mi_nats.item() <= math.log(2)


@pytest.mark.parametrize(
    "chosen",
    [
        {"labels": CLASSES},
        {"ids": CLASSES},
        {"false_negative_margin": -0.5},
        {"hard_negatives": indicators().roll(1, 0).unsqueeze(1).repeat(1, 100, 1), "in_batch_negatives": False},
    ],
    ids=["labels", "ids", "margin", "hard"],
)
@pytest.mark.parametrize("route", ["dense", "streamed"])
def test_a_hundred_negatives_of_the_other_class_would_report_more_than_there_is(
    chosen: dict[str, Any], route: str
) -> None:
    of = stats(**chosen, route=route)
    assert torch.as_tensor(of.negatives).unique().tolist() == [100]
    assert naive_bound(of) == pytest.approx(math.log(101), abs=1e-9)
    assert naive_bound(of) > 6 * math.log(2)
    assert of.mi_nats.isnan()
    assert of.detach().mi_nats.isnan()
    assert flatclr.diagnostics.saturation(of).item() == pytest.approx(1.0)


def test_several_views_are_a_bound_still() -> None:
    z = indicators()
    of = flatclr.contrast_stats(z, z, z, inverse_temperature=30.0)
    assert of.mi_nats.item() == pytest.approx(math.log(2), abs=0.01)
