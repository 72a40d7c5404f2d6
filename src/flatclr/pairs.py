"""Embeddings ready to be contrasted, and the quantities of their pairs that objectives are made of.

Large problems are streamed and store no score matrix; one no larger than a tile, on one rank, keeps that tile.

Shape suffixes: V views, N samples of the global batch, n of this rank, A anchors, k drawn negatives, M queue, d
features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.autograd import refuse_double_backward
from flatclr.checks import require_one_of, unusable_rows
from flatclr.kept import logsumexp_kept, mean_phi_kept
from flatclr.kernels.ess import effective_share
from flatclr.kernels.phi import Phi
from flatclr.pairing import ENTRIES_AT_ONCE, PAIRINGS, Layout, draw_negatives, layout_of
from flatclr.precision import accumulation_type, no_autocast
from flatclr.sphere import unit_rows
from flatclr.streaming import BACKENDS as STREAMING
from flatclr.streaming import hardest_candidates, kernels_of, prefers_fused, reduce_streamed

BACKENDS = ("auto", *STREAMING)
LARGEST_KEPT = 2**20  # scores, one tile


@dataclass(frozen=True)
class PairSet:
    """Two views and a queue: checked, in accumulation precision, and any draw of negatives made once."""

    z_a: Tensor  # [n, d] of this rank, as they came
    z_b: Tensor
    queue: Tensor | None  # [M, d], ready
    drawn_Ak: Tensor | None  # rows of (view a, view b, queue)
    layout: Layout
    backend_is_free: bool = False  # nobody asked for a certain one

    @classmethod
    def of(
        cls,
        z_a: Tensor,
        z_b: Tensor,
        *,
        pairing: str = "two_view",
        negatives: Tensor | None = None,
        in_batch_negatives: bool = True,
        negatives_per_anchor: int | None = None,
        generator: torch.Generator | None = None,
        normalize: bool = True,
        gather: bool = False,
        backend: str = "auto",
        check_embeddings: bool = False,
        shared_loss: bool = False,
    ) -> PairSet:
        """The arguments are those of `flatclr.contrast_stats`."""
        require_one_of("pairing", pairing, PAIRINGS)
        require_one_of("backend", backend, BACKENDS)
        ranks = distributed.ranks_sharing_a_batch(gather)
        distributed.agree_on_batches(z_a, z_b, negatives, ranks)
        kernels_of("torch" if backend == "auto" else backend).require_usable(z_a)
        if check_embeddings:
            named = {"z_a": z_a, "z_b": z_b, "negatives": negatives}
            problems = (unusable_rows(n, z, directions=normalize) for n, z in named.items() if z is not None)
            distributed.fail_together(next(filter(None, problems), None), z_a.device, ranks)

        layout = layout_of(
            pairing,
            ranks,
            own_samples=len(z_a),
            queued=0 if negatives is None else len(negatives),
            in_batch=in_batch_negatives,
            normalize=normalize,
            shared_loss=shared_loss,
            backend="torch" if backend == "auto" else backend,
            needs_gradient=(z_a.requires_grad, z_b.requires_grad),
            embedding_type=z_a.dtype,
        )
        drawn = None
        if negatives_per_anchor is not None:
            drawn = draw_negatives(layout, negatives_per_anchor, generator, z_a.device)
            drawn = distributed.from_first_rank(drawn, ranks)
            layout = replace(layout, negatives=negatives_per_anchor)
        queue = None
        if negatives is not None:
            queue = negatives.to(accumulation_type(negatives))
            queue = unit_rows(queue) if normalize else queue
        pairs = cls(z_a, z_b, queue, drawn, layout, backend_is_free=backend == "auto")
        if pairs.backend_is_free and ranks.size == 1 and not pairs._fits_a_tile and prefers_fused(z_a):
            return replace(pairs, layout=replace(layout, backend="triton"))
        return pairs

    @property
    def stack(self) -> Tensor:
        """Both views of this rank in accumulation precision, not yet normalised: [2n, d]."""
        return torch.cat([self.z_a, self.z_b]).to(accumulation_type(self.z_a))

    @property
    def negatives(self) -> int:
        """Per anchor, queue included."""
        return self.layout.negatives

    def logsumexp(self, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Callable[[], Tensor]]:
        """(positive score, log-sum-exp of the negatives, their gap) of every anchor, and a way to ask for their ESS."""
        if self.drawn_Ak is not None:
            scores_Ak = self._drawn_scores(inverse_temperature)
            positive, logsumexp = self.positive(inverse_temperature), scores_Ak.logsumexp(1)
            return positive, logsumexp, logsumexp - positive, partial(dense_ess, scores_Ak, self.negatives)
        scale = self._scale(inverse_temperature)
        with no_autocast(self.z_a):
            if self._fits_a_tile:
                return logsumexp_kept(self.z_a, self.z_b, scale, self.layout)
            positive, logsumexp, gap, ess = reduce_streamed(self.z_a, self.z_b, self.queue, scale, self.layout, None)
        return positive, logsumexp, gap, partial(measured, ess)

    def mean_phi(self, phi: Phi, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor]:
        """(positive score, mean of phi over the negatives) of every anchor."""
        if self.drawn_Ak is not None:
            return self.positive(inverse_temperature), phi.values(self._drawn_scores(inverse_temperature)).mean(1)
        layout = self.layout
        if self.backend_is_free and not kernels_of(layout.backend).knows(phi):
            layout = replace(layout, backend="torch")
        kernels_of(layout.backend).require_known(phi)
        scale = self._scale(inverse_temperature)
        with no_autocast(self.z_a):
            if self._fits_a_tile:
                positive, mean = mean_phi_kept(self.z_a, self.z_b, scale, layout, phi)
            else:
                positive, mean = reduce_streamed(self.z_a, self.z_b, self.queue, scale, layout, phi)
        return positive, mean

    def mean_negative(self, inverse_temperature: float | Tensor) -> Tensor:
        """Mean negative score of every anchor, from sums of embeddings: O(N d) work."""
        if self.drawn_Ak is not None:
            return self._drawn_scores(inverse_temperature).mean(1)
        stack_VNd = self.everyone_VNd
        means = []
        for anchors_Nd, candidates in zip(stack_VNd, self.layout.pairing.candidates, strict=False):
            opposite_Nd = torch.zeros_like(anchors_Nd)
            if self.layout.in_batch:
                for view in candidates:
                    opposite_Nd = opposite_Nd + (stack_VNd[view].sum(0) - stack_VNd[view])
            if self.queue is not None:
                opposite_Nd = opposite_Nd + self.queue.sum(0)
            means.append((anchors_Nd * opposite_Nd).sum(1) / self.negatives)
        return self._scale(inverse_temperature) * torch.cat(means)

    def extreme_negative(self, inverse_temperature: float | Tensor, *, hardest: bool) -> Tensor:
        """Score of the hardest (or easiest) negative of every anchor; the gradient goes to that pair alone."""
        if self.drawn_Ak is not None:
            scores_Ak = self._drawn_scores(inverse_temperature)
            return scores_Ak.amax(1) if hardest else scores_Ak.amin(1)
        everyone = self.everyone_VNd.detach().flatten(0, 1)
        with no_autocast(everyone):
            candidates_A = hardest_candidates(everyone, self.queue, self.layout, easiest=not hardest)
        return self._scale(inverse_temperature) * self._dot_products(candidates_A.unsqueeze(1)).squeeze(1)

    @cached_property
    def everyone_VNd(self) -> Tensor:
        """Both views of all ranks, ready; backward hands this rank its own rows."""
        with torch.enable_grad():  # the first to ask may be a gauge, the next a loss
            own = unit_rows(self.stack) if self.layout.normalize else self.stack
            return self._of_all_ranks(own.view(2, self.layout.own_samples, -1))

    def of_all_ranks(self, per_sample_n: Tensor) -> Tensor:
        """Values of this rank's samples -> values of all samples [N], with gradient."""
        return self._of_all_ranks(per_sample_n.unsqueeze(0)).squeeze(0)

    def _of_all_ranks(self, x_Vn: Tensor) -> Tensor:
        return distributed.gather_views_with_gradient(x_Vn, self.layout.ranks, shared_loss=self.layout.shared_loss)

    @property
    def _fits_a_tile(self) -> bool:
        layout = self.layout
        scores = layout.pairing.anchor_views * layout.samples * layout.negatives
        fits = self.queue is None and scores <= LARGEST_KEPT and layout.ranks.size == 1
        return fits and layout.backend == "torch"

    def _scale(self, inverse_temperature: float | Tensor) -> float | Tensor:
        """A number, or a 0-dim tensor in the precision of the sums."""
        if isinstance(inverse_temperature, Tensor):
            return inverse_temperature.to(self.z_a.device, accumulation_type(self.z_a)).reshape(())
        return inverse_temperature if isinstance(inverse_temperature, float) else float(inverse_temperature)

    def positive(self, inverse_temperature: float | Tensor) -> Tensor:
        view_a, view_b = self.everyone_VNd
        positive_N: Tensor = self._scale(inverse_temperature) * (view_a * view_b).sum(1)
        return positive_N.repeat(self.layout.pairing.anchor_views)

    def _drawn_scores(self, inverse_temperature: float | Tensor) -> Tensor:
        assert self.drawn_Ak is not None
        return self._scale(inverse_temperature) * self._dot_products(self.drawn_Ak)

    def _dot_products(self, candidates_Ak: Tensor) -> Tensor:
        stack = self.everyone_VNd.flatten(0, 1)
        rows = stack if self.queue is None else torch.cat([stack, self.queue])
        with no_autocast(stack):
            products: Tensor = _IndexedDotProducts.apply(stack[: len(candidates_Ak)], rows, candidates_Ak)
        return products


