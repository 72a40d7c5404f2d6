"""The quantities of a contrast no larger than one tile, on one rank: backward reuses the tile.

At such sizes time goes into launching operations, so there are few of them. Shape suffixes: V views, N samples, d
features; the tile is [anchors, candidates], with a leading view where each view has candidates of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward
from flatclr.contrast.batch import Batch
from flatclr.contrast.kernels import Kernels
from flatclr.contrast.kernels.reductions import Ready
from flatclr.contrast.numerics import (
    accumulation_type,
    effective_share,
    gradient_before_sphere,
    keep_scale,
    kept_scale,
    no_autocast,
    parted_gradients,
    product,
    to_sphere,
)
from flatclr.contrast.phi import Phi

SMALLEST_MIRRORED = 2**14  # scores; in a smaller tile the operations it takes cost more than they save
LARGEST_BARE_SCORE = 32.0  # scores within +-32 can be exponentiated, squared and summed in float32 as they are


def logsumexp_kept(
    batch: Batch, scale: float | Tensor, kernels: Kernels | None = None
) -> tuple[Tensor, Tensor, Tensor, Callable[[], Tensor]]:
    """(positive, log-sum-exp, their gap) of every anchor and a way to ask for the ESS of its negatives.

    The gap is an output of its own because most losses need nothing else. Given kernels, embeddings are multiplied in
    their own type, made ready by these; else products are exact.
    """
    positive, logsumexp, gap, shares = _KeptTile.apply(*batch.views, scale, batch, kernels, None)
    return positive, logsumexp, gap, partial(_ess, shares, batch.layout.negatives)


def mean_phi_kept(
    batch: Batch, scale: float | Tensor, phi: Phi, kernels: Kernels | None = None
) -> tuple[Tensor, Tensor]:
    """(positive, mean of phi over the negatives) of every anchor."""
    positive, mean = _KeptTile.apply(*batch.views, scale, batch, kernels, phi)
    return positive, mean


def _ess(shares: Tensor, negatives: int) -> Tensor:
    return effective_share(shares.sum(-1), torch.linalg.vector_norm(shares, dim=-1), negatives).view(-1)


class _KeptTile(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z_a: Tensor,
        z_b: Tensor,
        scale: float | Tensor,
        batch: Batch,
        kernels: Kernels | None,
        phi: Phi | None,
    ) -> tuple[Tensor, ...]:
        layout, normalize = batch.layout, batch.options.normalize
        shape = layout.tile
        assert shape is not None
        inverse_norms = factors = positive = None
        if kernels is None:
            came, precision = torch.cat([z_a, z_b]), accumulation_type(z_a)
            stack = came if came.dtype == precision else came.to(precision)
            if normalize:
                stack, inverse_norms = to_sphere(stack)
            operand = stack
        else:
            ready = _ready(kernels, z_a, z_b, scale, batch)
            stack, inverse_norms, positive = ready.rows, ready.inverse_norms, ready.positive
            operand, factors = ready.operand.values, ready.operand.factors
        scores = _scores(operand, None if factors is None else factors.unsqueeze(1), scale, shape)
        if positive is None and shape == "within":
            view_a, view_b = stack.chunk(2)
            positive = (torch.linalg.vecdot(view_a, view_b) * scale).repeat(len(layout.groups))
        elif positive is None:
            # a copy: the tile is overwritten below
            positive = _positives(scores, shape).clone(memory_format=torch.contiguous_format).view(-1)
        # (i, j) and (j, i) are in the tile, and equal: in a large one that saves to read it by columns
        mirrored = shape != "one_way" and scores.numel() >= SMALLEST_MIRRORED
        # slopes / divisor = d value_i / d s_ij
        if phi is None:
            slopes = scores
            _same_sample(slopes, shape).fill_(-torch.inf)
            if normalize and isinstance(scale, float) and abs(scale) <= LARGEST_BARE_SCORE:
                divisor = slopes.exp_().sum(-1).view(-1)
                logsumexp = divisor.log()
            else:
                mirrored, peak = False, slopes.amax(-1, keepdim=True)
                divisor = slopes.sub_(peak).exp_().sum(-1).view(-1)
                logsumexp = divisor.log().add_(peak.view(-1))
            values = [logsumexp, logsumexp - positive, slopes]
            ctx.mark_non_differentiable(slopes)
        else:
            slopes, phi_values = phi.slopes(scores), phi.values(scores)
            for tile in (slopes, phi_values):
                _same_sample(tile, shape).zero_()
            divisor = slopes.new_full((), layout.negatives)
            values = [phi_values.sum(-1).flatten() / divisor]
        own = (None, None, None) if kernels is None else (operand, factors, positive)
        ctx.save_for_backward(stack, inverse_norms, *own, slopes, divisor, *keep_scale(ctx, scale))
        ctx.shape, ctx.mirrored, ctx.kernels, ctx.embedding_type = shape, mirrored, kernels, z_a.dtype
        ctx.set_materialize_grads(False)
        return positive, *values

    @staticmethod
    def backward(
        ctx: Any, g_positive: Tensor | None, g_value: Tensor | None, g_gap: Tensor | None = None, *_: None
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        saved = ctx.saved_tensors
        gradients = _KeptTile._gradients if ctx.kernels is None else _KeptTile._gradients_in_own_type
        with no_autocast(saved[0]):
            return gradients(ctx, saved, *parted_gradients(g_positive, g_value, g_gap))

    @staticmethod
    def _gradients(
        ctx: Any, saved: tuple[Any, ...], pull: Tensor | None, sign: float, g_value: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        stack, inverse_norms, _, _, _, slopes, divisor, *kept = saved
        scale, shape = kept_scale(ctx, kept), ctx.shape
        in_tile = pull if shape != "within" else None
        weights = _pair_weights(slopes, divisor, g_value, in_tile, sign, shape, mirrored=ctx.mirrored)
        d_stack = _stack_gradient(weights, stack, None, shape)  # less the factor scale
        if pull is not None and in_tile is None:
            stack_VNd = stack.view(2, stack.shape[0] // 2, -1)
            pull_N1 = pull.view(-1, stack.shape[0] // 2).sum(0).unsqueeze(1)
            d_stack.view_as(stack_VNd).addcmul_(pull_N1, stack_VNd.flip(0), value=sign)
        d_scale = None
        if ctx.needs_input_grad[2]:
            # both ends of every pair are in the stack, so <z, dz> counts each product twice
            d_scale = torch.vdot(stack.flatten(), d_stack.flatten()) / 2
        if inverse_norms is None:
            d_stack.mul_(scale)
        else:
            d_stack = gradient_before_sphere(d_stack, stack, inverse_norms * scale)
        return *d_stack.to(ctx.embedding_type).chunk(2), d_scale, None, None, None  # rounded together, not view by view

    @staticmethod
    def _gradients_in_own_type(
        ctx: Any, saved: tuple[Any, ...], pull: Tensor | None, sign: float, g_value: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        stack, inverse_norms, operand, factors, positive, slopes, divisor, *kept = saved
        scale, d_stack, d_scale = kept_scale(ctx, kept), None, None
        if g_value is not None:
            weights = _pair_weights(slopes, divisor, g_value * scale, None, sign, ctx.shape, mirrored=ctx.mirrored)
            factors = None if factors is None else factors.unsqueeze(1)
            d_stack = _stack_gradient(weights, operand, factors, ctx.shape)
        if ctx.needs_input_grad[2]:
            d_scale = stack.new_zeros(()) if pull is None else sign * (pull @ positive)
            if d_stack is not None:
                d_scale += torch.vdot(stack.flatten(), d_stack.flatten()) / 2
            d_scale /= scale
        d_views = ctx.kernels.views_gradient(
            d_stack,
            pull,
            stack,
            inverse_norms,
            scale,
            views=2,
            sign=sign,
            factor=1.0,
            dtype=ctx.embedding_type,
        )
        return *d_views, d_scale, None, None, None


def _ready(kernels: Kernels, z_a: Tensor, z_b: Tensor, scale: float | Tensor, batch: Batch) -> Ready:
    with torch.cuda.device_of(z_a):
        return kernels.ready(
            (z_a, z_b),
            scale,
            None,
            normalize=batch.options.normalize,
            anchor_groups=len(batch.layout.groups),
            with_moment=False,
            with_ess=False,
        )


def _scores(operand: Tensor, factors: Tensor | None, scale: float | Tensor, shape: str) -> Tensor:
    """The tile: scores of the anchors against their candidates; with factors, of embeddings as they came."""
    if shape == "views":
        return _scaled(product(operand, operand.T), factors, factors, scale)
    operand_VNd = operand.view(2, operand.shape[0] // 2, -1)
    factors_VN1 = None if factors is None else factors.view(2, -1, 1)
    if shape == "within":
        return _scaled(product(operand_VNd, operand_VNd.mT), factors_VN1, factors_VN1, scale)
    factors_a, factors_b = (None, None) if factors_VN1 is None else factors_VN1
    a_to_b = _scaled(product(operand_VNd[0], operand_VNd[1].T), factors_a, factors_b, scale)
    return a_to_b if shape == "one_way" else torch.stack([a_to_b, a_to_b.T])


def _scaled(products: Tensor, rows: Tensor | None, columns: Tensor | None, scale: float | Tensor) -> Tensor:
    """scale * products, times the factors [.., 1] of both ends if there are any; in place."""
    if rows is None or columns is None:
        return products.mul_(scale)
    return products.mul_(rows * scale).mul_(columns.mT)


def _same_sample(tile: Tensor, shape: str) -> Tensor:
    """A view of the entries that are not negatives."""
    if shape == "views":
        n = tile.shape[0] // 2
        return tile.view(2, n, 2, n).diagonal(dim1=1, dim2=3)
    return tile.diagonal(dim1=-2, dim2=-1)


def _positives(tile: Tensor, shape: str) -> Tensor:
    """A view of the positives' entries in anchor order; "within" has none in its tile."""
    if shape == "views":
        n = tile.shape[0] // 2  # entries (i, n + i) and (n + i, i) of a contiguous [2n, 2n]
        return tile.as_strided((2, n), (n * (2 * n - 1), 2 * n + 1), n)
    return tile.diagonal(dim1=-2, dim2=-1)


