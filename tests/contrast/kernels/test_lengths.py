"""Rows of any length on every route: only their direction counts, and what is not finite stays visible."""

from __future__ import annotations

import pytest
import torch

import flatclr
from tests.support.interpreter import interpreted

pytest.importorskip("triton")

pytestmark = interpreted


@pytest.mark.parametrize("route", ["dense", "streamed", "strips", "fused"])
@pytest.mark.parametrize("power", [70, -75])
def test_rows_of_any_length_have_a_direction(route: str, power: int) -> None:
    z_a, z_b = torch.randn(2, 40, 16).bfloat16().unbind()
    near, far = (
        flatclr.contrast_stats(z_a * length, z_b * length, inverse_temperature=10.0, route=route).negative_logsumexp
        for length in (1.0, 2.0**power)
    )
    torch.testing.assert_close(far, near)


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
@pytest.mark.parametrize("route", ["streamed", "strips", "fused"])
def test_an_infinite_row_of_a_queue_stays_visible(route: str) -> None:
    (z_a, z_b), queue = torch.randn(2, 9, 5).unbind(), torch.randn(4, 5)
    queue[2, 3] = torch.inf
    assert not flatclr.InfoNCE(0.2, route=route)(z_a, z_b, negatives=queue).isfinite()
