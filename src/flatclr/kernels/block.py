"""What a reduction is asked to go through: scores of rows against columns, less the pairs that are not negatives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Diagonal:
    """The pairs (i, i + offset) for row_start <= i < row_stop: embeddings of one sample, hence not negatives."""

    row_start: int
    row_stop: int
    offset: int


@dataclass(frozen=True)
class Block:
    rows_Rd: Tensor
    columns_Cd: Tensor
    scale: float | Tensor  # inverse temperature
    excluded: tuple[Diagonal, ...] = ()
    symmetric: bool = False  # rows and columns are the same embeddings
    bounded: bool = False  # on the unit sphere: no score exceeds the scale


@dataclass(frozen=True)
class Ready:
    """A stack of two views, ready to be contrasted."""

    rows: Tensor  # [2n, d] in accumulation precision, on the sphere if asked
    inverse_norms: Tensor | None  # [2n, 1] of the stack as it came, if it was put on the sphere
    positive: Tensor  # score of every anchor's positive
    operand: Tensor  # the rows as the products take them


@dataclass(frozen=True)
class Side:
    """Finished values of the anchors on one side of a block, and the gradient that reached them."""

    value: Tensor
    gradient: Tensor

    def part(self, anchors: slice) -> Side:
        return Side(self.value[anchors], self.gradient[anchors])
