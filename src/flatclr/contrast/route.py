"""Which way a contrast is reduced: the one place that decides.

dense      one tile of scores, kept for backward: small batches
streamed   tile by tile in PyTorch's operations, recomputed in backward: any device, any size
fused      tile by tile in Triton kernels: CUDA devices
drawn      the scores of drawn negatives alone; not to be asked for, it follows from negatives_per_anchor
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from flatclr.contrast import dense
from flatclr.contrast.batch import Batch
from flatclr.contrast.drawn import candidate_scores
from flatclr.contrast.kernels import fused_kernels_run, kernels_of
from flatclr.contrast.numerics import dense_ess, no_autocast
from flatclr.contrast.phi import Phi
from flatclr.contrast.streamed import reduce_streamed

LARGEST_DENSE = 2**20  # scores, one tile


@dataclass(frozen=True)
class Reduced:
    """The log-sum-exp of a contrast, whichever way it was reduced."""

    positive: Tensor  # [A]
    logsumexp: Tensor  # [A]
    gap: Tensor  # [A], logsumexp - positive
    measure_ess: Callable[[], Tensor]  # for those who ask: a loss alone should not pay for it
    route: str


def logsumexp(batch: Batch, inverse_temperature: float | Tensor) -> Reduced:
    """Positive score, log-sum-exp of the negatives and their gap of every anchor, and a way to ask for their ESS."""
    route, scale = route_of(batch), batch.scale(inverse_temperature)
    if route == "drawn":
        assert batch.drawn_Ak is not None
        scores_Ak, positive = candidate_scores(batch, scale, batch.drawn_Ak), positive_scores(batch, scale)
        total = scores_Ak.logsumexp(1)
        return Reduced(positive, total, total - positive, partial(dense_ess, scores_Ak, batch.negatives), route)
    with no_autocast(batch.views[0]):
        if route == "dense":
            return Reduced(*dense.logsumexp_kept(batch, scale), route)
        positive, total, gap, ess = reduce_streamed(batch, scale, route, None)
    return Reduced(positive, total, gap, partial(measured, ess), route)


def mean_phi(batch: Batch, phi: Phi, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """(positive score, mean of phi over the negatives) of every anchor."""
    route, scale = route_of(batch, phi), batch.scale(inverse_temperature)
    if route == "drawn":
        assert batch.drawn_Ak is not None
        scores_Ak = candidate_scores(batch, scale, batch.drawn_Ak)
        return positive_scores(batch, scale), phi.values(scores_Ak).mean(1)
    with no_autocast(batch.views[0]):
        if route == "dense":
            return dense.mean_phi_kept(batch, scale, phi)
        positive, mean = reduce_streamed(batch, scale, route, phi)
    return positive, mean


def positive_scores(batch: Batch, scale: float | Tensor) -> Tensor:
    """Score of every anchor's positive."""
    view_a, view_b = batch.everyone_VNd
    positive_N: Tensor = scale * (view_a * view_b).sum(1)
    return positive_N.repeat(len(batch.layout.groups))


def measured(ess: Tensor) -> Tensor:
    """An ESS that is known already, for those who ask for it."""
    return ess


def route_of(batch: Batch, phi: Phi | None = None) -> str:
    """The route of a batch, for its log-sum-exp or for a phi; refuses one that was asked for and cannot be."""
    if batch.drawn_Ak is not None:
        return "drawn"
    options, layout = batch.options, batch.layout
    asked = _asked(options.route, options.backend)
    if asked != "auto":
        _require_possible(asked, batch, phi)
        return asked
    is_small = batch.queue is None and layout.anchors * layout.negatives <= LARGEST_DENSE
    if is_small and dense.has_tile(layout):
        return "dense"
    alone = layout.ranks.size == 1
    if options.backend == "auto" and alone and prefers_fused(batch.views[0]):
        return "fused" if phi is None or kernels_of("fused").knows(phi) else "streamed"
    return "streamed"


def prefers_fused(embeddings: Tensor) -> bool:
    """Whether streaming these is a matter for the fused kernels.

    In half precision on a GPU, called eagerly, they were faster at every size that is streamed, from 1.5 times at 2,048
    rows to 26 times at 65,536 (`results/loss_gpu.jsonl`); a graph of torch.compile they would break.
    """
    if torch.compiler.is_compiling() or embeddings.dtype not in (torch.bfloat16, torch.float16):
        return False
    return embeddings.is_cuda and fused_kernels_run(embeddings.device)


def _asked(route: str, backend: str) -> str:
    """What route and backend ask for together."""
    if backend == "triton" and route in ("dense", "streamed"):
        raise ValueError(f"route must be 'fused' with backend='triton', got {route!r}; leave one of them out.")
    if backend == "torch" and route == "fused":
        raise ValueError("backend must be 'triton' with route='fused', got 'torch'; leave one of them out.")
    return "fused" if backend == "triton" else route


def _require_possible(route: str, batch: Batch, phi: Phi | None) -> None:
    if route == "fused":
        kernels = kernels_of(route)
        kernels.require_usable(batch.views[0])
        if phi is not None:
            kernels.require_known(phi)
    if route == "dense" and (batch.queue is not None or not dense.has_tile(batch.layout)):
        raise ValueError("route='dense' must be asked of two views on one process without a queue; leave it out.")