def _pair_weights(
    slopes: Tensor,
    divisor: Tensor,
    g_value: Tensor | None,
    pull: Tensor | None,
    sign: float,
    shape: str,
    *,
    mirrored: bool,
) -> Tensor:
    """What every pair weighs, its two ends as anchors together; of "cross" one tile is left."""
    if g_value is None:
        weights, mirrored = torch.zeros_like(slopes), False
    else:
        per_anchor = (g_value / divisor).view(*slopes.shape[:-1], 1)
        if not mirrored:
            weights = slopes * per_anchor
        elif shape == "cross":
            weights = slopes[0] * (per_anchor[0] + per_anchor[1].T)
        else:
            weights = slopes * (per_anchor + per_anchor.mT)
    if pull is not None:
        positives = _positives(weights, shape)  # 0 so far: they are not negatives
        positives.add_(pull.view(2, -1).sum(0) if mirrored else pull.view_as(positives), alpha=sign)
    if mirrored or shape == "one_way":
        return weights
    return weights[0] + weights[1].T if shape == "cross" else weights + weights.mT


def _stack_gradient(weights: Tensor, operand: Tensor, factors: Tensor | None, shape: str) -> Tensor:
    """What the weights of the pairs send to both their ends: [2N, d]."""
    if shape == "views":
        return _weighed(weights, operand, factors)
    operand_VNd = operand.view(2, operand.shape[0] // 2, -1)
    factors_VN1 = None if factors is None else factors.view(2, -1, 1)
    if shape == "within":
        return _weighed(weights, operand_VNd, factors_VN1).flatten(0, 1)
    factors_a, factors_b = (None, None) if factors_VN1 is None else factors_VN1
    return torch.cat([_weighed(weights, operand_VNd[1], factors_b), _weighed(weights.T, operand_VNd[0], factors_a)])


def _weighed(weights: Tensor, operand: Tensor, factors: Tensor | None) -> Tensor:
    """weights @ unit rows."""
    if factors is not None:
        weights = weights * factors.mT
    return product(weights.to(operand.dtype), operand)
