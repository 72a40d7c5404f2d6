"""What a contrast comes to: three numbers per anchor, and what follows from them.

For anchor i with positive score p_i and negative scores s_ij (already times the inverse temperature):

    positive_i            = p_i
    negative_logsumexp_i  = log sum_j exp(s_ij)
    ess_i                 = (sum_j exp(s_ij))^2 / (K sum_j exp(2 s_ij))

Objectives, mutual-information bounds and gauges are arithmetic on these. Shape suffixes: A anchors, K negatives per
anchor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_matrix
from flatclr.contrast.numerics import accumulation_type, dense_ess
from flatclr.contrast.related import Positives


class ContrastStats(NamedTuple):
    """What a batch says about every anchor: three numbers each, and what follows from them.

    `flatclr.contrast_stats` and `objective.with_stats` make them. K counts the negatives of an anchor.

    Args:
        known_positive: [A], what `positive` gives; None: `each_positive` is asked when it is read.
        negative_logsumexp: [A], log of the sum of exp(score) over the anchor's negatives.
        known_gap: [A], what `gap` gives; None: it is made of the two others.
        negatives: K, queue included; a tensor [A] where anchors differ.
        measure_ess: called when `ess` is read, so that a loss alone does not pay for it.
        route: which way the scores were reduced.
        each_positive: the single positives; None where every anchor has one.
        counted: [A], which anchors have negatives; None: all. The numbers of the others are NaN.
        chosen: whether labels, ids, a margin or hard negatives chose the negatives.

    >>> stats = stats_from_scores(torch.zeros(8, 8))
    >>> stats.negatives, round(stats.ceiling_nats, 4)
    (7, 2.0794)
    """

    known_positive: Tensor | None  # [A]; None: a loss alone should not pay for it
    negative_logsumexp: Tensor  # [A]
    known_gap: Tensor | None  # [A]
    negatives: int | Tensor  # K per anchor, queue included; a tensor [A] where anchors differ
    measure_ess: Callable[[], Tensor]  # for those who ask: a loss alone should not pay for it
    route: str = "dense"  # which way the scores were reduced
    each_positive: Positives | None = None  # None: every anchor has one
    counted: Tensor | None = None  # [A], which anchors have negatives; None: all. The numbers of the others are NaN.
    chosen: bool = False  # labels, ids, a margin or hard negatives chose the negatives

    @property
    def positive(self) -> Tensor:
        """Mean score of the positives per anchor; made when it is read of any relation but two plain views."""
        if self.known_positive is not None:
            return self.known_positive
        assert self.each_positive is not None, "who leaves the mean to them gives them"
        mean = self.each_positive.mean_score
        return mean if self.counted is None else mean.masked_fill(~self.counted, torch.nan)

    @property
    def gap(self) -> Tensor:
        """negative_logsumexp - positive per anchor; below 0 the positive outweighs all negatives together."""
        return self.negative_logsumexp - self.positive if self.known_gap is None else self.known_gap

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the negatives per anchor, in [1 / negatives, 1]; a gauge: no gradient passes."""
        return self.measure_ess()

    @property
    def info_nce(self) -> Tensor:
        """InfoNCE loss per anchor in nats: the mean over its positives of softplus(negative_logsumexp - score).

        With labels it is another pass over the pairs, which all ranks of a gathered batch make together; detached stats
        have made it.
        """
        if self.each_positive is None:
            return F.softplus(self.gap, threshold=40)
        return self.each_positive.info_nce(self.negative_logsumexp)

    @property
    def positives(self) -> int | Tensor:
        """Positives per anchor; a tensor [A] with labels."""
        return 1 if self.each_positive is None else self.each_positive.count

    @property
    def positive_logsumexp(self) -> Tensor:
        """log of the sum of exp(score) over the positives of every anchor."""
        if self.each_positive is None:
            return self.positive
        total = self.each_positive.logsumexp()
        return total if self.counted is None else total.masked_fill(~self.counted, torch.nan)

    @property
    def log_negatives(self) -> float | Tensor:
        """log K per anchor."""
        return _log(self.negatives, self.negative_logsumexp)

    @property
    def log_positives(self) -> float | Tensor:
        """log of the number of positives per anchor."""
        return _log(self.positives, self.negative_logsumexp)

    @property
    def log_partition(self) -> Tensor:
        """log of the mean of exp(score) over all (anchor, negative) pairs of the batch."""
        return self.log_partition_of_groups(1).squeeze(0)

    def log_partition_of_groups(self, groups: int) -> Tensor:
        """`log_partition` of each of several groups of anchors.

        Args:
            groups: how many groups of equal size stand one after the other.

        Returns:
            [groups].
        """
        logsumexp = self.negative_logsumexp
        if self.counted is not None:
            logsumexp = logsumexp.masked_fill(~self.counted, -torch.inf)
        logsumexp_GN = logsumexp.view(groups, -1)
        if isinstance(self.negatives, Tensor):
            return torch.logsumexp(logsumexp_GN, 1) - _log(self.negatives.view(groups, -1).sum(1), logsumexp)
        return torch.logsumexp(logsumexp_GN, 1) - math.log(logsumexp_GN.shape[1] * self.negatives)

    @property
    def left_out(self) -> int | Tensor:
        """How many anchors have no negative and are left out of every mean."""
        return 0 if self.counted is None else (~self.counted).sum()

    def mean(self, per_anchor: Tensor) -> Tensor:
        """Mean over the anchors that have negatives.

        Args:
            per_anchor: [A].

        Returns:
            A scalar; NaN on a GPU where no anchor has any, which the CPU refuses.
        """
        if self.counted is None:
            return per_anchor.mean()
        return per_anchor.masked_fill(~self.counted, 0.0).sum() / self.counted.sum()

    @property
    def ceiling_nats(self) -> float | Tensor:
        """The most InfoNCE can report with this many negatives: the mean of log(K + 1)."""
        if isinstance(self.negatives, Tensor):
            return self.mean(self.negatives.to(self.negative_logsumexp.dtype).log1p())
        return math.log(self.negatives + 1)

    @property
    def mi_nats(self) -> Tensor:
        """InfoNCE's lower bound on the mutual information: ceiling - mean loss.

        NaN where labels, ids, a margin or hard negatives chose the negatives: they are not of the marginal then, and
        this is no bound.
        """
        if self.chosen:
            return torch.full_like(self.negative_logsumexp[0], torch.nan)
        return self.ceiling_nats - self.mean(self.info_nce)

    def detach(self) -> ContrastStats:
        """The same numbers without their graph."""
        each = None if self.each_positive is None else self.each_positive.detach(self.negative_logsumexp)
        return self._replace(
            known_positive=self.positive.detach(),
            negative_logsumexp=self.negative_logsumexp.detach(),
            known_gap=self.gap.detach(),
            measure_ess=partial(measured, self.ess.detach()),
            each_positive=each,
        )


