"""What launches would compile to on a GPU that is not there: `python -m tests.support.compiled_for CAPABILITY BYTES`.

Prints a JSON line for every kernel: its name, and the shared memory that it takes.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

import flatclr
from flatclr.contrast.kernels import fused_triton, strips_triton

ROWS = 300
FUSED = ((torch.bfloat16, 256), (torch.bfloat16, 512), (torch.float32, 256))  # what takes most, whole or in chunks


class Absent:
    """The driver of a GPU as far as the compiler asks it."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def compile_only(capability: int, bytes_shared: int) -> None:
    """From here on launches compile, say what they need, and do nothing."""
    driver.set_active(Absent(capability))
    run, said = JITFunction.run, set[str]()

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if kernel.hash not in said:
            said.add(kernel.hash)
            print(json.dumps({"kernel": self.fn.__name__, "shared": kernel.metadata.shared}), flush=True)

    JITFunction.run = compiled
    fused_triton.shared_memory = lambda _: bytes_shared  # type: ignore[assignment]
    for module in (fused_triton, strips_triton):
        module.require_usable = lambda _: None


def views(d: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(ROWS, d).to(dtype).requires_grad_() for _ in range(2)]


def launch_every_kernel() -> None:
    routes = [("fused", d, dtype) for dtype, d in FUSED] + [("strips", 128, torch.bfloat16)]
    # one number goes by a plan, a tensor does not; anchors of one view are not met from both sides
    for (route, d, dtype), (pairing, learned) in product(routes, (("two_view", False), ("one_way", True))):
        beta = torch.tensor(5.0, requires_grad=True) if learned else 5.0
        stats = flatclr.contrast_stats(
            *views(d, dtype), inverse_temperature=beta, pairing=pairing, backend="triton", route=route
        )
        (stats.positive.sum() + stats.negative_logsumexp.sum()).backward()
    flatclr.SupCon(backend="triton")(*views(128, torch.bfloat16), labels=torch.arange(ROWS) // 30).backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    compile_only(int(sys.argv[1]), int(sys.argv[2]))
    launch_every_kernel()
