"""What a run measures about itself: gauges at every log step, gradients at every evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from flatclr import diagnostics, distributed
from flatclr.contrast import ContrastStats
from flatclr.data.loading import Loader, seeded_generator
from flatclr.data.progress import Progress
from flatclr.distributed import Ranks
from flatclr.training.build import Parts
from flatclr.training.step import StepResult, TrainStep

SNR_BATCHES = 8
SNR_FLOOR = diagnostics.gradient_snr_floor(SNR_BATCHES)


def step_metrics(result: StepResult, inverse_temperature: float | Tensor, ranks: Ranks) -> dict[str, Any]:
    """The gauges of one step's global batch as numbers; reading them waits for the device."""
    stats = result.stats
    z_VNd = distributed.gather_views(torch.stack(result.embeddings), ranks)
    # a margin may leave an anchor without negatives, and so without an ESS
    quantiles = torch.nanquantile(stats.ess.float(), torch.tensor([0.1, 0.5, 0.9], device=stats.ess.device)).tolist()
    return {
        "loss": result.loss.item(),
        "mi_nats": stats.mi_nats.item(),
        "ceiling_nats": float(stats.ceiling_nats),
        "saturation": diagnostics.saturation(stats).item(),
        "ess": stats.mean(stats.ess).item(),
        **({} if stats.counted is None else {"anchors_left_out": int(stats.left_out)}),
        **({} if stats.each_positive is not None else {"ess_with_positive": _own_ess(stats)}),
        "ess_quantiles": quantiles,
        "beta": float(inverse_temperature),
        "alignment": torch.stack([diagnostics.alignment(*pair) for pair in combinations(z_VNd, 2)]).mean().item(),
        "uniformity": diagnostics.uniformity(z_VNd[0]).item(),
        "embedding_std": diagnostics.embedding_std(z_VNd[0]).item(),
        "gradient_norm": result.gradient_norm.item(),
    }


def _own_ess(stats: ContrastStats) -> float:
    return stats.mean(diagnostics.ess_with_positive(stats)).item()


def matrices_of(train_step: TrainStep) -> list[Tensor]:
    """A copy of the weights that multiply; nothing waits for it."""
    return [weight.detach().clone() for weight in _matrices(train_step)]


def update_ratio(train_step: TrainStep, before: list[Tensor]) -> float:
    """How far a step moved the weights: the median over matrices of |change| / |weight|; waits for the device."""
    changes = torch._foreach_norm(torch._foreach_sub([w.detach() for w in _matrices(train_step)], before))
    ratios = torch.stack(changes) / torch.stack(torch._foreach_norm(before)).clamp_min(1e-12)
    return ratios.median().item()


def _matrices(train_step: TrainStep) -> list[Tensor]:
    return [weight for weight in train_step.bare_network.parameters() if weight.requires_grad and weight.dim() > 1]


def evaluation_metrics(
    parts: Parts, step: int, progress: Progress | None = None, *, probe: bool = False
) -> dict[str, Any]:
    """What `flatclr.training.validation` measures of the encoder, and the gradient's signal-to-noise ratio."""
    beta = float(parts.train_step.objective.inverse_temperature)
    measured = parts.validation.measure(parts.train_step.bare_network, beta, progress, probe=probe)
    gradients = _counted(probed_gradients(parts.train_step, parts.loader, step), progress)
    return measured | {"gradient_snr": diagnostics.gradient_snr(gradients)}


def _counted(gradients: Iterator[Tensor], progress: Progress | None) -> Iterator[Tensor]:
    for number, gradient in enumerate(gradients, 1):
        if progress is not None:
            progress("evaluation, gradients of batches", number, SNR_BATCHES)
        yield gradient


def probed_gradients(train_step: TrainStep, loader: Loader, step: int) -> Iterator[Tensor]:
    """The gradient of the last layer's weight at the present weights, of eight batches drawn for it; changes nothing.

    `flatclr.diagnostics.gradient_snr` says how much of them is signal.
    """
    plan, keys = loader.plan, [f"snr {step} {i}" for i in range(SNR_BATCHES)]
    orders = (torch.randperm(plan.samples, generator=seeded_generator(plan.seed, key)) for key in keys)
    samples = [order[: plan.batch_size][loader.own] for order in orders]
    for batch, key, own in zip(loader.batches(samples, keys), keys, samples, strict=True):
        yield train_step.probe_gradient(batch, key, own)
