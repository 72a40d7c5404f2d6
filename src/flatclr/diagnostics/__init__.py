"""Gauges: why a run is or is not learning."""

from flatclr.diagnostics.batch_norm import BatchNormHealth, batch_norm_health
from flatclr.diagnostics.conditioning import condition_number, inversion_error, jacobian_singular_values
from flatclr.diagnostics.effective_sample_size import effective_sample_size, ess_with_positive
from flatclr.diagnostics.geometry import (
    alignment,
    collision_rate,
    effective_rank,
    embedding_std,
    simplex_etf_distance,
    uniformity,
    within_class_variance,
)
from flatclr.diagnostics.gradient_noise import GradientNoise, gradient_noise
from flatclr.diagnostics.gradient_snr import gradient_snr, gradient_snr_floor
from flatclr.diagnostics.saturation import saturation

__all__ = [
    "BatchNormHealth",
    "GradientNoise",
    "alignment",
    "batch_norm_health",
    "collision_rate",
    "condition_number",
    "effective_rank",
    "effective_sample_size",
    "embedding_std",
    "ess_with_positive",
    "gradient_noise",
    "gradient_snr",
    "gradient_snr_floor",
    "inversion_error",
    "jacobian_singular_values",
    "saturation",
    "simplex_etf_distance",
    "uniformity",
    "within_class_variance",
]
