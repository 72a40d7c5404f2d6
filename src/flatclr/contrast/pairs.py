"""The quantities of a batch's pairs that objectives are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, Unpack

import torch
from torch import Tensor

from flatclr.contrast import route
from flatclr.contrast.batch import Batch
from flatclr.contrast.drawn import candidate_scores
from flatclr.contrast.numerics import Cached, no_autocast
from flatclr.contrast.options import CallOptions, apart
from flatclr.contrast.phi import Phi
from flatclr.contrast.related import IDENTITY, extreme_selected
from flatclr.contrast.streamed import hardest_candidates


class PairSet(Batch):
    """A batch ready to be contrasted: the quantities that objectives are made of, one value per anchor of all ranks.

    An `Objective` gets one in `loss`. To make one yourself, call `PairSet.of`.

    >>> pairs = PairSet.of(torch.eye(4), torch.eye(4))
    >>> pairs.positive(2.0)[0], pairs.negatives
    (tensor(2.), 6)
    """

    @classmethod
    def of(cls, *views: Tensor, **options: Unpack[CallOptions]) -> Self:
        """From embeddings.

        Args:
            views: two or more of [N, d], or one [V, N, d].
            options: those of `flatclr.contrast_stats`.

        Returns:
            The batch, checked and gathered.

        >>> PairSet.of(torch.eye(4), torch.eye(4), pairing="cross").negatives
        3
        """
        asked, given = apart("PairSet.of", options)
        return cls.made(views, asked, **given)

    def logsumexp(self, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Callable[[], Tensor]]:
        """The numbers that `stats_of` is made of.

        Args:
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

        Returns:
            (positive score, log-sum-exp of the negatives, their gap), each [A], and a function that measures their ESS.
        """
        found = route.stats_of(self, inverse_temperature)
        return found.positive, found.negative_logsumexp, found.gap, found.measure_ess

    def mean_phi(self, phi: Phi, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor]:
        """Mean of phi over the negatives of every anchor.

        Args:
            phi: of the score.
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

        Returns:
            (mean positive score, mean of phi), each [A]; the mean is NaN where an anchor has no negatives (`counted`).
        """
        positive, mean, counted = route.mean_phi(self, phi, inverse_temperature)
        self._know(counted)
        return positive, mean

    def positive(self, inverse_temperature: float | Tensor) -> Tensor:
        """Mean score of every anchor's positives.

        Args:
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

        Returns:
            [A].
        """
        return route.positive_scores(self, self.scale(inverse_temperature))

    def mean_positive(self, phi: Phi, inverse_temperature: float | Tensor) -> Tensor:
        """Mean of phi over the positives of every anchor.

        Args:
            phi: of the score.
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

        Returns:
            [A].
        """
        if self.plain:
            return phi.applied(self.positive(inverse_temperature))
        return route.positives_of(self, inverse_temperature).mean_phi(phi)

    def mean(self, per_anchor: Tensor) -> Tensor:
        """Mean over the anchors that have negatives.

        Args:
            per_anchor: [A]; what was made of the other anchors is left out, a NaN of these is not.

        Returns:
            A scalar; NaN on a GPU where no anchor has any, which the CPU refuses.
        """
        counted = self.counted
        if counted is None:
            return per_anchor.mean()
        return per_anchor.masked_fill(~counted, 0.0).sum() / counted.sum()

    @Cached
    def counted(self) -> Tensor | None:
        """Which anchors have negatives [A]; None: all. A pass over the pairs, unless one has been made already."""
        if not self.counts_differ:
            return None
        with torch.no_grad():
            return route.mean_phi(self, IDENTITY, 1.0)[2]

    def _know(self, counted: Tensor | None) -> None:
        self.__dict__["counted"] = counted

    def mean_negative(self, inverse_temperature: float | Tensor) -> Tensor:
        """Mean negative score of every anchor, from sums of embeddings in O(N d) work where all rows count.

        Args:
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

        Returns:
            [A].
        """
        scale = self.scale(inverse_temperature)
        if self.chosen:
            return self.mean_phi(IDENTITY, inverse_temperature)[1]
        if self.drawn_Ak is not None:
            return candidate_scores(self, scale, self.drawn_Ak).mean(1)
        stack_VNd = self.everyone_VNd
        means = []
        for group in self.layout.groups:
            anchors_Nd = stack_VNd[group.view]
            opposite_Nd = torch.zeros_like(anchors_Nd)
            if self.layout.from_batch:
                for view in group.candidates:
                    opposite_Nd = opposite_Nd + (stack_VNd[view].sum(0) - stack_VNd[view])
            if self.queue is not None:
                opposite_Nd = opposite_Nd + self.queue.sum(0)
            means.append((anchors_Nd * opposite_Nd).sum(1) / self.negatives)
        return scale * torch.cat(means)

    def extreme_negative(self, inverse_temperature: float | Tensor, *, hardest: bool) -> Tensor:
        """Score of the hardest or easiest negative of every anchor; the gradient goes to that pair alone.

        Args:
            inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].
            hardest: the largest score; False: the smallest.

        Returns:
            [A].
        """
        scale = self.scale(inverse_temperature)
        if self.chosen:
            best, counted = extreme_selected(self, scale, route.route_of(self, plain=False), hardest=hardest)
            self._know(counted)
            return best
        if self.drawn_Ak is not None:
            scores_Ak = candidate_scores(self, scale, self.drawn_Ak)
            return scores_Ak.amax(1) if hardest else scores_Ak.amin(1)
        with no_autocast(self.views[0]):
            candidates_A, _ = hardest_candidates(self, easiest=not hardest)
        return candidate_scores(self, scale, candidates_A.unsqueeze(1)).squeeze(1)
