"""What captures of CUDA graphs share: whether work waits for the device, and what broke a capture first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class WaitsForDeviceError(RuntimeError):
    """The work cannot be captured; it was not tried, and nothing has changed."""


class CaptureError(RuntimeError):
    """The capture broke, and what CUDA does after it is not to be relied on."""


def without_waiting(work: Callable[[], T], what: str) -> T:
    """Do it, or say that it waits for the device: a capture that breaks leaves CUDA in no state to go on with."""
    # the error is raised here, not in the context manager: from there its traceback would be part of a cycle and keep
    # the tensors of the failed work
    try:
        with _waiting_is_an_error():
            return work()
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise
        raise WaitsForDeviceError(f"{what} waits for the device, say to read a number from it") from error


def first_of(error: BaseException) -> BaseException:
    """What went wrong first: ending a broken capture raises an error of its own."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


def first_line(error: BaseException) -> str:
    """What it says, in one line."""
    return str(error).strip().partition("\n")[0].rstrip(".")


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode calls itself a prototype
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
