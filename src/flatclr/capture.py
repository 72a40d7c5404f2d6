"""CUDA graphs: work is tried until it leaves no trace and waits for nothing, then captured, then replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WARMUPS = 3


class Graph(Protocol):
    """What a capture gives."""

    def replay(self) -> None: ...


class WaitsForDeviceError(RuntimeError):
    """The work cannot be captured; it was not tried, and nothing has changed."""


class CaptureError(RuntimeError):
    """The capture broke, and what CUDA does after it is not to be relied on."""


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an exception of its own; the CPU allocator says it in words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def captured(
    work: Callable[[], T], device: torch.device, pool: Any = None, *, others_may_allocate: bool = False
) -> tuple[Graph, T]:
    """A graph of the work, and what it returned: tensors that each replay writes anew.

    Args:
        work: what is captured; it was tried before.
        device: that it works on, which need not be the current one.
        pool: of memory, where graphs share it.
        others_may_allocate: whether other threads, say of a loader, may do so meanwhile; else that breaks the capture.
    """
    graph = torch.cuda.CUDAGraph()
    mode = "thread_local" if others_may_allocate else "global"
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        capture = torch.cuda.graph(graph, pool=pool, stream=_stream_of(index), capture_error_mode=mode)
        with torch.cuda.device(device), torch.random.fork_rng([]), capture:
            return graph, work()
    except RuntimeError as error:
        cause = first_of(error)
        if not is_out_of_memory(cause):
            raise CaptureError(first_line(cause)) from error
    try:  # outside of the handler, and without a name: a cycle of errors and frames would keep the tensors of the work
        raise cause
    finally:
        del cause


@cache
def _stream_of(index: int) -> torch.cuda.Stream:
    """One for all captures on a device: memory of a pool is used again on the stream that it was freed on alone.

    PyTorch's own for captures is of the device that was captured on first.
    """
    return torch.cuda.Stream(torch.device("cuda", index))


def warm_up(work: Callable[[], object], what: str, state: Callable[[], Iterable[Tensor]], device: torch.device) -> None:
    """Do it a few times without a trace: libraries and allocators must be ready before a capture.

    The last time it must not wait for the device: a capture that breaks leaves CUDA in no state to go on with.

    Args:
        what: the work is, in messages.
        state: everything that it changes; what it makes is zeroed: moments, which an optimizer starts from nothing.
        device: that it works on.
    """
    kept = [(tensor, tensor.clone()) for tensor in state()]
    known = {tensor.data_ptr() for tensor, _ in kept}
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            on_a_side_stream(lambda: tried(work, what), device)
    finally:
        for tensor, before in kept:
            tensor.copy_(before)
        for tensor in state():
            if tensor.data_ptr() not in known:
                tensor.zero_()


def tried(work: Callable[[], object], what: str) -> None:
    """As often as a capture wants; the last time it must not wait for the device."""
    for _ in range(WARMUPS - 1):
        work()
    without_waiting(work, what)


def on_a_side_stream(work: Callable[[], object], device: torch.device) -> None:
    """Where work is tried that is to be captured; without CUDA there is but one place."""
    if device.type != "cuda":
        work()
        return
    side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):  # and on its device
            work()
    finally:
        current.wait_stream(side)


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
    """What went wrong first, unless somebody said it already: ending a broken capture raises an error of its own."""
    while error.__cause__ is None and isinstance(error.__context__, RuntimeError):
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
