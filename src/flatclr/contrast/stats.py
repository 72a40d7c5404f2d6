"""The one primitive: three numbers per anchor, streamed.

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
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import LARGEST_SCALE, require_dense, require_matrix, require_number
from flatclr.contrast import route
from flatclr.contrast.batch import Batch
from flatclr.contrast.numerics import accumulation_type, dense_ess
from flatclr.contrast.options import CallOptions, apart
from flatclr.contrast.phi import Phi
from flatclr.contrast.related import Positives


@dataclass(frozen=True)
class ContrastStats:
    """What a batch says about every anchor: three numbers each, and what follows from them.

    `flatclr.contrast_stats` and `objective.with_stats` make them. K counts the negatives of an anchor.

    Args:
        positive: [A], mean score of the anchor's positives.
        negative_logsumexp: [A], log of the sum of exp(score) over its negatives.
        gap: [A], negative_logsumexp - positive; below 0 the positive outweighs all negatives together.
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

    positive: Tensor  # [A], mean score of the positives
    negative_logsumexp: Tensor  # [A]
    gap: Tensor  # [A], negative_logsumexp - positive; below 0 the positive outweighs all negatives together
    negatives: int | Tensor  # K per anchor, queue included; a tensor [A] where anchors differ
    measure_ess: Callable[[], Tensor]  # for those who ask: a loss alone should not pay for it
    route: str = "dense"  # which way the scores were reduced
    each_positive: Positives | None = None  # None: every anchor has one
    counted: Tensor | None = None  # [A], which anchors have negatives; None: all. The numbers of the others are NaN.
    chosen: bool = False  # labels, ids, a margin or hard negatives chose the negatives

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
        return _log(self.negatives, self.positive)

    @property
    def log_positives(self) -> float | Tensor:
        """log of the number of positives per anchor."""
        return _log(self.positives, self.positive)

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
            return self.mean(self.negatives.to(self.positive.dtype).log1p())
        return math.log(self.negatives + 1)

    @property
    def mi_nats(self) -> Tensor:
        """InfoNCE's lower bound on the mutual information: ceiling - mean loss.

        NaN where labels, ids, a margin or hard negatives chose the negatives: they are not of the marginal then, and
        this is no bound.
        """
        if self.chosen:
            return torch.full_like(self.positive[0], torch.nan)
        return self.ceiling_nats - self.mean(self.info_nce)

    def detach(self) -> ContrastStats:
        """The same numbers without their graph."""
        each = None if self.each_positive is None else self.each_positive.detach(self.negative_logsumexp)
        return replace(
            self,
            positive=self.positive.detach(),
            negative_logsumexp=self.negative_logsumexp.detach(),
            gap=self.gap.detach(),
            measure_ess=partial(route.measured, self.ess.detach()),
            each_positive=each,
        )


def _log(count: int | Tensor, like: Tensor) -> float | Tensor:
    """log of a count in the precision of the sums, which the logarithm of a whole number does not have by itself."""
    return count.to(like.dtype).log() if isinstance(count, Tensor) else math.log(count)


