"""Which way a contrast is reduced: the one place that decides.

dense      one tile of scores, kept for backward: small batches
streamed   tile by tile in PyTorch's operations, recomputed in backward: any device, any size
fused      tile by tile in Triton kernels: CUDA devices
strips     strip by strip through the library's matrix products, sums in Triton: wide embeddings on CUDA devices
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
from flatclr.contrast.kernels import TRITON_MODULES, fused_kernels_run, kernels_of
from flatclr.contrast.numerics import dense_ess, no_autocast
from flatclr.contrast.phi import Phi
from flatclr.contrast.related import Positives, mean_phi_of, negatives_of
from flatclr.contrast.streamed import reduce_streamed

LARGEST_DENSE = 2**20  # scores, one tile
WIDEST_FUSED = 256  # features; from 384 on strips are 4 to 5 times faster (results/loss_widths.jsonl)


@dataclass(frozen=True)
class Reduced:
    """The log-sum-exp of a contrast, whichever way it was reduced."""

    positive: Tensor  # [A]
    logsumexp: Tensor  # [A]
    gap: Tensor  # [A], logsumexp - positive
    measure_ess: Callable[[], Tensor]  # for those who ask: a loss alone should not pay for it
    route: str
    negatives: int | Tensor  # per anchor
    positives: Positives | None = None  # None: each anchor has one
    counted: Tensor | None = None  # which anchors have negatives; None: all


def logsumexp(batch: Batch, inverse_temperature: float | Tensor) -> Reduced:
    """Positive score, log-sum-exp of the negatives and their gap of every anchor, and a way to ask for their ESS."""
    scale = batch.scale(inverse_temperature)
    plain = _is_plain(batch, scale)
    route = route_of(batch, plain=plain)
    if not plain:
        return _related(batch, scale, route)
    negatives = batch.layout.negatives
    if route == "drawn":
        assert batch.drawn_Ak is not None
        scores_Ak, positive = candidate_scores(batch, scale, batch.drawn_Ak), positive_scores(batch, scale)
        total = scores_Ak.logsumexp(1)
        return Reduced(positive, total, total - positive, partial(dense_ess, scores_Ak, negatives), route, negatives)
    with no_autocast(batch.views[0]):
        if route == "dense":
            return Reduced(*dense.logsumexp_kept(batch, scale), route, negatives)
        positive, total, gap, ess = reduce_streamed(batch, scale, route, None)
    return Reduced(positive, total, gap, partial(measured, ess), route, negatives)


def _related(batch: Batch, scale: float | Tensor, route: str) -> Reduced:
    """Of any relation."""
    positives = Positives(batch, scale, route)
    negatives = negatives_of(batch, scale, route, positives)
    positive, counted = positives.mean_score, negatives.counted
    if counted is not None:
        positive = positive.masked_fill(~counted, torch.nan)
    total = negatives.logsumexp
    return Reduced(positive, total, total - positive, negatives.ess, route, negatives.count, positives, counted)


def mean_phi(batch: Batch, phi: Phi, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """(mean positive score, mean of phi over the negatives) of every anchor, and which have negatives; None: all."""
    scale = batch.scale(inverse_temperature)
    plain = _is_plain(batch, scale)
    route = route_of(batch, phi, plain=plain)
    if not plain:
        positives = Positives(batch, scale, route)
        return positives.mean_score, *mean_phi_of(batch, scale, route, phi, positives)
    if route == "drawn":
        assert batch.drawn_Ak is not None
        scores_Ak = candidate_scores(batch, scale, batch.drawn_Ak)
        return positive_scores(batch, scale), phi.applied(scores_Ak).mean(1), None
    with no_autocast(batch.views[0]):
        if route == "dense":
            return *dense.mean_phi_kept(batch, scale, phi), None
        positive, mean = reduce_streamed(batch, scale, route, phi)
    return positive, mean, None


def positives_of(batch: Batch, inverse_temperature: float | Tensor) -> Positives:
    """The positives of a batch, to be looked at one by one."""
    return Positives(batch, batch.scale(inverse_temperature), route_of(batch, plain=False))


def positive_scores(batch: Batch, scale: float | Tensor) -> Tensor:
    """Mean score of every anchor's positives."""
    if not batch.plain:
        return Positives(batch, scale, route_of(batch, plain=False)).mean_score
    view_a, view_b = batch.everyone_VNd
    cosine_A = (view_a * view_b).sum(1).repeat(len(batch.layout.groups))
    positive: Tensor = scale * cosine_A
    return positive


