"""One optimisation step: views, embeddings, objective, update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import distributed
from flatclr.contrast import ContrastStats, PairSet
from flatclr.data.loading import Batch
from flatclr.distributed import Ranks
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.network import Network, TwoTowers, device_of, unwrapped
from flatclr.models.statistics import frozen_running_statistics
from flatclr.objectives import Objective
from flatclr.training.grad_cache import CachedEmbeddings, micro_batches
from flatclr.training.inputs import Inputs, Views
from flatclr.training.queue import EmbeddingQueue

COUNTS = ("bad_steps", "bad_in_a_row")
AUTOCAST_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class StepResult:
    loss: Tensor
    stats: ContrastStats
    gradient_norm: Tensor
    embeddings: tuple[Tensor, ...]  # of every view, of this rank


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
    compiled: Callable[..., tuple[Tensor, ...]] | None = None  # the network, to be called faster
    samples_of: Callable[[int], Tensor] | None = None  # a step's samples of this rank, where the objective asks

    def __post_init__(self) -> None:
        self.forward: Callable[..., tuple[Tensor, ...]] = self.network if self.compiled is None else self.compiled
        self.is_captured = False  # whether steps are replayed from CUDA graphs
        device = device_of(self.network)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        self.bad_steps, self.bad_in_a_row, self.longest_bad = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        # the host need not know whether a step is finite where the optimizer skips it by itself
        self.skips_on_device = (
            bool(self.optimizer.defaults.get("fused"))
            and not self.scaler.is_enabled()
            and self.keys is None
            and self.queue is None
        )
        self.autocast_type = AUTOCAST_TYPES[self.precision]

    def embed(self, network: Callable[..., tuple[Tensor, ...]], *views: Tensor) -> tuple[Tensor, ...]:
        with self._autocast(views[0]):
            if self.keys is None:
                return network(*views)
            view_a, view_b = views
            return *network(view_a), *self.keys(view_b)

    def _autocast(self, like: Tensor) -> torch.autocast:
        return torch.autocast(like.device.type, dtype=self.autocast_type, enabled=self.autocast_type is not None)

    def _with_gradient(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Embeddings that carry a gradient: of all views, or of the first where keys come from a momentum encoder."""
        with self._autocast(views[0]):
            return self.forward(*(views if self.keys is None else views[:1]))

    def _keys_of(self, views: Views, parts: list[slice]) -> Tensor:
        assert self.keys is not None
        encoded = []
        for rows in parts:
            _, view_b = views(rows)
            with self._autocast(view_b):
                encoded.append(self.keys(view_b)[0])
        return torch.cat(encoded)

    def __call__(self, batch: Batch, step: int) -> StepResult:
        index = None if self.samples_of is None else self.samples_of(step)
        return self.take(self.inputs.draw(batch, step), len(batch[0]), index)

    def take(self, views: Views, samples: int, index: Tensor | None = None) -> StepResult:
        """Backward and update. A step that is not finite changes nothing but the counts; on CUDA nothing waits."""
        before = [_flat(self._guarded)] if self._guarded else []
        loss, stats, embeddings = self.backward(views, samples, index)
        self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm)
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        self.bad_steps.add_(~finite)
        self.bad_in_a_row.add_(1).mul_(~finite)
        torch.maximum(self.longest_bad, self.bad_in_a_row, out=self.longest_bad)
        for old in before:
            kept = torch.where(finite, _flat(self._guarded), old)
            torch._foreach_copy_(self._guarded, _like(kept, self._guarded))
        if self.skips_on_device:
            self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif finite:
            self.scaler.step(self.optimizer)
            if self.keys is not None:
                self.keys.update()
            if self.queue is not None:
                self.queue.push(distributed.gather_views(embeddings[1].unsqueeze(0), self.ranks).squeeze(0))
        self.scaler.update()
        return StepResult(loss, stats, norm, embeddings)

    def backward(
        self, views: Views, samples: int, index: Tensor | None = None
    ) -> tuple[Tensor, ContrastStats, tuple[Tensor, ...]]:
        """Put the gradient of this batch into the parameters; nothing else changes but what forward passes count."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = micro_batches(samples, self.micro_batch)
        if len(parts) == 1:
            embeddings = self.embed(self.forward, *views(parts[0]))
            loss, stats = self._loss(embeddings, index)
            self.scaler.scale(loss).backward()
        else:
            cached = CachedEmbeddings.of(self.network, lambda rows: self._with_gradient(*views(rows)), parts)
            embeddings = cached.embeddings if self.keys is None else (*cached.embeddings, self._keys_of(views, parts))
            loss, stats = self._loss(embeddings, index)
            self.scaler.scale(loss).backward()
            cached.carry_back()
        return loss.detach(), stats, tuple(z.detach() for z in embeddings)

    def _loss(self, embeddings: tuple[Tensor, ...], index: Tensor | None = None) -> tuple[Tensor, ContrastStats]:
        negatives = None if self.queue is None else self.queue.rows.to(embeddings[0].dtype)
        return self.objective.with_stats(*embeddings, negatives=negatives, index=index)

    def negatives(self, views: int, samples: int, d: int) -> int:
        """Per anchor, for batches of this rank with so many samples, each with so many views."""
        queue = None if self.queue is None else self.queue.rows
        z = self._made_up(views, samples, d)
        with self._without_trace(z.device):
            return PairSet.of(*z, negatives=queue, **self.objective.options).negatives

    def try_loss(self, views: int, samples: int, d: int) -> None:
        """Raises what the objective has against so many views of so many samples of this rank; changes nothing."""
        z = self._made_up(views, samples, d)
        index = None if self.samples_of is None else self.samples_of(0)
        with torch.no_grad(), self._without_trace(z.device):
            self._loss(z.unbind(), index)

    def _made_up(self, views: int, samples: int, d: int) -> Tensor:
        """Embeddings of no images that pass every check of good ones: views of a sample are alike, samples are not."""
        generator = torch.Generator().manual_seed(0)
        samples_Nd = torch.randn(samples, d, generator=generator)
        views_VNd = samples_Nd + 0.1 * torch.randn(views, samples, d, generator=generator)
        return views_VNd.to(device_of(self.network))

    @contextmanager
    def _without_trace(self, device: torch.device) -> Iterator[None]:
        """What is drawn is drawn again afterwards, and the ESS controller sees nothing."""
        was_training = self.objective.training
        self.objective.eval()
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            self.objective.train(was_training)

    def probe_gradient(self, batch: Batch, key: str, samples: Tensor) -> Tensor:
        """The gradient of one batch in one weight, flat; changes nothing. No pass goes back through the encoder.

        Args:
            batch: of this rank.
            key: of its views.
            samples: which of the data they are, for objectives that keep numbers of each.
        """
        network = self.bare_network
        with self._without_trace(batch[0].device):
            embeddings = self._embed_through_last_layer(network, self.inputs.draw(batch, key), len(batch[0]))
            loss, _ = self._loss(embeddings, samples if self.objective.keeps_samples else None)
        (gradient,) = torch.autograd.grad(loss, [network.last_layer.weight])
        return distributed.average_over_ranks(gradient.float().flatten(), self.ranks)

    def _embed_through_last_layer(self, network: Network | TwoTowers, views: Views, samples: int) -> tuple[Tensor, ...]:
        """Embeddings with a graph through the last layer alone, encoded in micro-batches as training does."""
        seen: list[Tensor] = []
        hook = network.last_layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        encoded = []
        try:
            for rows in micro_batches(samples, self.micro_batch):
                with torch.no_grad(), frozen_running_statistics(network):
                    plain = self.embed(network, *views(rows))
                with self._autocast(plain[0]):
                    again = network.last_layer.forward(seen.pop()).split(len(plain[0]))
                encoded.append((*again, *plain[len(again) :]))  # what the last layer did not make stays as it is
        finally:
            hook.remove()
        return tuple(torch.cat(view) for view in zip(*encoded, strict=True))

    @cached_property
    def _guarded(self) -> list[Tensor]:
        """Running statistics and the controller's state: what a forward pass changes though the step is skipped."""
        modules = (self.bare_network, self.objective)
        return [b for module in modules for b in module.buffers() if b.dtype == torch.float32]

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
        counts = {name: int(getattr(self, name)) for name in COUNTS}
        return {**counts, **{name: part.state_dict() for name, part in self._parts().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in COUNTS:
            getattr(self, name).fill_(state[name])
        self.longest_bad.copy_(self.bad_in_a_row)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _like(flat: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
