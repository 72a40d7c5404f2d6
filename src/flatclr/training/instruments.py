"""What a run measures about itself at every log step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr import diagnostics
from flatclr.data.loading import Loader, seeded_generator
from flatclr.training.step import StepResult, TrainStep

SNR_BATCHES = 8


def step_metrics(result: StepResult, inverse_temperature: float | Tensor) -> dict[str, Any]:
    """The gauges of one step as numbers; reading them waits for the device."""
    stats, (z_a, z_b) = result.stats, result.embeddings
    quantiles = torch.quantile(stats.ess.float(), torch.tensor([0.1, 0.5, 0.9], device=stats.ess.device)).tolist()
    return {
        "loss": result.loss.item(),
        "mi_nats": stats.mi_nats.item(),
        "ceiling_nats": stats.ceiling_nats,
        "saturation": diagnostics.saturation(stats).item(),
        "ess": stats.ess.mean().item(),
        "ess_quantiles": quantiles,
        "beta": float(inverse_temperature),
        "alignment": diagnostics.alignment(z_a, z_b).item(),
        "uniformity": diagnostics.uniformity(z_a).item(),
        "gradient_norm": result.gradient_norm.item(),
    }


def gradient_snr(train_step: TrainStep, loader: Loader, step: int) -> float | None:
    """Gradient signal-to-noise at the present weights, from eight batches of their own.

    Norm of the mean gradient over the root-mean-square deviation of the single ones from it, on the weight of the last
    layer; None where the data has fewer samples than these batches need.
    """
    plan = loader.plan
    if plan.samples < SNR_BATCHES * plan.batch_size:
        return None
    order = torch.randperm(plan.samples, generator=seeded_generator(plan.seed, "snr", step))
    gradients = []
    for i, indices in enumerate(order[: SNR_BATCHES * plan.batch_size].split(plan.batch_size)):
        gradients.append(train_step.probe_gradient(loader.rows(indices[loader.own]), f"snr {step} {i}"))
    return signal_to_noise(torch.stack(gradients))


def signal_to_noise(gradients_BP: Tensor) -> float | None:
    """
    >>> signal_to_noise(torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
    3.0
    """
    mean_P = gradients_BP.mean(0)
    noise = (gradients_BP - mean_P).square().sum(1).mean().sqrt()
    return (mean_P.norm() / noise).item() if noise > 0 else None
