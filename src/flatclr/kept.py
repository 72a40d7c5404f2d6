"""The quantities of a contrast no larger than one tile, on one rank: backward reuses the tile.

At such sizes time goes into launching operations, so there are few of them. Shape suffixes: V views, N samples, d
features; the tile is [anchors, candidates], with a leading view where each view has candidates of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatclr.autograd import refuse_double_backward
from flatclr.kernels.phi import Phi
from flatclr.pairing import Layout
from flatclr.sphere import gradient_before_sphere, to_sphere


def reduce_kept(stack: Tensor, scale: float | Tensor, layout: Layout, phi: Phi | None) -> tuple[Tensor, ...]:
    """(positive, log-sum-exp, ess) of every anchor or, given phi, (positive, mean of phi); `stack` is [2N, d]."""
    outputs: tuple[Tensor, ...] = _KeptTile.apply(stack, scale, layout, phi)
    return outputs


class _KeptTile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stack: Tensor, scale: float | Tensor, layout: Layout, phi: Phi | None) -> tuple[Tensor, ...]:
        inverse_norms = None
        if layout.normalize:
            stack, inverse_norms = to_sphere(stack)
        view_a, view_b = stack.view(2, layout.samples, -1)
        positive_N = torch.linalg.vecdot(view_a, view_b) * scale
        anchors, candidates = _sides(stack, layout)
        scores = (anchors * scale) @ candidates.mT
        # slopes / divisor = d value_i / d s_ij
        if phi is None:
            slopes = _fill_same_sample(scores, -torch.inf, layout)
            peak = slopes.amax(-1)
            slopes.sub_(peak.unsqueeze(-1)).exp_()
            divisor = slopes.sum(-1)
            ess = (divisor / torch.linalg.vector_norm(slopes, dim=-1)).square_().div_(layout.negatives)
            values = [divisor.log().add_(peak).flatten(), ess.clamp_(1 / layout.negatives, 1).flatten()]
            ctx.mark_non_differentiable(values[1])
        else:
            slopes = _fill_same_sample(phi.derivative(scores), 0, layout)
            divisor = slopes.new_full((), layout.negatives)
            values = [_fill_same_sample(phi.value(scores), 0, layout).sum(-1).flatten() / divisor]
        ctx.save_for_backward(stack, inverse_norms, slopes, divisor)
        ctx.scale, ctx.layout = scale, layout
        ctx.set_materialize_grads(False)
        return torch.cat([positive_N] * layout.pairing.anchor_views), *values

    @staticmethod
    def backward(ctx: Any, g_positive: Tensor | None, g_value: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        stack, inverse_norms, slopes, divisor = ctx.saved_tensors
        layout: Layout = ctx.layout
        # the gradient of the stack, less the factor scale
        if g_value is None:
            d_stack = torch.zeros_like(stack)
        else:
            upstream = g_value.view(slopes.shape[:-1]) / divisor
            d_stack = _stack_gradient(slopes * upstream.unsqueeze(-1), *_sides(stack, layout), layout)
        if g_positive is not None:
            stack_VNd = stack.view(2, layout.samples, -1)
            pull_N1 = g_positive.view(-1, layout.samples).sum(0).unsqueeze(1)
            d_stack.view_as(stack_VNd).addcmul_(pull_N1, stack_VNd.flip(0))
        d_scale = None
        if ctx.needs_input_grad[1]:
            # both ends of every pair are in the stack, so <z, dz> counts each product twice
            d_scale = torch.vdot(stack.flatten(), d_stack.flatten()) / 2
        if inverse_norms is None:
            d_stack.mul_(ctx.scale)
        else:
            d_stack = gradient_before_sphere(d_stack, stack, inverse_norms * ctx.scale)
        return d_stack, d_scale, None, None


def _sides(stack: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Anchors and their candidates."""
    stack_VNd = stack.view(2, layout.samples, -1)
    match layout.pairing.name:
        case "two_view":
            return stack, stack
        case "within":
            return stack_VNd, stack_VNd
        case "cross":
            return stack_VNd, stack_VNd.flip(0)
        case _:
            return stack_VNd[0], stack_VNd[1]


def _stack_gradient(weights: Tensor, anchors: Tensor, candidates: Tensor, layout: Layout) -> Tensor:
    """What the weights of the tile send to both ends of its pairs: [2N, d]."""
    if layout.pairing.name in ("two_view", "within"):
        return ((weights + weights.mT) @ anchors).view(-1, anchors.shape[-1])
    d_anchors, d_candidates = weights @ candidates, weights.mT @ anchors
    if layout.pairing.name == "cross":
        return d_anchors.add_(d_candidates.flip(0)).flatten(0, 1)
    return torch.cat([d_anchors, d_candidates])


def _fill_same_sample(tile: Tensor, fill: float, layout: Layout) -> Tensor:
    """Overwrite, in place, the pairs of one sample: they are not negatives."""
    if layout.pairing.name == "two_view":
        tile.view(2, layout.samples, 2, layout.samples).diagonal(dim1=1, dim2=3).fill_(fill)
    else:
        tile.diagonal(dim1=-2, dim2=-1).fill_(fill)
    return tile
