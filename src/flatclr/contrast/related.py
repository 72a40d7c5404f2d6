"""The numbers of a contrast whose relation is more than two views on a diagonal.

Several views give every anchor several positives, labels give more, ids and a margin take negatives away, hard
negatives add some that are the anchor's own. Each source of negatives gives its log-sum-exp, and these are added.

Shape suffixes: V views, N samples, A anchors, P other views, H hard negatives, d features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.contrast.batch import Batch
from flatclr.contrast.drawn import candidate_scores
from flatclr.contrast.numerics import Cached, Unchanged, by_row, no_autocast, products
from flatclr.contrast.phi import Phi
from flatclr.contrast.selected import PairSums, Wanted, reduce_selected, sums_of_matrix
from flatclr.contrast.selected_pass import lens_of
from flatclr.contrast.streamed import hardest_candidates

DEVICE = "flatclr.contrast.kernels.phi_device"
IDENTITY = Phi("identity", value=lambda s: s, derivative=lambda s: 1.0, device=f"{DEVICE}:identity")
SOFTPLUS_OF_MINUS = Phi(
    "softplus_of_minus",
    value=lambda s: F.softplus(-s),
    derivative=lambda s: -torch.sigmoid(-s),
    device=f"{DEVICE}:softplus_of_minus",
)


@dataclass(frozen=True)
class Positives:
    """The positives of every anchor: the other views of its sample and, with labels, rows of its label."""

    batch: Batch
    scale: float | Tensor
    route: str
    measured: tuple[Tensor, Tensor] | None = None  # (info_nce, logsumexp) where they are known already
    unchanged: Unchanged | None = None  # the embeddings; None: read at once

    @Cached
    def view_scores_AP(self) -> Tensor:
        """Scores of the other views of each anchor's sample."""
        with torch.enable_grad(), no_autocast(self.batch.views[0]):
            if self.batch.layout.views == 2:
                view_a, view_b = self.batch.everyone_VNd.unbind()
                cosines_N1 = torch.linalg.vecdot(view_a, view_b).unsqueeze(1)
                of_groups_A1: Tensor = cosines_N1.repeat(len(self.batch.layout.groups), 1)
                return of_groups_A1 * by_row(self.scale)
            stack_NVd = self.batch.everyone_VNd.transpose(0, 1)
            others_NVd = stack_NVd.view_as(stack_NVd)  # torch.compile does not take one tensor twice
            columns_N = [row_VN.unbind() for row_VN in products(stack_NVd, others_NVd).permute(1, 2, 0).unbind()]
            # column by column: a list of indices would be copied to the device, and the host wait for it
            cosines_AP = torch.cat(
                [torch.stack([columns_N[g.view][v] for v in g.positives], 1) for g in self.batch.layout.groups]
            )
            return cosines_AP * by_row(self.scale)

    @property
    def has_labels(self) -> bool:
        return self.batch.known is not None and self.batch.known.labels is not None

    @Cached
    def count(self) -> int | Tensor:
        """Per anchor."""
        layout, known = self.batch.layout, self.batch.known
        views = len(layout.groups[0].positives)
        if known is None or known.labels is None:
            return views
        return (views + len(layout.groups[0].candidates) * known.others_of_label()).repeat(len(layout.groups))

    @Cached
    def mean_score(self) -> Tensor:
        """[A]"""
        with torch.enable_grad(), no_autocast(self.batch.views[0]):
            if not self.has_labels:
                return self.view_scores_AP.mean(1)
            return (self.view_scores_AP.sum(1) + self._score_of_label()) / self.count

    def _score_of_label(self) -> Tensor:
        """Sum of the scores of each anchor's label: its product with a sum of embeddings, in O(N d) work."""
        batch, known = self.batch, self.batch.known
        assert known is not None
        everyone_VNd, of_views, scores = batch.everyone_VNd, {}, []
        for group in batch.layout.groups:
            if group.candidates not in of_views:
                # float64: of a large class all but a few may be taken away again, with ids more than the row itself
                # view by view: backward of an indexed sum is slow on a GPU
                first, *others = group.candidates
                rows_Nd = everyone_VNd[first]
                rows_Nd = rows_Nd if known.ids is None and batch.views[0].dtype.itemsize == 2 else rows_Nd.double()
                for view in others:
                    rows_Nd = rows_Nd + everyone_VNd[view]
                of_views[group.candidates] = known.summed_over_label(rows_Nd).to(everyone_VNd.dtype)
            scores.append((everyone_VNd[group.view] * of_views[group.candidates]).sum(1))
        return torch.cat(scores) * self.scale

    def _sums_of_label(self, phi: Phi | None, shift: Tensor | None = None) -> PairSums:
        if self.unchanged is not None and self.route != "dense":  # which has its own copy of them
            self.unchanged.require("the single positives of a label", "embeddings", "read them earlier")
        return reduce_selected(self.batch, self.scale, self.route, Wanted(phi, positives=True, shift=shift))

    def mean_phi(self, phi: Phi) -> Tensor:
        """mean of phi(s) over the positives of every anchor."""
        total = phi.applied(self.view_scores_AP).sum(1)
        return (total + self._sums_of_label(phi).value if self.has_labels else total) / self.count

    def info_nce(self, logsumexp_A: Tensor) -> Tensor:
        """mean of softplus(l - s) over the positives of every anchor: each alone against the negatives."""
        if self.measured is not None:
            return self.measured[0]
        without = logsumexp_A.isnan()  # an anchor without negatives has no l, and must not send a NaN back
        finite_A = logsumexp_A.masked_fill(without, 0.0)
        total = F.softplus(finite_A.unsqueeze(1) - self.view_scores_AP, threshold=40).sum(1)
        if self.has_labels:
            total = total + self._sums_of_label(SOFTPLUS_OF_MINUS, finite_A).value
        return (total / self.count).masked_fill(without, torch.nan)

    def logsumexp(self) -> Tensor:
        """log of the sum of exp(s) over the positives of every anchor."""
        if self.measured is not None:
            return self.measured[1]
        total = self.view_scores_AP.logsumexp(1)
        return torch.logaddexp(total, self._sums_of_label(None).value) if self.has_labels else total

    def detach(self, logsumexp_A: Tensor) -> Positives:
        """Without the graph. What asks every rank is measured now: one that logs alone must not wait for the others."""
        measured = None
        if self.has_labels and self.batch.layout.ranks.size > 1:
            with torch.no_grad():
                measured = self.info_nce(logsumexp_A), self.logsumexp()
        return self._kept(self.batch.detach(), _detached(self.scale), measured)

    def as_of_now(self) -> Positives:
        """To be read later: a temperature that changes until then is the present one; no_grad is that of now."""
        graph = torch.is_grad_enabled()
        scale = self.scale if graph else _detached(self.scale)
        if isinstance(scale, Tensor) and self.has_labels:
            scale = scale.clone()
        return self._kept(self.batch if graph else self.batch.detach(), scale, self.measured)

    def _kept(self, batch: Batch, scale: float | Tensor, measured: tuple[Tensor, Tensor] | None) -> Positives:
        self.view_scores_AP  # noqa: B018  made now, and the embeddings they are made of
        kept = Positives(batch, scale, self.route, measured, self.unchanged or Unchanged(*self.batch.views))
        for name in {"view_scores_AP", "mean_score"} & self.__dict__.keys():
            kept.__dict__[name] = self.__dict__[name] if batch is self.batch else self.__dict__[name].detach()
        return kept


