"""The reductions of Triton's routes as registered operators, which a graph of torch.compile can hold.

    flatclr::contrast            (views, queue, scale, ...) -> what the anchors get, [Q, A]
    flatclr::contrast_backward   the same, what forward returned and the gradient that reached it -> gradients

A compiler sees their shapes and nothing of what is inside. What is not a tensor travels as one line of text, the
`Asked` of a call, so that one signature serves every pairing, route and phi. Backward makes the views ready again, in
one launch, rather than keeping copies that a compiler would have to know of.

Eager calls go to the autograd function of `streamed` directly: an operator's dispatch, forward and backward, takes the
host about 0.17 ms more, as long as a small loss altogether.

Shape suffixes: V views, n samples of this rank, A anchors, M queue, Q quantities (positive, value and, of a
log-sum-exp, gap and ess if asked; with a learned scale, the moment behind them), d features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward
from flatclr.contrast.asked import Asked, read
from flatclr.contrast.batch import Batch
from flatclr.contrast.kernels import kernels_of
from flatclr.contrast.numerics import no_autocast
from flatclr.contrast.phi import Phi, Written
from flatclr.contrast.streamed import Kept, Pass, Prepared, Pull, gradients_of


def reduce_traced(
    batch: Batch, scale: float | Tensor, route: str, phi: Phi | None, *, with_ess: bool
) -> tuple[Tensor, ...]:
    """`streamed.reduce_streamed` on a route of Triton's, as an operator."""
    options = batch.options
    written = Written.of(phi)
    asked = Asked.of(
        route,
        options.pairing,
        2,
        written.device,
        written.kinds,
        in_batch=options.in_batch_negatives,
        normalize=options.normalize,
        gather=options.gather,
        shared_loss=options.shared_loss,
        moment=isinstance(scale, Tensor) and scale.requires_grad,
        squares=with_ess,
    )
    z_a, z_b = batch.views
    packed_QA: Tensor = torch.ops.flatclr.contrast(
        z_a,
        z_b,
        batch.queue,
        batch.given_queue,
        scale if isinstance(scale, Tensor) else None,
        1.0 if isinstance(scale, Tensor) else scale,
        written.tensors,
        written.first,
        written.second,
        asked.text,
    )
    if phi is not None:
        return packed_QA[0], packed_QA[1]
    return packed_QA[0], packed_QA[1], packed_QA[2], *([packed_QA[3].detach()] if with_ess else [])


def _pass_of(
    asked: Asked, z_a: Tensor, queue: Tensor | None, phi_tensors: list[Tensor], numbers: tuple[float, float]
) -> Pass:
    phi = Written(asked.phi, asked.phi_kinds, phi_tensors, *numbers).read()
    layout = asked.layout(len(z_a), 0 if queue is None else len(queue))
    normalize, shared_loss, with_ess = (asked.has(switch) for switch in ("normalize", "shared_loss", "squares"))
    return Pass(layout, asked.route, phi, normalize, shared_loss, with_ess, z_a.dtype)


def quantities_of(asked: Asked) -> int:
    """Q."""
    return (2 if asked.phi else 3 + asked.has("squares")) + asked.has("moment")


@torch.library.custom_op("flatclr::contrast", mutates_args=())
def contrast(
    z_a: Tensor,
    z_b: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
) -> Tensor:
    """What the anchors get, [Q, A]; `scale` is a tensor or, where that is None, the number."""
    found, factor = read(asked), number if scale is None else scale
    kernels_of(found.route).require_usable(z_a)
    work = _pass_of(found, z_a, queue, phi_tensors, (first, second))
    with no_autocast(z_a), torch.cuda.device_of(z_a):
        prepared = Prepared.of(z_a, z_b, queue, given_queue, factor, work, with_moment=found.has("moment"))
        return torch.stack(prepared.reduced(factor, work))


@torch.library.custom_op("flatclr::contrast_backward", mutates_args=())
def contrast_backward(
    z_a: Tensor,
    z_b: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
    values_QA: Tensor,
    upstream_QA: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the views [V, n, d], of the queue and of the scale; of what is not needed, an empty tensor."""
    found, factor = read(asked), number if scale is None else scale
    work = _pass_of(found, z_a, queue, phi_tensors, (first, second))
    g_positive, g_value = upstream_QA[0], upstream_QA[1]
    if work.phi is None:
        g_positive, g_value = g_positive - upstream_QA[2], g_value + upstream_QA[2]
    with no_autocast(z_a), torch.cuda.device_of(z_a):
        prepared = Prepared.of(z_a, z_b, queue, given_queue, factor, work, with_moment=False)
        ready = prepared.ready
        moment = values_QA[-1] if found.has("moment") else None
        kept = Kept(ready.rows, ready.inverse_norms, prepared.operands, values_QA[0], values_QA[1], moment)
        *d_views, d_queue, d_scale = gradients_of(kept, factor, work, g_value, Pull(g_positive), tuple(needs))
    nothing = values_QA.new_empty(0)
    return (
        torch.stack([d_view for d_view in d_views if d_view is not None]),
        nothing if d_queue is None else d_queue,
        torch.empty_like(nothing) if d_scale is None else d_scale,
    )


@contrast.register_fake
def _(
    z_a: Tensor,
    z_b: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
) -> Tensor:
    found = read(asked)
    return z_a.new_empty(quantities_of(found), found.anchors(z_a.shape[0]), dtype=torch.float32)


@contrast_backward.register_fake
def _(
    z_a: Tensor,
    z_b: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
    values_QA: Tensor,
    upstream_QA: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    d_queue = queue.new_empty(queue.shape) if queue is not None and needs[2] else values_QA.new_empty(0)
    d_scale = values_QA.new_empty(()) if needs[3] else values_QA.new_empty(0)
    return z_a.new_empty(2, *z_a.shape), d_queue, d_scale


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    z_a, z_b, queue, given_queue, scale, number, phi_tensors, first, second, asked = inputs
    ctx.save_for_backward(z_a, z_b, queue, given_queue, scale, output, *phi_tensors)
    ctx.number, ctx.first, ctx.second, ctx.asked = number, first, second, asked


def _backward(ctx: Any, upstream_QA: Tensor) -> tuple[Any, ...]:
    refuse_double_backward()
    z_a, z_b, queue, given_queue, scale, values_QA, *phi_tensors = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:3], ctx.needs_input_grad[4]]
    d_views, d_queue, d_scale = torch.ops.flatclr.contrast_backward(
        z_a,
        z_b,
        queue,
        given_queue,
        scale,
        ctx.number,
        phi_tensors,
        ctx.first,
        ctx.second,
        ctx.asked,
        values_QA,
        upstream_QA,
        needs,
    )
    d_a, d_b = (d if needed else None for d, needed in zip(d_views.unbind(), needs, strict=False))
    given = d_a, d_b, d_queue if needs[2] else None, None, d_scale if needs[3] else None
    return *given, None, [None] * len(phi_tensors), None, None, None


contrast.register_autograd(_backward, setup_context=_keep)
