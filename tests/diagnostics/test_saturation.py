"""Saturation against its definition."""

import math

import pytest
import torch

import flatclr
from flatclr import diagnostics


def test_saturation_is_bound_over_ceiling() -> None:
    stats = flatclr.stats_from_scores(torch.randn(5, 9, dtype=torch.float64))
    assert diagnostics.saturation(stats).item() == pytest.approx(
        (math.log(9) - stats.info_nce.mean().item()) / math.log(9)
    )
