"""Which precision sums are made in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_NOTHING = nullcontext()


def accumulation_type(z: Tensor) -> torch.dtype:
    """float64 stays, everything else accumulates in float32."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def no_autocast(z: Tensor) -> AbstractContextManager[Any]:
    # a cast to half precision inside would undo the float32 accumulation
    if torch.is_autocast_enabled(z.device.type):
        return torch.autocast(z.device.type, enabled=False)
    return _NOTHING
