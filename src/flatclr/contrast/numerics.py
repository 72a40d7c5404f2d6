"""The unit sphere, the precision of sums, and what the hand-written backward passes share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from flatclr.checks import refuse_double_backward, refuse_transforms

_NOTHING = nullcontext()
T = TypeVar("T")


class Cached(Generic[T]):
    """A property that is computed once. `functools.cached_property` has a lock, at which torch.compile stops."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__
        self.name = compute.__name__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self.compute(instance)
        instance.__dict__[self.name] = value  # found there before this is asked again
        return value


class Unchanged:
    """Tensors that must not be changed in place until something is measured of them; their graph is not kept.

    The count of changes is one for all tensors that are parts of one.
    """

    def __init__(self, *tensors: object) -> None:
        self.counts: list[tuple[Tensor, int]] = []
        if not torch.compiler.is_compiling():  # compiled code cannot count
            counting = (x for x in tensors if isinstance(x, Tensor) and not x.is_inference())
            self.counts = [(x.detach(), x._version) for x in counting]

    def hold(self) -> bool:
        return all(x._version == count for x, count in self.counts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies count anew."""
        return _unchanged, ([x for x, _ in self.counts], self.hold())

    def require(self, measured: str, tensors: str, instead: str) -> None:
        if not torch.compiler.is_compiling() and not self.hold():
            raise RuntimeError(
                f"{measured} must be read before {tensors} are changed, or the tensor that they are parts of, not "
                f"after; {instead}."
            )


def _unchanged(tensors: list[Tensor], hold: bool) -> Unchanged:
    made = Unchanged(*tensors)
    made.counts = [(x, count if hold else -1) for x, count in made.counts]
    return made


def accumulation_type(z: Tensor) -> torch.dtype:
    """float64 stays, everything else accumulates in float32."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def no_autocast(z: Tensor) -> AbstractContextManager[Any]:
    # a cast to half precision inside would undo the float32 accumulation
    if torch._C._is_any_autocast_enabled():
        return torch.autocast(z.device.type, enabled=False)
    return _NOTHING


def to_sphere(rows_Nd: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows and the inverse norms [N, 1]; a zero row stays zero, and a NaN stays visible."""
    # in float64, so that no float32 row is too long or too short to have a direction
    norms = torch.linalg.vector_norm(rows_Nd, dim=1, keepdim=True, dtype=torch.float64)
    inverse_norms = norms.reciprocal_().to(rows_Nd.dtype).nan_to_num_(nan=torch.nan, posinf=0.0)
    return rows_Nd * inverse_norms, inverse_norms


def as_they_came(rows_Nd: Tensor, inverse_norms: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows times a power of two, which is exact in few bits, and the factors [N, 1] from 1 to 2 left to unit length.

    >>> as_they_came(torch.tensor([[0.0, 6.0]]), torch.tensor([[1 / 6]]), torch.bfloat16)
    (tensor([[0.0000, 0.7500]], dtype=torch.bfloat16), tensor([[1.3333]]))
    """
    mantissas, exponents = torch.frexp(inverse_norms)
    values = (rows_Nd * torch.ldexp(torch.ones_like(mantissas), exponents - 1)).to(dtype)
    factors = mantissas.mul_(2).masked_fill_(mantissas == 0, 1.0)  # a row of zeros is one without a factor
    return values, factors.masked_fill_(rows_Nd.isinf().any(1, keepdim=True), torch.nan)


def gradient_before_sphere(d_unit: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """d row = (d unit - <unit, d unit> unit) / norm; overwrites d_unit. A zero row gets none."""
    radial = (unit * d_unit).sum(1, keepdim=True)
    return d_unit.addcmul_(unit, radial, value=-1).mul_(inverse)


def unit_rows(rows_Nd: Tensor) -> Tensor:
    """Rows divided by their length.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    refuse_transforms()
    unit: Tensor = _UnitRows.apply(rows_Nd)
    return unit


def products(x: Tensor, y: Tensor) -> Tensor:
    """x y^T of matrices or batches of them, in the precision they have under autocast too, forward and backward.

    >>> products(torch.eye(2), torch.ones(3, 2))
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    found: Tensor = _Products.apply(x, y)
    return found


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right of operands in the type they have, added up in accumulation precision; without gradient.

    >>> product(torch.eye(2, dtype=torch.bfloat16), torch.ones(2, 1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    if left.dtype in (torch.float32, torch.float64):
        return left @ right
    if not left.is_cuda:
        return left.float() @ right.float()
    multiply = torch.mm if left.dim() == 2 else torch.bmm
    return multiply(left, right, out_dtype=torch.float32)


def alignment(z_a: Tensor, z_b: Tensor, alpha: float = 2.0) -> Tensor:
    """||x - y||^alpha of every positive pair on the sphere; smaller is better aligned.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([2.])
    """
    view_a, view_b = (unit_rows(z.to(accumulation_type(z))) for z in (z_a, z_b))
    squared = (view_a - view_b).square().sum(1)
    return squared if alpha == 2 else squared.clamp_min(torch.finfo(squared.dtype).tiny) ** (alpha / 2)


def effective_share(total: Tensor, norm: Tensor, negatives: int) -> Tensor:
    """(sum_j w_j)^2 / (K sum_j w_j^2) from the sum of K weights and their Euclidean norm, in [1/K, 1]."""
    return (total / norm).square_().div_(negatives).clamp_(1 / negatives, 1)


def dense_ess(scores_AK: Tensor, negatives: int) -> Tensor:
    """(sum_j exp s_j)^2 / (K sum_j exp 2 s_j) of each row; entries at -inf do not count."""
    weights = scores_AK.detach().softmax(1)
    return effective_share(weights.sum(1), torch.linalg.vector_norm(weights, dim=1), negatives)


def parted_gradients(
    g_positive: Tensor | None, g_value: Tensor | None, g_gap: Tensor | None
) -> tuple[Tensor | None, float, Tensor | None]:
    """(pull, sign, that of the value): sign * pull reached the positives, with what came by the gap between the two."""
    if g_gap is None:
        return g_positive, 1.0, g_value
    g_value = g_gap if g_value is None else g_value + g_gap
    return (g_gap, -1.0, g_value) if g_positive is None else (g_positive - g_gap, 1.0, g_value)


def by_row(scale: float | Tensor) -> float | Tensor:
    """A scale as it multiplies a matrix whose rows are the anchors."""
    return scale.unsqueeze(1) if isinstance(scale, Tensor) and scale.dim() else scale


def keep_scale(ctx: Any, scale: float | Tensor) -> list[Tensor]:
    """What to save for backward of a scale: a tensor goes where autograd notices a change of it in between."""
    ctx.scale = None if isinstance(scale, Tensor) else scale
    return [scale] if isinstance(scale, Tensor) else []


def kept_scale(ctx: Any, saved: list[Tensor]) -> float | Tensor:
    """The inverse of `keep_scale`; `saved` is what it returned."""
    return saved[0] if saved else float(ctx.scale)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_Nd: Tensor) -> Tensor:
        unit, inverse = to_sphere(rows_Nd)
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        refuse_double_backward()
        return gradient_before_sphere(upstream.clone(), *ctx.saved_tensors)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        with no_autocast(x):
            return x @ y.mT

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        refuse_double_backward()
        x, y = ctx.saved_tensors
        with no_autocast(x):
            return upstream @ y, upstream.mT @ x