def measured(ess: Tensor) -> Tensor:
    """An ESS that is known already, for those who ask for it."""
    return ess


def dense_ess(scores_AK: Tensor, negatives: int) -> Tensor:
    """(sum_j exp s_j)^2 / (K sum_j exp 2 s_j) of each row; entries at -inf do not count."""
    weights = scores_AK.detach().softmax(1)
    return effective_share(weights.sum(1), torch.linalg.vector_norm(weights, dim=1), negatives)


class _IndexedDotProducts(torch.autograd.Function):
    """<anchor_i, row_index[i, j]>, a few anchors at a time so that [A, k, d] is never stored."""

    @staticmethod
    def forward(ctx: Any, anchors_Ad: Tensor, rows_Md: Tensor, index_Ak: Tensor) -> Tensor:
        ctx.save_for_backward(anchors_Ad, rows_Md, index_Ak)
        return torch.cat(
            [torch.einsum("ad,akd->ak", anchors_Ad[s], rows_Md[index_Ak[s]]) for s in _strips(rows_Md, index_Ak)]
        )

    @staticmethod
    def backward(ctx: Any, upstream_Ak: Tensor) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        anchors_Ad, rows_Md, index_Ak = ctx.saved_tensors
        d_anchors, d_rows = torch.empty_like(anchors_Ad), torch.zeros_like(rows_Md)
        with no_autocast(rows_Md):
            for s in _strips(rows_Md, index_Ak):
                d_anchors[s] = torch.einsum("ak,akd->ad", upstream_Ak[s], rows_Md[index_Ak[s]])
                pull_akd = upstream_Ak[s].unsqueeze(2) * anchors_Ad[s].unsqueeze(1)
                d_rows.index_add_(0, index_Ak[s].flatten(), pull_akd.flatten(0, 1))
        return d_anchors, d_rows, None


def _strips(rows_Md: Tensor, index_Ak: Tensor) -> Iterator[slice]:
    at_once = max(1, ENTRIES_AT_ONCE // (index_Ak.shape[1] * rows_Md.shape[1]))
    for start in range(0, len(index_Ak), at_once):
        yield slice(start, min(start + at_once, len(index_Ak)))
