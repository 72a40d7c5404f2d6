"""Named elementwise functions of a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

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


class Written(NamedTuple):
    """A phi, or none, as an operator in a graph of torch.compile takes it: text, tensors and numbers."""

    device: str  # where its device code is, "module:function"; "" for none
    kinds: str  # of its parameters: t a tensor, f a number
    tensors: list[Tensor]
    first: float
    second: float

    @classmethod
    def of(cls, phi: Phi | None) -> Written:
        """Of one that `can_be_written`."""
        if phi is None:
            return cls("", "", [], 0.0, 0.0)
        assert isinstance(phi.device, str)
        parameters = phi.parameters or ()
        kinds = "".join("t" if isinstance(p, Tensor) else "f" for p in parameters)
        first, second, *_ = (*(0.0 if isinstance(p, Tensor) else float(p) for p in parameters), 0.0, 0.0)
        return cls(phi.device, kinds, [p for p in parameters if isinstance(p, Tensor)], first, second)

    def read(self) -> Phi | None:
        """The function again, for kernels that call its device code."""
        if not self.device:
            return None
        tensors, given = iter(self.tensors), zip(self.kinds, (self.first, self.second), strict=False)
        parameters = tuple(next(tensors) if kind == "t" else number for kind, number in given)
        return Phi(self.device, _on_the_device, _on_the_device, parameters, self.device)


def can_be_written(phi: Phi | None) -> bool:
    """Whether an operator can name it: its device code is given by where it is imported from."""
    return phi is None or isinstance(phi.device, str)


def _on_the_device(_: Tensor) -> NoReturn:
    raise AssertionError("its device code is called")


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