@dataclass(frozen=True)
class Negatives:
    """The log-sum-exp of every anchor's negatives, wherever they came from."""

    logsumexp: Tensor  # [A]; NaN where an anchor has none
    squares: Tensor | None  # [A], log sum_j exp(2 s_ij), without gradient; None: not asked for
    count: int | Tensor
    counted: Tensor | None  # which anchors have negatives; None: all

    def ess(self) -> Tensor:
        """(sum_j e^s)^2 / (K sum_j e^2s) per anchor, in [1/K, 1]."""
        assert self.squares is not None
        share = (2 * self.logsumexp.detach() - self.squares).exp() / self.count
        if isinstance(self.count, Tensor):
            return torch.minimum(torch.maximum(share, 1 / self.count), torch.ones_like(share))
        return share.clamp(1 / self.count, 1)


def negatives_of(
    batch: Batch, scale: float | Tensor, route: str, positives: Positives, *, with_ess: bool = True
) -> Negatives:
    """The log-sum-exp over batch, queue, drawn and hard negatives."""
    wanted = Wanted(highest_cosine=_highest_cosine(batch, positives), squares=with_ess)
    sums = _merged(_sources(batch, scale, route, wanted))
    if not batch.counts_differ:
        return Negatives(sums.value, sums.squares, batch.negatives, None)
    counted = require_some(sums.count > 0)
    return Negatives(sums.value.masked_fill(~counted, torch.nan), sums.squares, sums.count, counted)


def mean_phi_of(
    batch: Batch, scale: float | Tensor, route: str, phi: Phi, positives: Positives
) -> tuple[Tensor, Tensor | None]:
    """mean_j phi(s_ij) over every anchor's negatives, NaN where it has none, and which have some; None: all."""
    wanted = Wanted(phi, highest_cosine=_highest_cosine(batch, positives))
    sources = _sources(batch, scale, route, wanted)
    total = torch.stack([source.value for source in sources]).sum(0)
    if not batch.counts_differ:
        return total / batch.negatives, None
    count = torch.stack([source.count for source in sources]).sum(0)
    counted = require_some(count > 0)
    return (total / count.clamp_min(1)).masked_fill(~counted, torch.nan), counted


