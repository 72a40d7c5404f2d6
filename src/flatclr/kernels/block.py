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
class Side:
    """Finished values of the anchors on one side of a block, and the gradient that reached them."""

    value: Tensor
    gradient: Tensor

    def part(self, anchors: slice) -> Side:
        return Side(self.value[anchors], self.gradient[anchors])
