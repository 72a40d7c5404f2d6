"""Named elementwise functions of a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Phi:
    """A function of a score with its derivative; the name is what a fused kernel looks up.

    >>> square = Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    >>> square.derivative(torch.tensor(3.0))
    tensor(6.)
    """

    name: str
    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
