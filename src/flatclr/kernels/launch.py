"""Launches that skip Triton's look at every argument once a kernel for arguments of that kind is compiled.

Small losses are bound by launches: Triton's own take several times as long as those of PyTorch, mostly to find the
compiled kernel among those it has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime import JITFunction

_compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}  # (kernel, constants in its order) by kind of launch


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """kernel[grid](*args, **constants), on the device of the first argument.

    `constants` are the kernel's last parameters and Triton's own options.
    """
    if not isinstance(kernel, JITFunction):  # interpreted
        kernel[grid](*args, **constants)
        return
    device = args[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **constants)
        return
    kind = (kernel, device.index, *map(_kind, args), *constants.items())
    known = _compiled.get(kind)
    if known is None:
        own = tuple(constants[name] for name in kernel.arg_names[len(args) :])
        _compiled[kind] = kernel[grid](*args, **constants), own
        return
    compiled, own = known
    compiled[(*grid, 1, 1)[:3]](*args, *own)


def _kind(value: Any) -> Any:
    """What Triton compiles for: types, whether addresses and counts are multiples of 16, and ones."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value)
