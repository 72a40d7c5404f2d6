"""The global batch on every rank.

Contract used throughout (W ranks): every rank sees the same global values, and the gradient that reaches a rank's own
rows is W times the partial derivative of the global loss, so that DDP's averaging gives the one-process gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flatclr.checks import FLOAT_TYPES, refuse_double_backward, require_views


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a batch; `Ranks()` is a process on its own."""

    rank: int = 0
    size: int = 1

    def own_rows(self, rows_per_rank: int) -> slice:
        return slice(self.rank * rows_per_rank, (self.rank + 1) * rows_per_rank)


ALONE = Ranks()


def ranks_sharing_a_batch(gather: bool) -> Ranks:
    """The default process group when `gather` is asked for and a group exists, else a process on its own."""
    if gather and dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return ALONE


def group_of(ranks: Ranks) -> object:
    """What several ranks are a group by; another one once the processes were joined anew."""
    assert ranks.size > 1
    return dist.group.WORLD


def agree_on_batches(
    views: tuple[Tensor, ...], negatives: Tensor | None, ranks: Ranks, *, brings: tuple[int, ...] = ()
) -> tuple[Tensor, ...]:
    """The views; those that do not fit together and ranks that differ are refused on all ranks, before one could hang.

    In a graph of torch.compile the ranks are asked as often and in the same order: one of them may run eagerly.
    """
    if ranks.size == 1:
        require_views(views, negatives)
        return views
    z_a = views[0]
    if isinstance(z_a, Tensor) and _is_captured(z_a):
        return views  # a captured step has static shapes, checked when it ran eagerly
    if torch.compiler.is_compiling():
        # a rank that refuses its views here goes on eagerly, and tells the others; with fullgraph=True it cannot
        require_views(views, negatives)
        return torch.ops.flatclr.agreed_view(z_a, _described(views, negatives, brings)), *views[1:]
    problem, mine = None, [0] * (5 + len(brings))
    try:
        require_views(views, negatives)
        mine = _described(views, negatives, brings)
    except (TypeError, ValueError) as error:
        problem = error
    _agree(problem, mine, z_a.device if isinstance(z_a, Tensor) else None, ranks)
    return views


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _described(views: tuple[Tensor, ...], negatives: Tensor | None, brings: tuple[int, ...]) -> list[int]:
    """What ranks must agree on."""
    queued = 0 if negatives is None else negatives.shape[0]
    return [*views[0].shape, queued, FLOAT_TYPES.index(views[0].dtype), len(views), *brings]


def _agree(problem: Exception | None, mine: list[int], device: torch.device | None, ranks: Ranks) -> None:
    every = _all_gather(torch.tensor([problem is not None, *mine], device=device), ranks).tolist()
    if problem is not None:
        raise problem
    if any(row != every[0] for row in every):
        described = ", ".join(
            f"rank {rank}: "
            + ("bad input" if bad else f"batch {n}, d {d}, queue {m}, {FLOAT_TYPES[dtype]}, {views} views")
            for rank, (bad, n, d, m, dtype, views, *_) in enumerate(every)
        )
        raise ValueError(
            f"gather=True needs the same batch, embedding and queue size and dtype on every rank, got {described}; "
            "drop the last incomplete batch (drop_last=True), and pass labels, ids and as many hard negatives on every "
            "rank or on none."
        )


# what waits for the device cannot be captured; the tag is not in every PyTorch
WAITS = tuple(tag for name, tag in torch.Tag.__members__.items() if name == "cudagraph_unsafe")


@torch.library.custom_op("flatclr::agreed_view", mutates_args=(), tags=WAITS)
def agreed_view(view: Tensor, mine: list[int]) -> Tensor:
    """A copy of a view once the ranks agree, which they do when it runs: a graph cannot ask; see `usable_rows`."""
    ranks = ranks_sharing_a_batch(True)
    if ranks.size > 1 and not _is_captured(view):
        _agree(None, mine, view.device, ranks)
    return view.clone()


@agreed_view.register_fake
def _(view: Tensor, mine: list[int]) -> Tensor:
    return torch.empty_like(view)


agreed_view.register_autograd(lambda ctx, upstream: (upstream, None))


