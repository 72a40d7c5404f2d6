"""Uniform numbers from a generator, in a graph of torch.compile too.

A graph cannot hold a generator, so an operator finds it by its number.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor

GENERATORS: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()
"""Those of options, by their id."""


def luck(
    rows: int, columns: int, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Numbers in [0, 1), [rows, columns]."""
    if generator is None or not torch.compiler.is_compiling():
        return torch.rand(rows, columns, generator=generator, device=device, dtype=dtype)
    drawn: Tensor = torch.ops.flatclr.luck(rows, columns, id(generator), device, dtype)
    return drawn


@torch.library.custom_op("flatclr::luck", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _luck(rows: int, columns: int, generator: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.rand(rows, columns, generator=GENERATORS[generator], device=device, dtype=dtype)


@_luck.register_fake
def _(rows: int, columns: int, generator: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, columns, device=device, dtype=dtype)
