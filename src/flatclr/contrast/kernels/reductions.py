"""What the reductions of every backend share: blocks of scores, running sums per anchor, and slopes of values.

A *block* is the matrix of scores of some rows against some columns. Its rows, its columns or both may be anchors: a
tile feeds every side that is, so symmetric and two-directional problems compute each score once. Three reductions
exist:

    LogSumExp   log sum_j exp(s_ij), the effective sample size from the same pass
    MeanPhi     mean_j phi(s_ij)
    Hardest     max_j s_ij and where it is (no gradient)

Shape suffixes: R rows, C columns, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from flatclr.contrast.known import Codes
from flatclr.contrast.numerics import as_they_came, effective_share, to_sphere
from flatclr.contrast.phi import Phi
from flatclr.contrast.relation import Diagonal


@dataclass(frozen=True)
class Embeddings:
    """As they came and as they are contrasted."""

    given: Tensor  # [R, d]
    ready: Tensor  # in accumulation precision, on the sphere if asked
    normalized: bool

    @classmethod
    def of(cls, given: Tensor | None, ready: Tensor | None, *, normalized: bool) -> Embeddings | None:
        """Of a queue, if there is one."""
        return None if given is None or ready is None else cls(given, ready, normalized)

    def exact(self, dtype: torch.dtype) -> Rows:
        """In a type of few bits, on the sphere as they came: times a power of two, with factors between 1 and 2."""
        if not self.normalized:
            return Rows(self.given.to(dtype))
        rows = self.given.to(self.ready.dtype)
        values, factors = as_they_came(rows, to_sphere(rows)[1], dtype)
        return Rows(values, factors.squeeze(1))


@dataclass(frozen=True)
class Rows:
    """Embeddings as a backend multiplies them; a row times its factor is what it stands for."""

    values: Tensor  # [R, d]
    factors: Tensor | None = None  # [R], at least 1; None: all are 1

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: slice) -> Rows:
        if _all_of(rows, self.values):
            return self
        return Rows(self.values[rows], None if self.factors is None else self.factors[rows])


@dataclass(frozen=True)
class Block:
    rows: Rows
    columns: Rows
    scale: float | Tensor  # inverse temperature
    excluded: tuple[Diagonal, ...] = ()
    symmetric: bool = False  # rows and columns are the same embeddings
    bounded: bool = False  # on the unit sphere: no score exceeds the scale
    codes: Codes | None = None  # labels and ids of rows and columns, which exclude more pairs

    @property
    def rows_Rd(self) -> Tensor:
        return self.rows.values

    @property
    def columns_Cd(self) -> Tensor:
        return self.columns.values


@dataclass(frozen=True)
class Side:
    """Finished values of the anchors on one side of a block, and the gradient that reached them."""

    value: Tensor
    gradient: Tensor

    @property
    def reach(self) -> Tensor:
        """The largest weight that a pair of an anchor can have, but for the slope of a phi."""
        return self.gradient

    def part(self, anchors: slice) -> Self:
        if _all_of(anchors, self.value):
            return self
        return replace(self, value=self.value[anchors], gradient=self.gradient[anchors])


def _all_of(part: slice, tensor: Tensor) -> bool:
    """Whether nothing is cut off; views of a whole would cost a small batch more time than anything done with them."""
    return bool(part.start == 0 and part.stop == tensor.shape[0])


def unit_of(gradients: list[Tensor], bits: int) -> Tensor:
    """Upstream gradients count in this unit, so that float16 pair weights neither overflow nor vanish."""
    largest = torch.stack([g.abs().amax() for g in gradients]).amax()
    return (largest * 2.0**-bits).clamp_min(torch.finfo(torch.float32).tiny)


SideT = TypeVar("SideT", bound=Side)
SideIn = TypeVar("SideIn", bound=Side, contravariant=True)


@dataclass(frozen=True)
class Tile:
    rows: slice
    columns: slice
    excluded: tuple[Diagonal, ...]
    on_axis: bool  # of a symmetric block
    codes: Codes | None = None

    def fill_excluded(self, values: Tensor, fill: float) -> Tensor:
        """Overwrite the excluded pairs of this tile in place."""
        for diagonal in self.excluded:
            first = max(diagonal.row_start, self.rows.start, self.columns.start - diagonal.offset)
            stop = min(diagonal.row_stop, self.rows.stop, self.columns.stop - diagonal.offset)
            if first < stop:
                i, j = first - self.rows.start, first + diagonal.offset - self.columns.start
                values[i : i + stop - first, j : j + stop - first].diagonal().fill_(fill)
        excluded = None if self.codes is None else self.codes.excluded(self.rows, self.columns)
        return values if excluded is None else values.masked_fill_(excluded, fill)


class Sums(Protocol):
    """What a reduction knows so far, one entry per anchor; `part` is a view, so adding to it adds to the whole."""

    def part(self, anchors: slice) -> Self: ...
    def add_tile(self, scores: Tensor, tile: Tile, others: Self | None) -> None: ...


SumsT = TypeVar("SumsT", bound=Sums)


class Reduction(Protocol[SideIn]):
    """A value per anchor with known slopes D_ij = d value_i / d s_ij."""

    def pair_weights(self, scores: Tensor, tile: Tile, rows: SideIn | None, columns: SideIn | None) -> Tensor: ...


@dataclass(frozen=True)
class LogSumExpSums:
    """sum_j exp(s - peak), sum_j exp(2 (s - peak)) and, for the temperature's gradient, sum_j s exp(s - peak)."""

    peak: Tensor
    total: Tensor
    squares: Tensor | None  # None: nobody asks for the effective sample size
    moment: Tensor | None

    @classmethod
    def start(cls, anchors: int, like: Tensor, *, with_moment: bool) -> LogSumExpSums:
        lowest = torch.finfo(like.dtype).min  # not -inf: differences of peaks must stay numbers
        moment = like.new_zeros(anchors) if with_moment else None
        return cls(like.new_full((anchors,), lowest), like.new_zeros(anchors), like.new_zeros(anchors), moment)

    def part(self, anchors: slice) -> LogSumExpSums:
        if _all_of(anchors, self.total):
            return self
        moment = None if self.moment is None else self.moment[anchors]
        squares = None if self.squares is None else self.squares[anchors]
        return LogSumExpSums(self.peak[anchors], self.total[anchors], squares, moment)

    def add_tile(self, scores: Tensor, tile: Tile, others: LogSumExpSums | None) -> None:
        tile.fill_excluded(scores, -torch.inf)
        self._add(scores, dim=1)
        if others is not None:
            others._add(scores, dim=0)

    def _add(self, scores: Tensor, dim: int) -> None:
        peak = torch.maximum(self.peak, scores.amax(dim))
        decay = (self.peak - peak).exp_()
        shares = (scores - peak.unsqueeze(dim)).exp_()
        self.peak.copy_(peak)
        self.total.mul_(decay).add_(shares.sum(dim))
        if self.moment is not None:
            finite = scores.clamp_min(torch.finfo(scores.dtype).min)  # an excluded pair would be -inf * 0
            self.moment.mul_(decay).add_((finite * shares).sum(dim))
        if self.squares is not None:
            self.squares.mul_(decay.square_()).add_(shares.square_().sum(dim))

    def finish(self, negatives: int) -> list[Tensor]:
        """[log-sum-exp, effective sample size in [1 / negatives, 1]] and, with a moment, [scale * d value / d scale]"""
        ess = [] if self.squares is None else [effective_share(self.total, self.squares.sqrt(), negatives)]
        moment = [] if self.moment is None else [self.moment / self.total]
        return [self.peak + self.total.log(), *ess, *moment]