def measured(ess: Tensor) -> Tensor:
    """An ESS that is known already, for those who ask for it."""
    return ess


def _log(count: int | Tensor, like: Tensor) -> float | Tensor:
    """log of a count in the precision of the sums, which the logarithm of a whole number does not have by itself."""
    return count.to(like.dtype).log() if isinstance(count, Tensor) else math.log(count)


def stats_from_scores(scores_NM: Tensor) -> ContrastStats:
    """Stats of a score matrix from any critic.

    Args:
        scores_NM: row i belongs to anchor i; the diagonal holds the positives, the rest of each row its negatives.

    Returns:
        Stats of the N anchors, with M - 1 negatives each. This is plain autograd on a stored matrix.

    >>> stats_from_scores(torch.tensor([[3.0, 0.0], [0.0, 3.0]])).gap
    tensor([-3., -3.])
    """
    require_matrix("scores", scores_NM, "[N, M]")
    rows, columns = scores_NM.shape
    if columns < max(rows, 2):
        raise ValueError(
            f"scores must have at least as many columns as rows and at least 2, got {[rows, columns]}; "
            "column i must be the positive of row i."
        )
    scores = scores_NM.to(accumulation_type(scores_NM))
    negatives_NM = scores.clone().fill_diagonal_(-torch.inf)
    positive, logsumexp = scores.diagonal(), negatives_NM.logsumexp(1)
    measure_ess = partial(dense_ess, negatives_NM, columns - 1)
    return ContrastStats(positive, logsumexp, logsumexp - positive, columns - 1, measure_ess)
