"""The streamed reductions, one module per backend, and views of images in one launch."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


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
