"""Device code gives the value and the derivative of its Python twin, at every score an objective can meet."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flatclr import Phi
from flatclr.objectives.f_divergence import DIVERGENCES, tsallis
from flatclr.objectives.rpc import rpc_negative
from tests.support.interpreter import interpreted

pytest.importorskip("triton")

import triton
import triton.language as tl

from flatclr.contrast.kernels.fused_triton import device_code

pytestmark = interpreted

ORDERS = {**DIVERGENCES, **{f"tsallis_{order}": tsallis(order) for order in (0.5, 2.0, 3.0)}}
COSINES = torch.linspace(-1, 1, 61)
TWINS: dict[str, tuple[Phi, Tensor]] = {
    **{f"{name}_gaussian": (d.gaussian_penalty(-2.3), 3 * COSINES) for name, d in ORDERS.items()},
    **{f"{name}_cosine": (d.cosine_penalty(), COSINES) for name, d in ORDERS.items()},
    "rpc": (rpc_negative(a=0.3, g=0.7), 20 * COSINES),
    "rpc of whole numbers": (rpc_negative(a=1, g=2), 20 * COSINES),
}


@triton.jit
def _apply(scores, values, slopes, first, second, count, PHI: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, SIZE)
    value, slope = PHI(tl.load(scores + places, mask=places < count, other=0.0), first, second)
    tl.store(values + places, value, mask=places < count)
    tl.store(slopes + places, slope, mask=places < count)


def on_device(phi: Phi, scores: Tensor) -> tuple[Tensor, Tensor]:
    values, slopes = torch.empty_like(scores), torch.empty_like(scores)
    first, second = (*map(float, phi.parameters or ()), 0.0, 0.0)[:2]
    code: Callable[..., object] = device_code(phi)
    _apply[(1,)](scores, values, slopes, first, second, len(scores), code, 64)
    return values, slopes


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log2")  # of u = 0, where the value is 0
@pytest.mark.parametrize("name", TWINS)
def test_value_and_derivative_on_the_device_are_those_of_the_twin(name: str) -> None:
    phi, scores = TWINS[name]
    values, slopes = on_device(phi, scores)
    torch.testing.assert_close(values.double(), phi.values(scores.double()), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(slopes.double(), phi.slopes(scores.double()), rtol=2e-6, atol=2e-6)
