"""One optimisation step: views, embeddings, objective, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import distributed
from flatclr.contrast import ContrastStats
from flatclr.data.loading import Batch
from flatclr.distributed import Ranks
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.saving import unwrapped
from flatclr.objectives import Objective
from flatclr.training.grad_cache import CachedEmbeddings, micro_batches
from flatclr.training.inputs import Inputs
from flatclr.training.networks import Network, TwoTowers, frozen_running_statistics
from flatclr.training.queue import EmbeddingQueue


@dataclass
class StepResult:
    loss: Tensor
    stats: ContrastStats
    gradient_norm: Tensor
    finite: bool
    embeddings: tuple[Tensor, Tensor]


@dataclass
class TrainStep:
    """Everything a step changes; what is in `state_dict` is all that resuming needs."""

    network: nn.Module  # a Network or TwoTowers, perhaps inside DistributedDataParallel
    objective: Objective
    optimizer: torch.optim.Optimizer
    inputs: Inputs
    ranks: Ranks
    keys: MomentumEncoder | None = None
    queue: EmbeddingQueue | None = None
    precision: str = "fp32"
    clip_norm: float | None = None
    micro_batch: int | None = None  # samples of this rank encoded at once; None: all

    def __post_init__(self) -> None:
        device_type = next(self.network.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device_type, enabled=self.precision == "fp16")
        self.autocast_type = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def embed(self, network: nn.Module, view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(view_a.device.type, dtype=self.autocast_type, enabled=self.autocast_type is not None):
            if self.keys is None:
                z_a, z_b = network(view_a, view_b)
            else:
                (z_a,), (z_b,) = network(view_a), self.keys(view_b)
        return z_a, z_b

    def __call__(self, batch: Batch, step: int) -> StepResult:
        loss, stats, embeddings = self.backward(batch, step)
        self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.clip_norm or torch.inf)
        finite = bool(torch.isfinite(loss) & torch.isfinite(norm))
        if finite:
            self.scaler.step(self.optimizer)
            if self.keys is not None:
                self.keys.update()
            if self.queue is not None:
                self.queue.push(distributed.gather_views(embeddings[1].unsqueeze(0), self.ranks).squeeze(0))
        self.scaler.update()
        return StepResult(loss, stats, norm.detach(), finite, embeddings)

    def backward(self, batch: Batch, step: int) -> tuple[Tensor, ContrastStats, tuple[Tensor, Tensor]]:
        """Put the gradient of this batch into the parameters; nothing else changes but what forward passes count."""
        views = self.inputs.draw(batch, step)
        self.optimizer.zero_grad(set_to_none=True)
        parts = micro_batches(len(batch[0]), self.micro_batch)
        if len(parts) == 1:
            z_a, z_b = self.embed(self.network, *views(parts[0]))
            loss, stats = self._loss(z_a, z_b)
            self.scaler.scale(loss).backward()
        else:
            cached = CachedEmbeddings.of(self.network, lambda rows: self.embed(self.network, *views(rows)), parts)
            z_a, z_b = cached.z_a, cached.z_b
            loss, stats = self._loss(z_a, z_b if self.keys is None else z_b.detach())
            self.scaler.scale(loss).backward()
            cached.carry_back()
        return loss.detach(), stats, (z_a.detach(), z_b.detach())

    def _loss(self, z_a: Tensor, z_b: Tensor) -> tuple[Tensor, ContrastStats]:
        negatives = None if self.queue is None else self.queue.rows.to(z_a.dtype)
        return self.objective.with_stats(z_a, z_b, negatives=negatives)

    def probe_gradient(self, batch: Batch, key: str) -> Tensor:
        """The gradient of one batch in one weight, flat; changes nothing. No pass goes back through the encoder."""
        network, was_training = self.bare_network, self.objective.training
        rows = slice(0, len(batch[0]))
        self.objective.eval()  # the ESS controller is not to see these batches
        try:
            with frozen_running_statistics(network):
                loss, _ = self._loss(*self.embed(network, *self.inputs.draw(batch, key)(rows)))
            (gradient,) = torch.autograd.grad(loss, [network.probed])
        finally:
            self.objective.train(was_training)
        return distributed.average_over_ranks(gradient.float().flatten(), self.ranks)

    @property
    def bare_network(self) -> Network | TwoTowers:
        bare = unwrapped(self.network)
        assert isinstance(bare, Network | TwoTowers)
        return bare

    def _parts(self) -> dict[str, Any]:
        parts = {
            "network": self.bare_network,
            "objective": self.objective,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
        }
        return parts | {n: p for n, p in (("keys", self.keys), ("queue", self.queue)) if p is not None}

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
