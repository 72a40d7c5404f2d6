"""What the tests on a CUDA device share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from flatclr import Objective
from tests.support.harness import Batch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what determinism asks for, before CUDA starts
needs_cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@contextmanager
def deterministic() -> Iterator[None]:
    """What the same numbers twice ask for."""
    torch.use_deterministic_algorithms(True)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
    torch.use_deterministic_algorithms(False)


def on_device(batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    z_a, z_b, queue = batch.tensors(dtype)
    on_cuda = [z.detach().cuda().requires_grad_() for z in (z_a, z_b)]
    return on_cuda[0], on_cuda[1], None if queue is None else queue.cuda()


def gradients(objective: Objective, z_a: Tensor, z_b: Tensor, queue: Tensor | None) -> tuple[Tensor, ...]:
    loss = objective(z_a, z_b, negatives=queue)
    return loss.detach(), *torch.autograd.grad(loss, (z_a, z_b))


def relative_error(got: Tensor, want: Tensor) -> float:
    """In relation to the norm, or to 100 where it is 0 (nothing moves on the sphere of one dimension)."""
    norm = want.double().norm().cpu()
    error = (got.double().cpu() - want.double().cpu()).norm()
    return float(error / torch.where(norm > 1e-9, norm, 100))


def leave_nans_in_free_memory() -> None:
    """What a kernel reads without having written it will then show."""
    junk = [torch.full((size,), torch.nan, device="cuda") for size in (10**3, 10**5, 10**7) for _ in range(8)]
    del junk


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs
