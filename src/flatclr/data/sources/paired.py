"""Paired rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flatclr.data.arrays import checked_labels, content_hash, float_rows, rows_of


class PairedArrays:
    """Two arrays whose rows belong together, say embeddings of two modalities.

    Args:
        x: [N, ...], float; kept as float32.
        y: [N, ...], likewise.
        name: for messages and reports.
        tokens: whether both are numbers of words, as `token_ids` makes them.
        labels: class numbers [N], where they are known; only evaluations look at them.
        classes: their names; without them the numbers are the names.

    Raises:
        ValueError: one has more rows than the other, or NaN or Inf in it.
        TypeError: one is no float array.

    >>> pairs = PairedArrays(torch.zeros(3, 2), torch.ones(3))
    >>> [part.shape for part in pairs.batch(torch.tensor([0, 2]))]
    [torch.Size([2, 2]), torch.Size([2, 1])]
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        name: str = "pairs",
        tokens: bool = False,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.name, self.tokens = name, tokens
        self.x, self.y = (float_rows(value, f"{name}: {side}") for side, value in (("x", x), ("y", y)))
        if len(self.x) != len(self.y):
            raise ValueError(
                f"{name}: x and y must have as many rows, got {len(self.x)} and {len(self.y)}; "
                "row i of both must belong together."
            )
        self.labels, self.classes = checked_labels(labels, classes, images=len(self.x), name=name)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def in_memory(self) -> tuple[Tensor, Tensor]:
        """All rows of both, for a loader that holds them on the device."""
        return self.x, self.y

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of these numbers, of both."""
        return self.x[index], self.y[index]

    def subset(self, index: Tensor, name: str) -> PairedArrays:
        """The rows of these numbers as pairs of their own."""
        sides = (self.x[index], self.y[index])
        labels = rows_of(self.labels, index)
        return PairedArrays(*sides, name=name, tokens=self.tokens, labels=labels, classes=self.classes)

    def with_sides(self, x: Tensor, y: Tensor) -> PairedArrays:
        """The same pairs with their sides in another form."""
        return PairedArrays(x, y, name=self.name, tokens=self.tokens, labels=self.labels, classes=self.classes)

    def fingerprint(self) -> str:
        """A hash of both arrays."""
        return content_hash([self.x, self.y], ())