def hard_scores(batch: Batch, scale: float | Tensor) -> Tensor:
    """Scores of every anchor against its sample's hard negatives: [A, H]."""
    assert batch.hard_nHd is not None
    layout = batch.layout
    own_nGd = torch.stack([batch.own_Vnd[group.view] for group in layout.groups], 1)
    products_GnH = products(own_nGd, batch.hard_nHd).transpose(0, 1)
    return batch.gathered(products_GnH).flatten(0, 1) * by_row(scale)


def require_some(counted_A: Tensor) -> Tensor:
    """Refuse a batch none of whose anchors has a negative left.

    On a GPU, which would have to be waited for, means over the anchors that count are NaN instead.
    """
    if counted_A.device.type != "cpu" or torch.compiler.is_compiling():
        return counted_A
    if not counted_A.any():
        raise ValueError(
            f"at least one anchor must have a negative, got {len(counted_A)} anchors without; their labels, ids or "
            "the false-negative margin leave none: mix the batch, or pass negatives=."
        )
    return counted_A


def _highest_cosine(batch: Batch, positives: Positives) -> Tensor | None:
    """Above which cosine a candidate counts as a false negative."""
    margin = batch.options.false_negative_margin
    if margin is None:
        return None
    return positives.mean_score.detach() / _detached(positives.scale) + margin


def _sources(batch: Batch, scale: float | Tensor, route: str, wanted: Wanted) -> list[PairSums]:
    sources = []
    if batch.layout.negatives:
        sources.append(reduce_selected(batch, scale, route, wanted))
    if batch.hard_nHd is not None:
        scores_AH = hard_scores(batch, scale)
        sources.append(sums_of_matrix(scores_AH, torch.zeros_like(scores_AH, dtype=torch.bool), wanted, scale))
    return sources


def _merged(sources: list[PairSums]) -> PairSums:
    """Log-sum-exps added up."""
    first, *others = sources
    for other in others:
        squares = None
        if first.squares is not None and other.squares is not None:
            squares = torch.logaddexp(first.squares, other.squares)
        first = PairSums(torch.logaddexp(first.value, other.value), squares, first.count + other.count)
    return first


def _detached(scale: float | Tensor) -> float | Tensor:
    return scale.detach() if isinstance(scale, Tensor) else scale


def extreme_selected(batch: Batch, scale: float | Tensor, route: str, *, hardest: bool) -> tuple[Tensor, Tensor]:
    """Score of every anchor's hardest (or easiest) negative, NaN where it has none, and which anchors have one.

    The gradient goes to that pair alone.
    """
    highest = _highest_cosine(batch, Positives(batch, scale, route))
    found = []
    if batch.drawn_Ak is not None:
        drawn = candidate_scores(batch, scale, batch.drawn_Ak.clamp_min(0))
        found.append(_extreme(drawn, batch.drawn_Ak < 0, highest, scale, hardest=hardest))
    elif batch.layout.negatives:
        with no_autocast(batch.views[0]):
            where_A, some_A = hardest_candidates(batch, highest, easiest=not hardest)
        best_A = candidate_scores(batch, scale, where_A.unsqueeze(1)).squeeze(1)
        found.append((best_A.masked_fill(~some_A, -torch.inf if hardest else torch.inf), some_A))
    if batch.hard_nHd is not None:
        scores_AH = hard_scores(batch, scale)
        nothing = torch.zeros_like(scores_AH, dtype=torch.bool)
        found.append(_extreme(scores_AH, nothing, highest, scale, hardest=hardest))
    of_sources = torch.stack([best for best, _ in found])
    counted = require_some(torch.stack([some for _, some in found]).any(0))
    best_A = of_sources.amax(0) if hardest else of_sources.amin(0)
    return best_A.masked_fill(~counted, torch.nan), counted


def _extreme(
    scores: Tensor, excluded: Tensor, highest: Tensor | None, scale: float | Tensor, *, hardest: bool
) -> tuple[Tensor, Tensor]:
    """(largest or smallest of each row, whether there is one)"""
    if highest is not None:
        excluded = excluded | (lens_of(highest, scale).seen(scores.detach(), 1) == -torch.inf)
    some = ~excluded.all(1)
    if hardest:
        return scores.masked_fill(excluded, -torch.inf).amax(1), some
    return scores.masked_fill(excluded, torch.inf).amin(1), some
