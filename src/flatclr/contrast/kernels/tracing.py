"""What torch.compile may take for a constant while it traces; imported then, because it loads the compiler."""

from __future__ import annotations

import torch

from flatclr.contrast.kernels import fused_kernels_run


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def fused_kernels_run_there(device: torch.device) -> bool:
    """Whether the fused kernels can be compiled and launched on a device."""
    return fused_kernels_run(device)
