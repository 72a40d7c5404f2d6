"""The streamed reductions, one module per backend."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from typing import Any

import torch


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def fused_kernels_run(device: torch.device) -> bool:
    """Whether Triton can compile and launch on a CUDA device: it needs a C compiler, and to know the device."""
    if not has_triton():
        return False
    try:
        with_triton("fused_triton").try_launch(device)
    except Exception as error:  # whatever its compiler raises, PyTorch's operations do the work
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"Triton does not run on {device} ({reason}); PyTorch's operations are used.", stacklevel=2)
        return False
    return True


def with_triton(module: str) -> Any:
    """A module of this package that needs Triton, which is optional: loaded when it is first asked for."""
    try:
        return importlib.import_module(f"flatclr.kernels.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ValueError(
            "backend='triton' must find the package triton, got none installed; install it, or use backend='torch'."
        ) from None