def measured(ess: Tensor) -> Tensor:
    """An ESS that is known already, for those who ask for it."""
    return ess


def route_of(batch: Batch, phi: Phi | None = None, *, plain: bool) -> str:
    """The route of a batch, for its log-sum-exp or for a phi; refuses one that was asked for and cannot be.

    `plain`: two views on a diagonal at one temperature; every other relation is dense or streamed.
    """
    if batch.drawn_Ak is not None:
        return "drawn"
    options, layout = batch.options, batch.layout
    asked = _asked(options.route, options.backend)
    if asked == "triton":
        asked = _with_triton(batch.views[0])
    if asked != "auto":
        _require_possible(asked, batch, phi, plain=plain)
        return asked
    is_small = layout.ranks.size == 1 and layout.anchors * _widest(batch) <= LARGEST_DENSE
    if not plain:
        return "dense" if is_small else "streamed"
    if is_small and batch.queue is None and dense.has_tile(layout):
        return "dense"
    alone = layout.ranks.size == 1
    if options.backend == "auto" and alone and prefers_fused(batch.views[0]):
        best = _with_triton(batch.views[0])
        return best if phi is None or kernels_of(best).knows(phi) else "streamed"
    return "streamed"


def _widest(batch: Batch) -> int:
    """Candidates of an anchor in the largest tile: its negatives, or with labels the rows that may be positives."""
    layout = batch.layout
    if batch.known is None or batch.known.labels is None:
        return layout.negatives
    return max(layout.negatives, len(layout.groups[0].candidates) * layout.samples)


def prefers_fused(embeddings: Tensor) -> bool:
    """Whether streaming these is a matter for Triton's kernels.

    In half precision on a GPU, called eagerly, they were faster at every size that is streamed, from 1.5 times at 2,048
    rows to 26 times at 65,536 (`results/loss_gpu.jsonl`); a graph of torch.compile they would break.
    """
    if torch.compiler.is_compiling() or embeddings.dtype not in (torch.bfloat16, torch.float16):
        return False
    return embeddings.is_cuda and fused_kernels_run(embeddings.device)


def _is_plain(batch: Batch, scale: float | Tensor) -> bool:
    """Whether it is two views on a diagonal at one temperature; dense, where no tile serves, goes the other way."""
    if not batch.plain or (isinstance(scale, Tensor) and scale.dim()):
        return False
    return batch.options.route != "dense" or (batch.queue is None and dense.has_tile(batch.layout))


def _with_triton(embeddings: Tensor) -> str:
    """The faster of the routes that need Triton."""
    half = embeddings.dtype in (torch.bfloat16, torch.float16)
    return "strips" if half and embeddings.shape[1] > WIDEST_FUSED else "fused"


def _asked(route: str, backend: str) -> str:
    """What route and backend ask for together."""
    if backend == "triton" and route in ("dense", "streamed"):
        raise ValueError(f"route must be 'fused' or 'strips' with backend='triton', got {route!r}; leave one out.")
    if backend == "torch" and route in TRITON_MODULES:
        raise ValueError(f"backend must be 'triton' with route={route!r}, got 'torch'; leave one of them out.")
    return "triton" if backend == "triton" and route == "auto" else route


def _require_possible(route: str, batch: Batch, phi: Phi | None, *, plain: bool) -> None:
    if route not in TRITON_MODULES:
        return
    if not plain:
        raise ValueError(
            f"route={route!r} (backend='triton') must be asked of two views at one temperature without labels, ids, "
            "hard negatives or a margin, got more; use route='streamed'."
        )
    kernels = kernels_of(route)
    kernels.require_usable(batch.views[0])
    if phi is not None:
        kernels.require_known(phi)
