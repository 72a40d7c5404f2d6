"""Numbers that an objective keeps of every sample of the data, by index: in the state dict, and alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from flatclr import distributed
from flatclr.checks import require_count
from flatclr.contrast import PairSet

HALF = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class SampleState(nn.Module):
    """Columns of numbers with a row for every sample.

    Args:
        samples: how many the data has; None: rows are added as their indices come, which waits for the device.
        columns: what each holds of a sample never seen, by name.

    >>> state = SampleState(None, average=0.0)
    >>> state.admit(torch.tensor([3, 1]))
    >>> state.write(torch.tensor([3, 1]), average=torch.tensor([0.5, 0.25]))
    >>> state.average
    tensor([0.0000, 0.2500, 0.0000, 0.5000])
    """

    def __init__(self, samples: int | None, **columns: float) -> None:
        super().__init__()
        if samples is not None:
            require_count("samples", samples, advice="pass how many the data has, or leave it out.")
        self.samples, self.columns = samples, columns
        for name, value in columns.items():
            self.register_buffer(name, torch.full((samples or 0,), value))

    def make_room(self, samples: int) -> None:
        """Have rows for so many samples, and add none after that."""
        if self.samples is None:
            self._grow(samples)
            self.samples = samples

    def admit(self, index_N: Tensor) -> None:
        """Add rows for these samples, or refuse those that the data cannot have; on a GPU the device does that."""
        if self.samples is None:
            self._grow(int(index_N.max()) + 1)
        if not index_N.is_cuda and not torch.compiler.is_compiling():
            rows, (low, high) = self.rows, (int(x) for x in index_N.aminmax())
            if low < 0 or high >= rows:
                raise ValueError(
                    f"index must be within 0 and {rows - 1}, got {low} to {high}; number the samples from 0, and pass "
                    "samples= as large as the data."
                )

    @property
    def rows(self) -> int:
        """How many samples there is room for."""
        return len(self.column(next(iter(self.columns))))

    def column(self, name: str) -> Tensor:
        """The numbers of all samples."""
        found: Tensor = getattr(self, name)
        return found

    def read(self, name: str, index_N: Tensor) -> Tensor:
        """The numbers of these samples."""
        return self.column(name)[index_N]

    @torch.no_grad()
    def write(self, index_N: Tensor, **values_N: Tensor) -> None:
        """Other numbers for these samples, by column."""
        for name, values in values_N.items():
            column = self.column(name)
            column[index_N] = values.to(column.dtype)

    def _grow(self, rows: int) -> None:
        for name, value in self.columns.items():
            column = self.column(name)
            if len(column) < rows:
                setattr(self, name, torch.cat([column, column.new_full((rows - len(column),), value)]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: getattr(self, name) for name in self.columns}
        super()._apply(fn, recurse)
        for name, column in before.items():
            moved = self.column(name)
            if moved.dtype in HALF:  # which cannot hold small steps of an average
                setattr(self, name, column.float().to(moved.device))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        if self.samples is None:
            keys = [key for key in (prefix + name for name in self.columns) if key in state_dict]
            self._grow(max((len(state_dict[key]) for key in keys), default=0))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def index_of_all_ranks(name: str, index: Tensor | None, pairs: PairSet) -> Tensor:
    """Which samples of the data the global batch holds [N]; what is wrong with one rank's is said on every rank."""
    layout, device = pairs.layout, pairs.views[0].device
    problem = None
    if index is None:
        problem = f"{name} must be told which samples these are, got no index=; pass their numbers [N] in the data."
    elif not isinstance(index, Tensor) or index.shape != (layout.own_samples,) or index.dtype not in INTEGERS:
        got = f"{index.dtype} of shape {list(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
        problem = f"index must be {layout.own_samples} whole numbers, one per sample, got {got}; pass a tensor of them."
    elif index.layout != torch.strided or index.is_meta:
        problem = "index must be a dense tensor with values, got one without; call .to_dense() on it."
    if problem is not None and layout.ranks.size == 1:
        raise ValueError(problem)
    own = torch.zeros(layout.own_samples, dtype=torch.int64, device=device)
    if index is not None and problem is None:
        own = index.to(device, torch.int64)
    own = distributed.unless_refused(own, problem, layout.ranks)
    return distributed.gather_views(own.unsqueeze(0), layout.ranks).squeeze(0)