def contrast_stats(
    *views: Tensor, inverse_temperature: float | Tensor, **options: Unpack[CallOptions]
) -> ContrastStats:
    """Positive score, log-sum-exp of the negatives and effective sample size of every anchor, in O(N d) memory.

    Args:
        views: two or more embeddings [N, d], or one tensor [V, N, d]; row i of each is a view of sample i. float16 and
            bfloat16 accumulate in float32.
        inverse_temperature: scores are this times the dot product; a 0-dim tensor, or one value per anchor [A], may
            require gradient.
        pairing: "views" (also "two_view"), "cross", "one_way" or "within" (see `flatclr.contrast.relation`).
        labels: whole numbers [N]; rows of one label are positives of each other, not negatives.
        ids: whole numbers [N]; rows of other samples with the same id are never used: known duplicates, several
            captions of one picture.
        hard_negatives: [N, H, d], row n for the anchors of sample n alone, besides the others; gradients reach them,
            they are never gathered.
        false_negative_margin: negatives whose cosine is above the mean positive cosine by more than this are left out.
        negatives: extra negatives [M, d] for every anchor (a queue); never gathered, the same on every rank.
        negative_labels: of the queue [M]; needed with labels. Its rows of the anchor's label are left out, they do not
            become positives.
        negative_ids: of the queue [M]; needed with ids. Its rows of the anchor's id are left out.
        in_batch_negatives: False contrasts with `negatives` only.
        negatives_per_anchor: draw this many distinct negatives per anchor; with `gather` the first rank draws for all.
        generator: source of that draw.
        normalize: put embeddings on the unit sphere first, so that scores are cosines times `inverse_temperature`.
        gather: contrast with every rank's batch; the stats are global, in one-process order.
        backend: "torch" (any device), "triton" (kernels on a CUDA device; products in the embeddings' own type, sums in
            float32; not float64) or "auto": "triton" for half-precision batches on one GPU that are large or have a
            queue, else "torch".
        route: "dense" (one kept tile), "streamed" (tile by tile), "fused" (Triton), "strips" (strips of scores and the
            library's matrix products, for wide embeddings and every relation) or "auto", by size, type and device.
        check_embeddings: look for NaN, Inf and zero rows first (waits for the device).
        shared_loss: promise that every rank computes the same loss from the global stats, say a mean over all
            anchors; backward then needs no collective. Without it the ranks' upstream gradients are averaged first.
        with_ess: the ESS will be read, so measure it in the same pass; else Triton's routes take another when it is.

    Returns:
        Stats of all anchors. `positive` and `negative_logsumexp` carry gradients to embeddings, queue, hard negatives
        and `inverse_temperature`; `ess` carries none.

    >>> stats = contrast_stats(torch.eye(4), torch.eye(4), inverse_temperature=2.0)
    >>> stats.positive[0], stats.negatives, stats.route
    (tensor(2.), 6, 'dense')
    """
    require_inverse_temperature(inverse_temperature)
    asked, given = apart("contrast_stats", options)
    return stats_of(Batch.made(views, asked, **given), inverse_temperature)


def pairwise_mean(
    *views: Tensor, phi: Phi, inverse_temperature: float | Tensor = 1.0, **options: Unpack[CallOptions]
) -> Tensor:
    """Mean of a function of the score over the negatives of every anchor, in O(N d) memory.

        mean_j phi(s_ij),  s_ij = inverse_temperature <z_i, z_j>

    Args:
        views: two or more embeddings [N, d], or one tensor [V, N, d].
        phi: the function, with its derivative. What it closes over gets no gradient.
        inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].
        options: those of `contrast_stats`.

    Returns:
        [A].

    >>> square = Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    >>> pairwise_mean(torch.eye(2), torch.eye(2), phi=square)
    tensor([0., 0., 0., 0.])
    """
    require_inverse_temperature(inverse_temperature)
    if not isinstance(phi, Phi):
        raise TypeError(
            f"phi must be a flatclr.Phi(name, value, derivative), got {type(phi).__name__}; wrap the function in one."
        )
    asked, given = apart("pairwise_mean", options)
    _, mean, _ = route.mean_phi(Batch.made(views, asked, **given), phi, inverse_temperature)
    return mean


def stats_of(pairs: Batch, inverse_temperature: float | Tensor) -> ContrastStats:
    """The stats of a batch that is ready to be contrasted: what `Objective.loss` calls.

    Args:
        pairs: a `PairSet`.
        inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

    Returns:
        Stats of all anchors.

    >>> stats_of(flatclr.PairSet.of(torch.eye(4), torch.eye(4)), 2.0).negatives
    6
    """
    found = route.logsumexp(pairs, inverse_temperature)
    return ContrastStats(
        found.positive,
        found.logsumexp,
        found.gap,
        found.negatives,
        found.measure_ess,
        found.route.removesuffix("_torch"),
        found.positives,
        found.counted,
        not pairs.plain and pairs.chosen,
    )


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


def require_inverse_temperature(value: float | Tensor) -> None:
    """A tensor on another device is trusted: to look at its value would wait for it."""
    if isinstance(value, Tensor):
        require_dense("inverse_temperature", value)
        if value.numel() == 0 or (value.dim() > 1 and value.numel() > 1):
            raise ValueError(
                f"inverse_temperature must be a number, a 0-dim tensor or one value per anchor, got "
                f"{list(value.shape)}; pass one of these."
            )
        if value.device.type != "cpu" or torch.compiler.is_compiling():
            return
        low, value = value.min().item(), value.max().item()
        require_number("inverse_temperature", low, above=0, advice="pass 1 / temperature.")
    require_number("inverse_temperature", value, above=0, advice="pass 1 / temperature.")
    if value >= LARGEST_SCALE:
        raise ValueError(
            f"inverse_temperature must be < {LARGEST_SCALE:g}, got {value:g}; float32 cannot hold its scores."
        )
