"""One optimisation step: views, embeddings, objective, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import distributed
from flatclr.contrast import ContrastStats
from flatclr.data.loading import seeded_generator
from flatclr.data.views import ViewConfig, apply_views, draw_views
from flatclr.distributed import Ranks
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.saving import unwrapped
from flatclr.objectives import Objective
from flatclr.training.queue import EmbeddingQueue


class Network(nn.Module):
    """Encoder and projection head; both views pass in one batch."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.head(self.encoder(images))
        return embeddings


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

    network: nn.Module  # a Network, perhaps inside DistributedDataParallel
    objective: Objective
    optimizer: torch.optim.Optimizer
    views: ViewConfig
    image_size: int
    batch_size: int  # global
    seed: int
    ranks: Ranks
    keys: MomentumEncoder | None = None
    queue: EmbeddingQueue | None = None
    precision: str = "fp32"
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        device_type = next(self.network.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device_type, enabled=self.precision == "fp16")
        self.autocast_type = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def two_views(self, images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Both views of this rank's images; drawn for the global batch, so that ranks do not matter."""
        height, width = images.shape[-2:]
        own = self.ranks.own_rows(len(images))

        def view(name: str) -> Tensor:
            generator = seeded_generator(self.seed, "view", name, step)
            drawn = draw_views(
                self.views, self.batch_size, height=height, width=width, generator=generator, device=images.device
            )
            return apply_views(images, drawn.rows(own), self.views, size=self.image_size)

        return view("a"), view("b")

    def embed(self, images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        view_a, view_b = self.two_views(images, step)
        with torch.autocast(images.device.type, dtype=self.autocast_type, enabled=self.autocast_type is not None):
            if self.keys is None:
                z_a, z_b = self.network(torch.cat([view_a, view_b])).chunk(2)
            else:
                z_a = self.network(view_a)
                with torch.no_grad():
                    z_b = self.keys(view_b)
        return z_a, z_b

    def __call__(self, images: Tensor, step: int) -> StepResult:
        z_a, z_b = self.embed(images, step)
        negatives = None if self.queue is None else self.queue.rows.to(z_a.dtype)
        loss, stats = self.objective.with_stats(z_a, z_b, negatives=negatives)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.clip_norm or torch.inf)
        finite = bool(torch.isfinite(loss) & torch.isfinite(norm))
        if finite:
            self.scaler.step(self.optimizer)
            if self.keys is not None:
                self.keys.update()
            if self.queue is not None:
                self.queue.push(distributed.gather_views(z_b.detach().unsqueeze(0), self.ranks).squeeze(0))
        self.scaler.update()
        return StepResult(loss.detach(), stats, norm.detach(), finite, (z_a.detach(), z_b.detach()))

    @property
    def bare_network(self) -> Network:
        bare = unwrapped(self.network)
        assert isinstance(bare, Network)
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
