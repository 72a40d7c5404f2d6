"""The pass over selected pairs on Triton's routes as registered operators, which a graph of torch.compile can hold.

    flatclr::selected_pairs            (rows, queue, scale, labels, ...) -> what the anchors get, [Q, A] and [A]
    flatclr::selected_pairs_backward   the same, what forward returned and the gradient that reached it -> gradients

As `operators` has them for two views on a diagonal. What is not a tensor travels as one line of text, the `Asked` of a
call; backward makes the rows ready again rather than keeping copies that a compiler would have to know of.

Shape suffixes: V views, n samples of this rank, A anchors, Q quantities (value; log-sum-exp of twice the scores or sum
of slopes; with a learned scale, the moment), d features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward
from flatclr.contrast.asked import Asked, read
from flatclr.contrast.kernels import kernels_of
from flatclr.contrast.known import Known
from flatclr.contrast.numerics import no_autocast
from flatclr.contrast.options import Options
from flatclr.contrast.phi import Written
from flatclr.contrast.selected_pass import Kept, Needs, Work, gradients_of_pairs, operands_of, reduce_pairs


def reduce_selected_traced(
    work: Work,
    options: Options,
    own_Vnd: Tensor,
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: float | Tensor,
    shift: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(value, log-sum-exp of twice the scores or sum of slopes, count) of all anchors, with gradient to `own_Vnd`."""
    known, written = work.known or Known(), Written.of(work.phi)
    asked = Asked.of(
        work.route,
        work.layout.pairing,
        work.layout.views,
        written.device,
        written.kinds,
        in_batch=options.in_batch_negatives,
        normalize=work.normalize,
        gather=options.gather,
        shared_loss=work.shared_loss,
        positives=work.positives,
        squares=work.squares,
        in_order=known.in_order,
        moment=isinstance(scale, Tensor) and scale.requires_grad,
        slopes=shift is not None and shift.requires_grad,
    )
    packed_QA, count_A = torch.ops.flatclr.selected_pairs(
        own_Vnd,
        stack,
        queue,
        given_queue,
        scale if isinstance(scale, Tensor) else None,
        1.0 if isinstance(scale, Tensor) else scale,
        shift,
        known.labels,
        known.ids,
        known.queue_labels,
        known.queue_ids,
        work.highest_cosine,
        work.count,
        written.tensors,
        written.first,
        written.second,
        asked.text,
    )
    return packed_QA[0], packed_QA[1].detach(), count_A


