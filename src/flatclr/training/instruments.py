"""What a run measures about itself: every log step, and at every evaluation."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import diagnostics
from flatclr.contrast import contrast_stats
from flatclr.evaluation.knn import knn_accuracy
from flatclr.training.step import StepResult

POOL_BETAS = (2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass
class GradientSignal:
    """Gradient signal-to-noise over the last steps, on one fixed parameter.

    Norm of the mean gradient over the root-mean-square deviation of the single gradients from it. The parameter moves
    between steps, so this is the ratio along the path, not at one point.
    """

    parameter: nn.Parameter
    window: int = 16
    seen: deque[Tensor] = field(default_factory=deque)

    def observe(self) -> None:
        if self.parameter.grad is not None:
            self.seen.append(self.parameter.grad.detach().flatten().float().clone())
            if len(self.seen) > self.window:
                self.seen.popleft()

    def ratio(self) -> float | None:
        if len(self.seen) < 8:
            return None
        gradients = torch.stack(list(self.seen))
        mean = gradients.mean(0)
        noise = (gradients - mean).square().sum(1).mean().sqrt()
        return (mean.norm() / noise).item() if noise > 0 else None


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


def pool_mi_nats(z_a: Tensor, z_b: Tensor, beta: float) -> dict[str, float]:
    """InfoNCE against a pool of negatives, at the training beta and at the best one: what the encoder really shares."""

    def at(inverse_temperature: float) -> float:
        return contrast_stats(z_a, z_b, inverse_temperature=inverse_temperature, pairing="one_way").mi_nats.item()

    best = max(at(b) for b in (*POOL_BETAS, beta))
    return {"pool_mi_nats": at(beta), "pool_mi_best_nats": best, "pool_ceiling_nats": math.log(len(z_a))}


@torch.no_grad()
def encode(module: nn.Module, images: Tensor, prepare: Any, *, at_once: int = 512) -> Tensor:
    """Features of many images in evaluation mode; the mode is put back."""
    was_training = module.training
    module.eval()
    try:
        return torch.cat([module(prepare(part)).float() for part in images.split(at_once)])
    finally:
        module.train(was_training)


def quality(
    train_features: Tensor, train_labels: Tensor | None, test_features: Tensor | None, test_labels: Tensor | None
) -> dict[str, float]:
    """Label-free and, where labels exist, nearest-neighbour quality of features."""
    measured = {"effective_rank": diagnostics.effective_rank(train_features).item()}
    if train_labels is not None and test_features is not None and test_labels is not None:
        k = 200 if len(train_features) >= 20_000 else 20
        measured["knn"] = knn_accuracy(train_features, train_labels, test_features, test_labels, k=k)
    return measured
