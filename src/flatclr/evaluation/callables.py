"""Functions as encoders."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn


class FunctionEncoder(nn.Module):
    """Any callable that takes images [N, C, S, S] and returns features [N, d]."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        # a tuple, not children: their weights are neither this encoder's to train nor to move
        self.held = tuple(part for part in _parts(function) if isinstance(part, nn.Module))

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


def _parts(function: Any) -> list[Any]:
    """What a callable refers to: closure, globals, `self`, its attributes, arguments of functools.partial."""
    if isinstance(function, partial):
        return [*_parts(function.func), *function.args, *function.keywords.values()]
    variables = (
        inspect.getclosurevars(function) if inspect.isroutine(function) and not inspect.isbuiltin(function) else None
    )
    named = [] if variables is None else [*variables.nonlocals.values(), *variables.globals.values()]
    return [*named, getattr(function, "__self__", None), *getattr(function, "__dict__", {}).values()]
