"""The pass over selected pairs on Triton's routes as registered operators, which a graph of torch.compile can hold.

    flatclr::selected_pairs            (rows, queue, scale, labels, ...) -> what the anchors get, [Q, A] and [A]
    flatclr::selected_pairs_backward   the same, what forward returned and the gradient that reached it -> gradients

As `operators` has them for two views on a diagonal. What is not a tensor travels as one line of text, the `Asked` of a
call; backward makes the rows ready again rather than keeping copies that a compiler would have to know of.

Shape suffixes: V views, n samples of this rank, A anchors, Q quantities (value; log-sum-exp of twice the scores or sum
of slopes; with a learned scale, the moment), d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import refuse_double_backward
from flatclr.contrast.kernels import kernels_of
from flatclr.contrast.known import Known
from flatclr.contrast.numerics import no_autocast
from flatclr.contrast.options import Options
from flatclr.contrast.phi import Written
from flatclr.contrast.relation import PAIRINGS, Layout, layout_of
from flatclr.contrast.selected_pass import Kept, Needs, Work, gradients_of_pairs, operands_of, reduce_pairs

SEPARATOR = "|"


@dataclass(frozen=True)
class Asked:
    """Everything about a call that is not a tensor or a number."""

    route: str
    pairing: str
    views: str
    switches: str  # letters, see `SWITCHES`
    phi: str
    phi_kinds: str

    @property
    def text(self) -> str:
        return SEPARATOR.join((self.route, self.pairing, self.views, self.switches, self.phi, self.phi_kinds))

    def has(self, switch: str) -> bool:
        return SWITCHES[switch] in self.switches

    @property
    def ranks(self) -> distributed.Ranks:
        return distributed.ranks_sharing_a_batch(self.has("gather"))

    def layout(self, own_samples: int, queued: int) -> Layout:
        plan, in_batch = PAIRINGS[self.pairing], self.has("in_batch")
        return layout_of(self.pairing, plan, self.ranks, int(self.views), own_samples, queued, in_batch)


SWITCHES = {
    "in_batch": "i",
    "normalize": "n",
    "gather": "g",
    "shared_loss": "s",
    "positives": "p",
    "squares": "q",
    "in_order": "o",
    "moment": "m",
    "slopes": "d",
}


@lru_cache(maxsize=256)
def _asked(text: str) -> Asked:
    return Asked(*text.split(SEPARATOR))


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
    on = {
        "in_batch": options.in_batch_negatives,
        "normalize": work.normalize,
        "gather": options.gather,
        "shared_loss": work.shared_loss,
        "positives": work.positives,
        "squares": work.squares,
        "in_order": known.in_order,
        "moment": isinstance(scale, Tensor) and scale.requires_grad,
        "slopes": shift is not None and shift.requires_grad,
    }
    switches = "".join(letter for name, letter in SWITCHES.items() if on[name])
    asked = Asked(work.route, work.layout.pairing, str(work.layout.views), switches, written.device, written.kinds)
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
    own_Vnd: Tensor,
    queue: Tensor | None,
    known: Known,
    highest_cosine: Tensor | None,
    count: Tensor | None,
    written: Written,
) -> Work:
    return Work(
        asked.layout(own_Vnd.shape[1], 0 if queue is None else len(queue)),
        asked.route,
        None if known.labels is None and known.ids is None else known,
        written.read(),
        asked.has("positives"),
        asked.has("normalize"),
        asked.has("shared_loss"),
        highest_cosine,
        asked.has("squares"),
        count,
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

    `count` is the number of pairs where it is known before.
    """
    found, factor = _asked(asked), number if scale is None else scale
    kernels_of(found.route).require_usable(stack)
    known = Known(labels, ids, queue_labels, queue_ids, found.has("in_order"))
    phi = Written(found.phi, found.phi_kinds, phi_tensors, first, second)
    work = _work_of(found, own_Vnd, queue, known, highest_cosine, count, phi)
    needs = Needs(rows=True, queue=True, scale=found.has("moment"), shift=found.has("slopes"))
    with no_autocast(stack), torch.cuda.device_of(stack):
        value, other, kept = reduce_pairs(work, stack, queue, given_queue, factor, shift, needs)
        other = other if len(other) else torch.zeros_like(value)  # squares that were not asked for
        moment = [] if kept.moment is None else [kept.moment]
        return torch.stack([value, other, *moment]), kept.count.clone()


@torch.library.custom_op("flatclr::selected_pairs_backward", mutates_args=())
def selected_pairs_backward(
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
    values_QA: Tensor,
    count_A: Tensor,
    upstream_A: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the rows, of the queue, the scale and the shift; of what is not needed, an empty tensor."""
    found, factor = _asked(asked), number if scale is None else scale
    known = Known(labels, ids, queue_labels, queue_ids, found.has("in_order"))
    phi = Written(found.phi, found.phi_kinds, phi_tensors, first, second)
    work = _work_of(found, own_Vnd, queue, known, highest_cosine, count, phi)
    value = shift if found.phi else values_QA[0].masked_fill(count_A == 0, 0.0)
    moment = values_QA[2] if found.has("moment") else None
    with no_autocast(stack), torch.cuda.device_of(stack):
        unit, operands = operands_of(work, stack, queue, given_queue)
        kept = Kept(unit, operands, value, values_QA[1], count_A, moment)
        found_of = gradients_of_pairs(kept, factor, work, upstream_A, Needs(*needs))
    d_own, d_queue, d_scale, d_shift = (values_QA.new_empty(0) if x is None else x for x in found_of)
    return d_own.view(own_Vnd.shape) if needs[0] else d_own, d_queue, d_scale, d_shift


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
    found = _asked(asked)
    anchors = len(PAIRINGS[found.pairing](int(found.views))) * own_Vnd.shape[1] * found.ranks.size
    values_QA = own_Vnd.new_empty(2 + found.has("moment"), anchors)
    return values_QA, own_Vnd.new_empty(anchors, dtype=torch.long)


@selected_pairs_backward.register_fake
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
    values_QA: Tensor,
    count_A: Tensor,
    upstream_A: Tensor,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found: list[Tensor] = []
    for like, needed in zip((own_Vnd, queue, scale, shift), needs, strict=True):
        found.append(own_Vnd.new_empty(0 if like is None or not needed else like.shape))
    return found[0], found[1], found[2], found[3]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    own_Vnd, stack, queue, given_queue, scale, number, *others, phi_tensors, first, second, asked = inputs
    ctx.save_for_backward(own_Vnd, stack, queue, given_queue, scale, *others, *output, *phi_tensors)
    ctx.number, ctx.others, ctx.first, ctx.second, ctx.asked = number, len(others), first, second, asked


def _backward(ctx: Any, upstream_QA: Tensor, _: Tensor) -> tuple[Any, ...]:
    refuse_double_backward()
    own_Vnd, stack, queue, given_queue, scale, *rest = ctx.saved_tensors
    others, (values_QA, count_A, *phi_tensors) = rest[: ctx.others], rest[ctx.others :]
    rows, _, queued, _, learns, _, shifted, *_ = ctx.needs_input_grad
    needs = Needs(rows, queued, learns, shifted)
    found = torch.ops.flatclr.selected_pairs_backward(
        own_Vnd,
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