class LogSumExp:
    """value_i = log sum_j exp(s_ij),  D_ij = exp(s_ij - value_i)"""

    def pair_weights(self, scores: Tensor, tile: Tile, rows: Side | None, columns: Side | None) -> Tensor:
        tile.fill_excluded(scores, -torch.inf)
        weights = None
        for side, dim in ((rows, 1), (columns, 0)):
            if side is not None:
                term = (scores - side.value.unsqueeze(dim)).exp_().mul_(side.gradient.unsqueeze(dim))
                weights = term if weights is None else weights.add_(term)
        assert weights is not None, "a block has anchors on at least one side"
        return weights


@dataclass(frozen=True)
class PhiSums:
    """sum_j phi(s) and, for the temperature's gradient, sum_j s phi'(s)."""

    phi: Phi
    total: Tensor
    moment: Tensor | None

    @classmethod
    def start(cls, phi: Phi, anchors: int, like: Tensor, *, with_moment: bool) -> PhiSums:
        return cls(phi, like.new_zeros(anchors), like.new_zeros(anchors) if with_moment else None)

    def part(self, anchors: slice) -> PhiSums:
        if _all_of(anchors, self.total):
            return self
        return PhiSums(self.phi, self.total[anchors], None if self.moment is None else self.moment[anchors])

    def add_tile(self, scores: Tensor, tile: Tile, others: PhiSums | None) -> None:
        values = tile.fill_excluded(self.phi.values(scores), 0)
        slopes = None if self.moment is None else tile.fill_excluded(self.phi.slopes(scores) * scores, 0)
        for sums, dim in ((self, 1), (others, 0)):
            if sums is not None:
                sums.total.add_(values.sum(dim))
                if slopes is not None and sums.moment is not None:
                    sums.moment.add_(slopes.sum(dim))

    def finish(self, negatives: int) -> list[Tensor]:
        """[mean of phi] and, with a moment, [scale * d value / d scale]"""
        return [sums / negatives for sums in (self.total, self.moment) if sums is not None]