def _work_of(
    asked: Asked,
    stack: Tensor,
    queue: Tensor | None,
    codes: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    highest_cosine: Tensor | None,
    count: Tensor | None,
    phi: tuple[list[Tensor], float, float],
) -> Work:
    known = Known(*codes, asked.has("in_order"))
    return Work(
        layout=asked.layout(len(stack) // asked.views, 0 if queue is None else len(queue)),
        route=asked.route,
        known=None if known.labels is None and known.ids is None else known,
        phi=Written(asked.phi, asked.phi_kinds, *phi).read(),
        positives=asked.has("positives"),
        normalize=asked.has("normalize"),
        shared_loss=asked.has("shared_loss"),
        highest_cosine=highest_cosine,
        squares=asked.has("squares"),
        count=count,
    )


@torch.library.custom_op("flatclr::selected_pairs", mutates_args=())
def selected_pairs(
    own_Vnd: Tensor,
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    shift: Tensor | None,
    labels: Tensor | None,
    ids: Tensor | None,
    queue_labels: Tensor | None,
    queue_ids: Tensor | None,
    highest_cosine: Tensor | None,
    count: Tensor | None,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
) -> tuple[Tensor, Tensor]:
    """What the anchors get, [Q, A], and how many pairs, [A]; `scale` is a tensor or, where that is None, the number.

    The gradient of the rows `stack`, which are as they came, goes to `own_Vnd`; its values are not read.

    `count` is the number of pairs where it is known before.
    """
    found, factor = read(asked), number if scale is None else scale
    kernels_of(found.route).require_usable(stack)
    codes, phi = (labels, ids, queue_labels, queue_ids), (phi_tensors, first, second)
    work = _work_of(found, stack, queue, codes, highest_cosine, count, phi)
    more = {"with_moment": found.has("moment"), "with_slopes": found.has("slopes")}
    with no_autocast(stack), torch.cuda.device_of(stack):
        value, other, kept = reduce_pairs(work, stack, queue, given_queue, factor, shift, **more)
        other = other if len(other) else torch.zeros_like(value)  # squares that were not asked for
        moment = [] if kept.moment is None else [kept.moment]
        return torch.stack([value, other, *moment]), kept.count.clone()


@torch.library.custom_op("flatclr::selected_pairs_backward", mutates_args=())
def selected_pairs_backward(
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    shift: Tensor | None,
    labels: Tensor | None,
    ids: Tensor | None,
    queue_labels: Tensor | None,
    queue_ids: Tensor | None,
    highest_cosine: Tensor | None,
    count: Tensor | None,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
    values_QA: Tensor,
    count_A: Tensor,
    upstream_A: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the rows, of the queue, the scale and the shift; of what is not needed, an empty tensor."""
    found, factor = read(asked), number if scale is None else scale
    codes, phi = (labels, ids, queue_labels, queue_ids), (phi_tensors, first, second)
    work = _work_of(found, stack, queue, codes, highest_cosine, count, phi)
    value = shift if found.phi else values_QA[0].masked_fill(count_A == 0, 0.0)
    moment = values_QA[2] if found.has("moment") else None
    with no_autocast(stack), torch.cuda.device_of(stack):
        unit, operands = operands_of(work, stack, queue, given_queue)
        kept = Kept(unit, operands, value, values_QA[1], count_A, moment)
        found_of = gradients_of_pairs(kept, factor, work, upstream_A, Needs(*needs))
    d_own, d_queue, d_scale, d_shift = (values_QA.new_empty(0) if x is None else x for x in found_of)
    return d_own.view(_own_shape(found, stack)) if needs[0] else d_own, d_queue, d_scale, d_shift


@selected_pairs.register_fake
def _(
    own_Vnd: Tensor,
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    shift: Tensor | None,
    labels: Tensor | None,
    ids: Tensor | None,
    queue_labels: Tensor | None,
    queue_ids: Tensor | None,
    highest_cosine: Tensor | None,
    count: Tensor | None,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
) -> tuple[Tensor, Tensor]:
    found = read(asked)
    anchors = found.anchors(own_Vnd.shape[1])
    values_QA = own_Vnd.new_empty(2 + found.has("moment"), anchors)
    return values_QA, own_Vnd.new_empty(anchors, dtype=torch.long)


@selected_pairs_backward.register_fake
def _(
    stack: Tensor,
    queue: Tensor | None,
    given_queue: Tensor | None,
    scale: Tensor | None,
    number: float,
    shift: Tensor | None,
    labels: Tensor | None,
    ids: Tensor | None,
    queue_labels: Tensor | None,
    queue_ids: Tensor | None,
    highest_cosine: Tensor | None,
    count: Tensor | None,
    phi_tensors: list[Tensor],
    first: float,
    second: float,
    asked: str,
    values_QA: Tensor,
    count_A: Tensor,
    upstream_A: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = (_own_shape(read(asked), stack), *(None if x is None else x.shape for x in (queue, scale, shift)))
    d_own, d_queue, d_scale, d_shift = (
        values_QA.new_empty(0 if shape is None or not needed else shape)
        for shape, needed in zip(shapes, needs, strict=True)
    )
    return d_own, d_queue, d_scale, d_shift


def _own_shape(asked: Asked, stack: Tensor) -> tuple[int, int, int]:
    """[V, n, d]"""
    return asked.views, stack.shape[0] // asked.views, stack.shape[1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, stack, queue, given_queue, scale, number, *others, phi_tensors, first, second, asked = inputs
    ctx.save_for_backward(stack, queue, given_queue, scale, *others, *output, *phi_tensors)
    ctx.number, ctx.others, ctx.first, ctx.second, ctx.asked = number, len(others), first, second, asked


def _backward(ctx: Any, upstream_QA: Tensor, _: Tensor) -> tuple[Any, ...]:
    refuse_double_backward()
    stack, queue, given_queue, scale, *rest = ctx.saved_tensors
    others, (values_QA, count_A, *phi_tensors) = rest[: ctx.others], rest[ctx.others :]
    rows, _, queued, _, learns, _, shifted, *_ = ctx.needs_input_grad
    needs = Needs(rows, queued, learns, shifted)
    found = torch.ops.flatclr.selected_pairs_backward(
        stack,
        queue,
        given_queue,
        scale,
        ctx.number,
        *others,
        phi_tensors,
        ctx.first,
        ctx.second,
        ctx.asked,
        values_QA,
        count_A,
        upstream_QA[0],
        list(needs),
    )
    d_own, d_queue, d_scale, d_shift = (x if needed else None for x, needed in zip(found, needs, strict=True))
    codes = [None] * (ctx.others - 1)  # of which none has a gradient; the first of the others is the shift
    return d_own, None, d_queue, None, d_scale, None, d_shift, *codes, [None] * len(phi_tensors), None, None, None


selected_pairs.register_autograd(_backward, setup_context=_keep)
