"""The streamed reductions, one module per backend behind one typed seam, and views of images in one launch."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.kernels.reductions import AnySums, Block, LogSumExp, MeanPhi, Ready, Side
from flatclr.contrast.phi import Phi


class Kernels(Protocol):
    """What a backend offers; each is a module."""

    @property
    def WHOLE_STACKS(self) -> bool:
        """Whether a block may hold the rows of more than two views."""

    def require_usable(self, embeddings: Tensor) -> None:
        """Refuse what it cannot run on."""

    def knows(self, phi: Phi) -> bool:
        """Whether it can compute this function."""

    def require_known(self, phi: Phi) -> None:
        """Refuse a function it cannot compute."""

    def operand(self, embeddings_Rd: Tensor, dtype: torch.dtype) -> Tensor:
        """Embeddings as its products take them."""

    def ready(
        self,
        views: tuple[Tensor, ...],
        scale: float | Tensor,
        phi: Phi | None,
        *,
        normalize: bool,
        anchor_groups: int,
        with_moment: bool,
    ) -> Ready:
        """Views [n, d] on the sphere if asked, with the positive scores of two, and sums that hold nothing yet."""

    def reduce_block(self, block: Block, rows: AnySums, columns: AnySums | None = None) -> None:
        """Add every score of the block to the sums of the anchors in its rows and, where given, in its columns."""

    def finish(self, sums: AnySums, positive: Tensor, negatives: int) -> list[Tensor]:
        """[value] and, of a log-sum-exp, [its gap to the positive, ess]; with a moment, [scale * d value / d scale]"""

    def block_gradients(
        self,
        block: Block,
        reduction: LogSumExp | MeanPhi,
        rows: Side | None,
        columns: Side | None,
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
    assert route == "fused", f"no kernels are registered for the route {route!r}"
    fused: Kernels = with_triton("fused_triton")
    return fused


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
        return importlib.import_module(f"flatclr.contrast.kernels.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ValueError(
            "backend='triton' must find the package triton, got none installed; install it, or use backend='torch'."
        ) from None
