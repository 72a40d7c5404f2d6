"""Named elementwise functions of a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Phi:
    """A named function of a score, with its derivative.

    Args:
        name: by which fused kernels look the function up; they cannot call Python.
        value: phi(s), elementwise; a constant may be a float or a 0-dim tensor.
        derivative: phi'(s), elementwise; it is trusted, not checked.
        parameters: the numbers the function closes over, at most two, for those kernels; None says that no kernel knows
            the function.

    >>> square = Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    >>> square.derivative(torch.tensor(3.0))
    tensor(6.)
    """

    name: str
    value: Callable[[Tensor], Tensor | float]
    derivative: Callable[[Tensor], Tensor | float]
    parameters: tuple[float | Tensor, ...] | None = None

    def values(self, scores: Tensor) -> Tensor:
        """phi of every score.

        Args:
            scores: of any shape.

        Returns:
            As many values, in memory of their own.
        """
        return _in_full(self.value(scores), scores)

    def slopes(self, scores: Tensor) -> Tensor:
        """phi' of every score.

        Args:
            scores: of any shape.

        Returns:
            As many derivatives, in memory of their own.
        """
        return _in_full(self.derivative(scores), scores)


def _in_full(result: Tensor | float, scores: Tensor) -> Tensor:
    """One entry per score in memory of its own: a constant or an expanded result is written out."""
    if not isinstance(result, Tensor):
        return scores.new_full(scores.shape, result)
    return result.expand(scores.shape).contiguous()
