"""The effective sample size against its definition."""

import pytest
import torch

from flatclr import diagnostics


def test_effective_sample_size_of_given_weights() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    expected = 1 / (3 * (0.25 + 2 * 0.0625))
    assert diagnostics.effective_sample_size(weights.log()).item() == pytest.approx(expected)
