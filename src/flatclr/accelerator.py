"""Triton, which is optional: whether it is installed, whether it runs on a device, and modules that need it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def has_triton() -> bool:
    """Whether the package triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def triton_runs(device: torch.device, try_launch: Callable[[torch.device], None]) -> bool:
    """Whether Triton can compile and launch on a device: it needs a C compiler, and to know the device.

    Args:
        device: where the kernels would run.
        try_launch: launches one of them there, or raises whatever keeps it from running. It is called once per device.

    Returns:
        False without Triton, and, with a warning that says why, where `try_launch` fails.
    """
    if not has_triton():
        return False
    try:
        try_launch(device)
    except Exception as error:  # whatever its compiler raises, PyTorch's operations do the work
        reason = str(error).strip().partition("\n")[0]
        # as of this line, so that Python shows it once however many kinds of kernels are tried
        warnings.warn(f"Triton does not run on {device} ({reason}); PyTorch's operations are used.", stacklevel=1)
        return False
    return True


def with_triton(module: str) -> Any:
    """A module that needs Triton, by its full name: loaded when it is first asked for."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ValueError(
            "backend='triton' must find the package triton, got none installed; install it, or use backend='torch'."
        ) from None


def takes_turns(device: str) -> bool:
    """Whether processes on this device work one after another: on a GPU without NVIDIA's multi-process service.

    Args:
        device: "cpu", "cuda", "cuda:1", or "auto".
    """
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # where NVIDIA has it
    return on_gpu and not (pipes / "control").exists()
