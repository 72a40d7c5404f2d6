"""What a run measures about itself: gauges at every log step, gradients at every evaluation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flatclr import diagnostics, distributed
from flatclr.data.loading import Loader, seeded_generator
from flatclr.distributed import Ranks
from flatclr.training.step import StepResult, TrainStep

SNR_BATCHES = 8
SNR_FLOOR = 1 / math.sqrt(SNR_BATCHES - 1)  # what noise alone reads: the mean of the batches has some left


def step_metrics(result: StepResult, inverse_temperature: float | Tensor, ranks: Ranks) -> dict[str, Any]:
    """The gauges of one step's global batch as numbers; reading them waits for the device."""
    stats = result.stats
    z_a, z_b = distributed.gather_views(torch.stack(result.embeddings), ranks)
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
    """Gradient signal-to-noise at the present weights, from eight batches drawn for it.

    Norm of the mean gradient over the root-mean-square deviation of the single ones from it, on the weight of the last
    layer. Without any signal it still reads about `SNR_FLOOR`, 0.38; the squared ratio of signal to noise of one batch
    is (7 SNR^2 - 1) / 8.
    """
    plan, keys = loader.plan, [f"snr {step} {i}" for i in range(SNR_BATCHES)]
    orders = (torch.randperm(plan.samples, generator=seeded_generator(plan.seed, key)) for key in keys)
    batches = loader.batches(order[: plan.batch_size][loader.own] for order in orders)
    gradients = [train_step.probe_gradient(batch, key) for batch, key in zip(batches, keys, strict=True)]
    return signal_to_noise(torch.stack(gradients))


def signal_to_noise(gradients_BP: Tensor) -> float | None:
    """
    >>> signal_to_noise(torch.tensor([[3.0, 1.0], [3.0, -1.0]]))
    3.0
    """
    mean_P = gradients_BP.mean(0)
    noise = (gradients_BP - mean_P).square().sum(1).mean().sqrt()
    return (mean_P.norm() / noise).item() if noise > 0 else None