def fail_together(problem: str | None, device: torch.device, ranks: Ranks) -> None:
    """Raise on every rank if one has a problem: a rank that raised alone would leave the others waiting for it."""
    failed = [problem is not None]
    if ranks.size > 1:
        failed = _all_gather(torch.tensor(failed, device=device, dtype=torch.uint8), ranks).flatten().tolist()
    if any(failed):
        where = [rank for rank, bad in enumerate(failed) if bad]
        raise ValueError(
            problem or f"input must be usable on every rank, got a problem on ranks {where}; see the error there."
        )


def unless_refused(x: Tensor, problem: str | None, ranks: Ranks) -> Tensor:
    """x, or the problem that one rank has raised on all of them: in a graph of torch.compile when it runs."""
    if torch.compiler.is_compiling() and ranks.size > 1:
        told: Tensor = torch.ops.flatclr.unless_refused(x, problem or "")
        return told
    if not _is_captured(x):  # looked at when the step ran eagerly
        fail_together(problem, x.device, ranks)
    return x


@torch.library.custom_op("flatclr::unless_refused", mutates_args=(), tags=WAITS)
def _unless_refused(x: Tensor, problem: str) -> Tensor:
    if not _is_captured(x):
        fail_together(problem or None, x.device, ranks_sharing_a_batch(True))
    return x.clone()


@_unless_refused.register_fake
def _(x: Tensor, problem: str) -> Tensor:
    return torch.empty_like(x)


_unless_refused.register_autograd(lambda ctx, upstream: (upstream, None))


def any_rank(yes: bool, device: torch.device, ranks: Ranks) -> bool:
    """Whether it holds on any rank; all of them must ask."""
    if ranks.size == 1:
        return yes
    return bool(_all_gather(torch.tensor([yes], device=device, dtype=torch.uint8), ranks).any())


def wait_for_every_rank(device: torch.device, ranks: Ranks) -> None:
    """Return once all ranks are here; one that is lost ends the others as in any collective."""
    any_rank(False, device, ranks)


def gather_views(x_Vn: Tensor, ranks: Ranks) -> Tensor:
    """[V, n, ...] on each rank -> [V, W * n, ...] on all, in one-process order. No gradient passes."""
    if ranks.size == 1:
        return x_Vn
    x_WVn = _all_gather(x_Vn, ranks)
    return x_WVn.movedim(0, 1).flatten(1, 2).contiguous()


def gather_views_with_gradient(x_Vn: Tensor, ranks: Ranks, *, shared_loss: bool) -> Tensor:
    """`gather_views` whose backward gives each rank W times its own rows of the upstream gradient.

    With `shared_loss` every rank is known to compute the same loss from the gathered rows, so no collective is needed.
    """
    if ranks.size == 1:
        return x_Vn
    gathered: Tensor = _GatherViews.apply(x_Vn, ranks, shared_loss)
    return gathered


def average_over_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    if ranks.size == 1:
        return x
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total / ranks.size


def from_first_rank(x: Tensor, ranks: Ranks) -> Tensor:
    """The first rank's tensor on every rank."""
    if ranks.size == 1:
        return x
    if torch.compiler.is_compiling():
        told: Tensor = torch.ops.flatclr.from_first_rank(x)
        return told
    dist.broadcast(x, src=0)
    return x


@torch.library.custom_op("flatclr::from_first_rank", mutates_args=())
def _from_first_rank(x: Tensor) -> Tensor:
    return from_first_rank(x.clone(), ranks_sharing_a_batch(True))


@_from_first_rank.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def text_of_first_rank(text: str, ranks: Ranks) -> str:
    """The first rank's text on every rank."""
    told = [text]
    if ranks.size > 1:
        dist.broadcast_object_list(told, src=0)
    return told[0]


def _all_gather(x: Tensor, ranks: Ranks) -> Tensor:
    renamed = hasattr(dist, "all_gather_single")  # in PyTorch 2.13
    gather = dist.all_gather_single if renamed else dist.all_gather_into_tensor
    stacked = x.new_empty(ranks.size * x.numel())
    gather(stacked, x.flatten())
    return stacked.view(ranks.size, *x.shape)


class _GatherViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_Vn: Tensor, ranks: Ranks, shared_loss: bool) -> Tensor:
        ctx.ranks, ctx.shared_loss, ctx.rows = ranks, shared_loss, x_Vn.shape[1]
        return gather_views(x_Vn, ranks)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        refuse_double_backward()
        if not ctx.shared_loss:
            upstream = average_over_ranks(upstream, ctx.ranks)
        return ctx.ranks.size * upstream[:, ctx.ranks.own_rows(ctx.rows)], None, None