PlainSums = LogSumExpSums | PhiSums


def start_sums(phi: Phi | None, anchors: int, like: Tensor, *, with_moment: bool) -> PlainSums:
    if phi is None:
        return LogSumExpSums.start(anchors, like, with_moment=with_moment)
    return PhiSums.start(phi, anchors, like, with_moment=with_moment)


@dataclass(frozen=True)
class Ready:
    """Two views, ready to be contrasted."""

    rows: Tensor  # [2n, d], view a then view b, in accumulation precision, on the sphere if asked
    inverse_norms: Tensor | None  # [2n, 1] of the rows as they came, if they were put on the sphere
    positive: Tensor  # score of every anchor's positive
    operand: Rows  # the rows as the products take them
    sums: PlainSums  # of every anchor, with nothing in them yet


@dataclass(frozen=True)
class MeanPhi:
    """value_i = mean_j phi(s_ij),  D_ij = phi'(s_ij) / negatives"""

    phi: Phi
    negatives: int

    def pair_weights(self, scores: Tensor, tile: Tile, rows: Side | None, columns: Side | None) -> Tensor:
        slopes = tile.fill_excluded(self.phi.slopes(scores), 0)
        upstream = scores.new_zeros(())
        for side, dim in ((rows, 1), (columns, 0)):
            if side is not None:
                upstream = upstream + side.gradient.unsqueeze(dim)
        return slopes * (upstream / self.negatives)


@dataclass(frozen=True)
class Hardest:
    """The largest score of each anchor and the candidate that has it; candidates count on from the given starts."""

    score: Tensor
    candidate: Tensor
    first_row: int = 0
    first_column: int = 0
    limit: Tensor | None = None  # sign * score above it does not count
    sign: float = 1.0

    @classmethod
    def start(cls, anchors: int, like: Tensor) -> Hardest:
        return cls(like.new_full((anchors,), -torch.inf), torch.zeros(anchors, dtype=torch.long, device=like.device))

    def part(self, anchors: slice) -> Hardest:
        limit = None if self.limit is None else self.limit[anchors]
        return replace(self, score=self.score[anchors], candidate=self.candidate[anchors], limit=limit)

    def counting_from(self, *, row: int, column: int) -> Hardest:
        return replace(self, first_row=row, first_column=column)

    def add_tile(self, scores: Tensor, tile: Tile, others: Hardest | None) -> None:
        tile.fill_excluded(scores, -torch.inf)
        self._add(scores, dim=1, first=self.first_column + tile.columns.start)
        if others is not None:
            others._add(scores, dim=0, first=self.first_row + tile.rows.start)

    def _add(self, scores: Tensor, dim: int, first: int) -> None:
        if self.limit is not None:
            scores = scores.masked_fill(self.sign * scores > self.limit.unsqueeze(dim), -torch.inf)
        best, where = scores.max(dim)
        better = (best > self.score) | best.isnan()  # a NaN is to be seen
        self.score.copy_(torch.where(better, best, self.score))
        self.candidate.copy_(torch.where(better, where + first, self.candidate))
