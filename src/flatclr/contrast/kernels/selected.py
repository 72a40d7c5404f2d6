"""Reductions over pairs that labels, ids or a margin select, where every anchor may count a different number.

They visit the same tiles as those of `reductions`. What an anchor sees of a score may be its own: its own inverse
temperature, and a limit above which a score does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from flatclr.contrast.kernels.reductions import LogSumExp, LogSumExpSums, MeanPhi, PhiSums, Side, Tile
from flatclr.contrast.phi import Phi


@dataclass(frozen=True)
class Lens:
    """How the anchors of one side see a score: times their own scale, and -inf beyond their limit."""

    scale: Tensor | None = None  # [anchors]
    limit: Tensor | None = None  # [anchors]; sign * score above it does not count
    sign: float | Tensor = 1.0

    def part(self, anchors: slice) -> Lens:
        scale, limit = (None if x is None else x[anchors] for x in (self.scale, self.limit))
        sign = self.sign[anchors] if isinstance(self.sign, Tensor) and self.sign.dim() else self.sign
        return Lens(scale, limit, sign)

    def seen(self, scores: Tensor, dim: int) -> Tensor:
        """The scores as anchors along `dim` see them; excluded ones are -inf and stay so."""
        if self.scale is not None:
            scores = (scores * self.scale.unsqueeze(dim)).masked_fill_(scores == -torch.inf, -torch.inf)
        if self.limit is not None:
            sign = self.sign.unsqueeze(dim) if isinstance(self.sign, Tensor) and self.sign.dim() else self.sign
            scores = scores.masked_fill(scores * sign > self.limit.unsqueeze(dim), -torch.inf)
        return scores

    def weigh(self, slopes: Tensor, dim: int) -> Tensor:
        """Slopes in a seen score -> slopes in the score of the tile; overwrites them."""
        return slopes if self.scale is None else slopes.mul_(self.scale.unsqueeze(dim))


@dataclass(frozen=True)
class SelectedSide(Side):
    """A side whose anchors look through a lens; the values of anchors that count nothing must be finite."""

    lens: Lens = Lens()

    @property
    def reach(self) -> Tensor:
        return self.gradient if self.lens.scale is None else self.gradient * self.lens.scale

    def part(self, anchors: slice) -> Self:
        return replace(super().part(anchors), lens=self.lens.part(anchors))


@dataclass(frozen=True)
class SelectedLogSumExpSums(LogSumExpSums):
    """A log-sum-exp that counts its terms, unless their number is known."""

    count: Tensor | None
    lens: Lens

    @classmethod
    def of(
        cls,
        anchors: int,
        like: Tensor,
        lens: Lens,
        *,
        with_moment: bool,
        with_squares: bool = True,
        with_count: bool = True,
    ) -> SelectedLogSumExpSums:
        sums = LogSumExpSums.start(anchors, like, with_moment=with_moment)
        count = torch.zeros(anchors, dtype=torch.long, device=like.device) if with_count else None
        return cls(sums.peak, sums.total, sums.squares if with_squares else None, sums.moment, count, lens)

    def part(self, anchors: slice) -> SelectedLogSumExpSums:
        plain = super().part(anchors)
        if plain is self:
            return self
        count, lens = None if self.count is None else self.count[anchors], self.lens.part(anchors)
        return SelectedLogSumExpSums(plain.peak, plain.total, plain.squares, plain.moment, count, lens)

    def _add(self, scores: Tensor, dim: int) -> None:
        seen = self.lens.seen(scores, dim)
        if self.count is not None:
            self.count.add_((seen != -torch.inf).sum(dim))
        super()._add(seen, dim)

    def results(self) -> list[Tensor]:
        """[log-sum-exp, that of twice the scores] and, with a moment, [sum_j w_j s_j]; -inf and 0 of nothing.

        Where squares were not asked for, there is nothing in the second.
        """
        moment = [] if self.moment is None else [self.moment / self.total.clamp_min(torch.finfo(self.total.dtype).tiny)]
        squares = self.peak.new_empty(0) if self.squares is None else 2 * self.peak + self.squares.log()
        return [self.peak + self.total.log(), squares, *moment]


class SelectedLogSumExp:
    """value_i = log sum_j exp(s_ij),  D_ij = exp(s_ij - value_i)"""

    def pair_weights(
        self, scores: Tensor, tile: Tile, rows: SelectedSide | None, columns: SelectedSide | None
    ) -> Tensor:
        tile.fill_excluded(scores, -torch.inf)
        weights = torch.zeros_like(scores)
        for side, dim in ((rows, 1), (columns, 0)):
            if side is not None:
                slopes = (side.lens.seen(scores, dim) - side.value.unsqueeze(dim)).exp_()
                weights += side.lens.weigh(slopes, dim).mul_(side.gradient.unsqueeze(dim))
        return weights


@dataclass(frozen=True)
class SelectedPhiSums:
    """sum_j phi(s - shift), the sum of its slopes, sum_j s phi'(s - shift) for the temperature, and the count."""

    phi: Phi
    shift: Tensor | None  # [anchors]
    total: Tensor
    slopes: Tensor | None
    moment: Tensor | None
    count: Tensor | None
    lens: Lens

    @classmethod
    def of(
        cls,
        anchors: int,
        like: Tensor,
        phi: Phi,
        shift: Tensor | None,
        lens: Lens,
        *,
        with_moment: bool,
        with_slopes: bool,
        with_count: bool,
    ) -> SelectedPhiSums:
        """`with_slopes`: whether their sum, which a gradient of the shift needs, is wanted."""
        slopes = like.new_zeros(anchors) if with_slopes else None
        count = torch.zeros(anchors, dtype=torch.long, device=like.device) if with_count else None
        moment = like.new_zeros(anchors) if with_moment else None
        return cls(phi, shift, like.new_zeros(anchors), slopes, moment, count, lens)

    def part(self, anchors: slice) -> SelectedPhiSums:
        shift, slopes, moment, count = (
            None if x is None else x[anchors] for x in (self.shift, self.slopes, self.moment, self.count)
        )
        return SelectedPhiSums(self.phi, shift, self.total[anchors], slopes, moment, count, self.lens.part(anchors))

    def add_tile(self, scores: Tensor, tile: Tile, others: SelectedPhiSums | None) -> None:
        tile.fill_excluded(scores, -torch.inf)
        self._add(scores, dim=1)
        if others is not None:
            others._add(scores, dim=0)

    def _add(self, scores: Tensor, dim: int) -> None:
        seen = self.lens.seen(scores, dim)
        unseen = seen == -torch.inf
        finite = seen.masked_fill(unseen, 0.0)
        shifted = finite if self.shift is None else finite - self.shift.unsqueeze(dim)
        slopes = self.phi.slopes(shifted).masked_fill(unseen, 0.0)
        self.total.add_(self.phi.values(shifted).masked_fill(unseen, 0.0).sum(dim))
        if self.slopes is not None:
            self.slopes.add_(slopes.sum(dim))
        if self.moment is not None:
            self.moment.add_((slopes * finite).sum(dim))
        if self.count is not None:
            self.count.add_(unseen.logical_not().sum(dim))

    def results(self) -> list[Tensor]:
        """[sum of phi, sum of its slopes or 0] and, with a moment, [sum_j s phi']."""
        slopes = torch.zeros_like(self.total) if self.slopes is None else self.slopes
        return [self.total, slopes, *([] if self.moment is None else [self.moment])]


@dataclass(frozen=True)
class SelectedPhi:
    """value_i = sum_j phi(s_ij - shift_i),  D_ij = phi'(s_ij - shift_i); a side's value is its shift."""

    phi: Phi

    def pair_weights(
        self, scores: Tensor, tile: Tile, rows: SelectedSide | None, columns: SelectedSide | None
    ) -> Tensor:
        tile.fill_excluded(scores, -torch.inf)
        weights = torch.zeros_like(scores)
        for side, dim in ((rows, 1), (columns, 0)):
            if side is not None:
                seen = side.lens.seen(scores, dim)
                unseen = seen == -torch.inf
                slopes = self.phi.slopes(seen.masked_fill(unseen, 0.0) - side.value.unsqueeze(dim))
                slopes = side.lens.weigh(slopes.masked_fill(unseen, 0.0), dim)
                weights += slopes.mul_(side.gradient.unsqueeze(dim))
        return weights


AnySums = LogSumExpSums | PhiSums | SelectedPhiSums
AnyReduction = LogSumExp | MeanPhi | SelectedLogSumExp | SelectedPhi
