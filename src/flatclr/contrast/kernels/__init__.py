"""The streamed reductions, one module per backend behind one typed seam."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from flatclr.accelerator import has_triton, triton_runs, with_triton
from flatclr.contrast.kernels import strips_torch, tiled_torch
from flatclr.contrast.kernels.reductions import Block, Embeddings, PlainSums, Ready, Reduction, Rows, SideT
from flatclr.contrast.kernels.selected import AnySums
from flatclr.contrast.phi import Phi, can_be_written


class WholePlan(Protocol):
    """Two views that meet in one block, forward and backward."""

    def reduced(self, z_a: Tensor, z_b: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """(unit rows, operand, per anchor: positive, log-sum-exp, gap, then what backward needs)"""

    def gradients(
        self,
        unit: Tensor,
        operand: Tensor,
        per_anchor: Tensor,
        g_value: Tensor,
        pull: Tensor,
        sign: float,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Of both views, from the gradients that reached the log-sum-exp and, times sign, the positives."""


LARGEST_PLANNED_SCALE = 32.0  # as `fused_device.LARGEST_FIXED_SCALE`
ALIGNED = 16  # bytes: what Triton looks at in a pointer
TRITON_MODULES = {"fused": "fused_triton", "strips": "strips_triton"}  # by route


class Kernels(Protocol):
    """What a backend offers; each is a module."""

    def try_launch(self, device: torch.device) -> None:
        """Raises whatever keeps it from running there."""

    def run(self, function: Callable[..., tuple[Tensor, ...]], z: Tensor, *arguments: object) -> tuple[Tensor, ...]:
        """function(*arguments), which launches on the device of z."""

    def require_usable(self, embeddings: Tensor) -> None:
        """Refuse what it cannot run on."""

    def knows(self, phi: Phi) -> bool:
        """Whether it can compute this function."""

    def require_known(self, phi: Phi) -> None:
        """Refuse a function it cannot compute."""

    def operand(self, embeddings: Embeddings, dtype: torch.dtype) -> Rows:
        """Embeddings as its products take them, for views of this type."""

    def laid_out(self, rows_Rd: Tensor) -> Tensor:
        """The values of operands that came from elsewhere, as its products read them."""

    def ready(
        self,
        views: tuple[Tensor, ...],
        scale: float | Tensor,
        phi: Phi | None,
        *,
        normalize: bool,
        anchor_groups: int,
        with_moment: bool,
        with_ess: bool,
    ) -> Ready:
        """Views [n, d] on the sphere if asked, with the positive scores of two, and sums that hold nothing yet."""

    def stacked(self, stack: Tensor, *, normalize: bool) -> tuple[Tensor, Tensor | None, Rows]:
        """(rows [R, d] summed in, on the sphere if asked; inverse norms [R, 1]; the rows as products take them)"""

    def reduce_block(self, block: Block, rows: AnySums, columns: AnySums | None = None) -> None:
        """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""

    def finish(self, sums: PlainSums, positive: Tensor, negatives: int) -> list[Tensor]:
        """[value] and, of a log-sum-exp, [its gap, ess if asked]; with a moment, [scale * d value / d scale]"""

    def block_gradients(
        self,
        block: Block,
        reduction: Reduction[SideT],
        rows: SideT | None,
        columns: SideT | None,
        *,
        need_rows: bool,
        need_columns: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the block's rows and columns, perhaps in strips [P, R, d] yet to be added."""

    def views_gradient(
        self,
        from_negatives: Tensor | None,
        pull: Tensor | None,
        unit: Tensor,
        inverse_norms: Tensor | None,
        scale: float | Tensor,
        *,
        views: int,
        sign: float,
        factor: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        """Gradients of the views [n, d] from what their rows get as negatives and from their positive scores."""


def kernels_of(route: str) -> Kernels:
    """The module that reduces tiles on this route."""
    if route == "streamed":
        return tiled_torch
    return strips_torch if route == "strips_torch" else _kernels_with_triton(route)


def knows(route: str, phi: Phi | None) -> bool:
    """Whether the kernels of a route can compute it; in a graph, an operator must name it to those of Triton."""
    if phi is None:
        return True
    named = torch.compiler.is_compiling() and route in TRITON_MODULES
    return can_be_written(phi) if named else kernels_of(route).knows(phi)


@cache
def _kernels_with_triton(route: str) -> Kernels:
    kernels: Kernels = with_triton(f"flatclr.contrast.kernels.{TRITON_MODULES[route]}")
    return kernels


def may_be_planned(scale: float, z_a: Tensor, z_b: Tensor) -> bool:
    """Whether a plan holds for these views: not at a temperature too small for `fixed`, nor if they lie otherwise."""
    return (
        abs(scale) <= LARGEST_PLANNED_SCALE
        and z_a.is_contiguous()
        and z_b.is_contiguous()
        and (z_a.data_ptr() | z_b.data_ptr()) % ALIGNED == 0
    )


def whole_plan(route: str, pairing: str, view: Tensor) -> WholePlan | None:
    """How two views that meet in one block are reduced on a route of Triton's; None where another way serves."""
    plan: WholePlan | None = _whole_module().plan_of(route, pairing, view)
    return plan


@cache
def _whole_module() -> Any:
    return with_triton("flatclr.contrast.kernels.whole_triton")


def fused_kernels_run(device: torch.device) -> bool:
    """Whether the fused kernels can be compiled and launched on a device."""
    return has_triton() and triton_runs(device, kernels_of("fused").try_launch)


if TYPE_CHECKING:  # what is loaded by name is held to the seam too
    from flatclr.contrast.kernels import fused_triton, strips_triton

    _FUSED: Kernels = fused_triton
    _STRIPS: Kernels = strips_triton
