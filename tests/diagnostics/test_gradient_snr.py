"""The signal-to-noise ratio of gradients against its definition and its floor."""

import math

import numpy as np
import pytest
import torch

from flatclr import diagnostics


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradient_snr_is_the_mean_over_the_spread_around_it(dtype: torch.dtype) -> None:
    gradients = [torch.randn(3, 2).add(0.5).to(dtype) for _ in range(5)]
    rows = np.stack([gradient.double().numpy().ravel() for gradient in gradients])
    mean = rows.mean(0)
    noise = math.sqrt(np.mean([np.sum((row - mean) ** 2) for row in rows]))
    expected = float(np.linalg.norm(mean)) / noise
    assert diagnostics.gradient_snr(iter(gradients)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batches", [2, 8])
def test_noise_alone_reads_the_floor_of_gradient_snr(batches: int) -> None:
    drawn = [diagnostics.gradient_snr(torch.randn(batches, 4000)) for _ in range(30)]
    assert np.mean([value for value in drawn if value is not None]) == pytest.approx(
        diagnostics.gradient_snr_floor(batches), rel=0.02
    )


def test_gradients_without_spread_or_that_are_not_finite_have_no_ratio() -> None:
    assert diagnostics.gradient_snr([torch.ones(3), torch.ones(3)]) is None
    assert diagnostics.gradient_snr([torch.ones(3), torch.full((3,), torch.nan)]) is None


def test_gradients_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="from at least 2 batches, got 1; draw more"):
        diagnostics.gradient_snr([torch.ones(3)])
    with pytest.raises(ValueError, match=r"must have one shape, got \[\(2,\), \(3,\)\]; take the same weights"):
        diagnostics.gradient_snr([torch.ones(3), torch.ones(2)])
    with pytest.raises(TypeError, match="gradients must be tensors, got tuple; flatten and concatenate"):
        diagnostics.gradient_snr([(torch.ones(3),), (torch.ones(3),)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="batches must be a whole number >= 2, got 1; noise shows"):
        diagnostics.gradient_snr_floor(1)
