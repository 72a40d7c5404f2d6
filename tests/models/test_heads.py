"""Projection heads: layers, widths, independence of rows."""

from typing import Any

import pytest
import torch
from torch import nn

from flatclr.models import build_head


@pytest.mark.parametrize(("layers", "linears"), [(1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_a_head_has_as_many_linear_layers_as_asked_for(layers: int, linears: int, norm: str) -> None:
    head = build_head(48, d_hidden=32, d_out=8, layers=layers, norm=norm)
    assert sum(isinstance(module, nn.Linear) for module in head) == linears
    out = head(torch.randn(4, 48))
    assert out.shape == (4, 8)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_a_head_ends_without_an_activation_and_is_as_wide_as_its_features() -> None:
    head = build_head(48)
    assert head.linear1.weight.shape == (48, 48)
    out = head(torch.randn(16, 48))
    assert out.shape == (16, 128)
    assert (out < 0).any()


def test_a_head_without_batch_norm_keeps_rows_apart() -> None:
    head = build_head(32, layers=3, norm="group").double()
    z = torch.randn(4, 32, dtype=torch.float64)
    torch.testing.assert_close(head(z), torch.cat([head(row[None]) for row in z]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_in": 0}, "d_in must be a whole number >= 1, got 0; pass encoder.features"),
        ({"layers": 4}, "layers must be a whole number >= 1 and <= 3, got 4"),
        ({"d_hidden": 0}, "d_hidden must be a whole number >= 1, got 0"),
        ({"d_out": -1}, "d_out must be a whole number >= 1, got -1"),
        ({"norm": "bacth"}, "norm must be one of .* did you mean 'batch'"),
    ],
)
def test_a_head_that_cannot_be_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_head(**({"d_in": 8} | options))
