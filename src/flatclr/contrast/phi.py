"""Named elementwise functions of a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward


@dataclass(frozen=True)
class Phi:
    """A named function of a score, with its derivative.

    A fused kernel cannot call Python: it calls `device`, a function of Triton's that takes a score and the numbers the
    function closes over, and returns value and derivative.

    Args:
        name: for messages.
        value: elementwise on a tensor of scores; a constant may be a float.
        derivative: likewise. It is trusted.
        parameters: the numbers `device` needs, at most two; tensors may live on the device.
        device: `(score, first, second) -> (value, derivative)` under `triton.jit`, or where to import it from when it
            is needed, "module:function". None: the function is for backend="torch" alone.

    >>> square = Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    >>> square.derivative(torch.tensor(3.0))
    tensor(6.)
    """

    name: str
    value: Callable[[Tensor], Tensor | float]
    derivative: Callable[[Tensor], Tensor | float]
    parameters: tuple[float | Tensor, ...] | None = None
    device: Callable[..., Any] | str | None = None

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

    def applied(self, scores: Tensor) -> Tensor:
        """phi of every score, with the gradient that `derivative` says; what the functions close over gets none.

        Args:
            scores: of any shape.

        Returns:
            As many values.
        """
        values: Tensor = _Applied.apply(scores, self)
        return values


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, phi: Phi) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.phi = phi
        return phi.values(scores)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        refuse_double_backward()
        (scores,) = ctx.saved_tensors
        return upstream * ctx.phi.slopes(scores), None


def _in_full(result: Tensor | float, scores: Tensor) -> Tensor:
    """One entry per score in memory of its own: a constant or an expanded result is written out."""
    if not isinstance(result, Tensor):
        return scores.new_full(scores.shape, result)
    return result.expand(scores.shape).contiguous()
