"""VICReg and Barlow Twins: their own ladder, since they have no negatives, pairings or routes."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

import flatclr
from tests.support import field_oracles, oracles
from tests.support.oracles import Array


@dataclass(frozen=True)
class Case:
    build: Callable[..., flatclr.Objective]
    value: Callable[[list[Array]], float]


CASES = {
    "vicreg": Case(
        lambda **o: flatclr.VICReg(invariance=5.0, variance=3.0, covariance=0.7, **o),
        lambda views: field_oracles.vic_reg(views, 5.0, 3.0, 0.7),
    ),
    "barlow_twins": Case(
        lambda **o: flatclr.BarlowTwins(weight=0.3, **o), lambda views: field_oracles.barlow_twins(views, 0.3)
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def random_views(views: int, samples: int, d: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(samples, d)) * np.linspace(0.3, 2.0, d)  # some features spread too little
    return [base + 0.5 * rng.normal(size=(samples, d)) for _ in range(views)]


def tensors(views: list[Array], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.tensor(z, dtype=dtype, requires_grad=True) for z in views]


@every_case
@pytest.mark.parametrize("views", [2, 3, 5])
@pytest.mark.parametrize(("samples", "d"), [(2, 1), (3, 4), (7, 3)])
def test_value_and_gradient_equal_the_float64_oracle(case: Case, views: int, samples: int, d: int) -> None:
    arrays = random_views(views, samples, d)
    leaves = tensors(arrays)
    loss = case.build()(*leaves)
    assert loss.item() == pytest.approx(case.value(arrays), rel=1e-11, abs=1e-12)
    want = oracles.finite_difference_gradient(lambda *moved: case.value(list(moved)), *arrays)
    for got, expected in zip(torch.autograd.grad(loss, leaves), want, strict=True):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-7)


@every_case
def test_one_tensor_of_views_is_the_same(case: Case) -> None:
    views = tensors(random_views(3, 6, 4))
    torch.testing.assert_close(case.build()(torch.stack(views)), case.build()(*views))


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_lower_precision_accumulates_in_float32(case: Case, dtype: torch.dtype) -> None:
    rounded = [z.detach().to(dtype).double().numpy() for z in tensors(random_views(2, 16, 8))]
    leaves, exact = tensors(rounded, dtype), tensors(rounded)
    loss = case.build()(*leaves)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(case.value(rounded), rel=1e-5)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    gradients = torch.autograd.grad(loss, leaves), torch.autograd.grad(case.build()(*exact), exact)
    for got, want in zip(*gradients, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= tolerance * want.norm()


@every_case
def test_autocast_changes_nothing(case: Case) -> None:
    leaves = tensors(random_views(2, 16, 8), torch.float32)
    want = torch.autograd.grad(case.build()(*leaves), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(case.build()(*leaves), leaves)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@every_case
@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(2, 9))
def test_the_order_of_samples_views_and_features_does_not_matter(case: Case, seed: int, samples: int) -> None:
    views = tensors(random_views(2, samples, 4, seed))
    generator = torch.Generator().manual_seed(seed)
    order, features = (torch.randperm(n, generator=generator) for n in (samples, 4))
    objective = case.build()
    want = objective(*views)
    for moved in ([z[order] for z in views], views[::-1], [z[:, features] for z in views]):
        torch.testing.assert_close(objective(*moved), want, rtol=1e-10, atol=1e-10)


@every_case
def test_strided_views_and_scaled_losses_give_the_same_gradient(case: Case) -> None:
    arrays = random_views(2, 5, 4)
    leaves = tensors(arrays)
    want = torch.autograd.grad(case.build()(*leaves), leaves)
    wide = [torch.tensor(z.repeat(2, axis=1).T, requires_grad=True) for z in arrays]
    got = torch.autograd.grad(1024 * case.build()(*(z[::2].T for z in wide)), wide)
    for strided, expected in zip(got, want, strict=True):
        torch.testing.assert_close(strided[::2].T, 1024 * expected)


@every_case
def test_features_that_do_not_vary_have_a_finite_gradient(case: Case) -> None:
    z = torch.ones(6, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(case.build()(z, z + 0), z)
    assert gradient.isfinite().all()


@every_case
def test_stats_are_gauges_of_the_cosines(case: Case) -> None:
    views = tensors(random_views(2, 6, 4), torch.float32)
    _, stats = case.build().with_stats(*views)
    want = flatclr.contrast_stats(*views, inverse_temperature=10.0)
    torch.testing.assert_close(stats.ess, want.ess)


@every_case
def test_they_can_be_pickled_and_copied(case: Case) -> None:
    views = tensors(random_views(2, 6, 4))
    objective = flatclr.VICReg() if case is CASES["vicreg"] else flatclr.BarlowTwins()
    for again in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        torch.testing.assert_close(again(*views), objective(*views))


@every_case
@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"pairing": "cross"}, {}, "pairing must be left out for .* got 'cross'; it has no negatives"),
        ({"negatives_per_anchor": 3}, {}, "negatives_per_anchor must be left out"),
        ({"in_batch_negatives": False}, {}, "in_batch_negatives must be left out"),
        ({"normalize": True}, {}, "normalize must be left out"),
        ({"temperature": 0.1}, {}, "option of .* must be one of .* got 'temperature'"),
        ({}, {"negatives": torch.randn(5, 3)}, "negatives must be left out"),
        ({}, {"labels": torch.arange(4)}, "labels or ids must be left out"),
        ({}, {"hard_negatives": torch.randn(4, 2, 3)}, "hard_negatives must be left out"),
    ],
    ids=["pairing", "drawn", "queue_alone", "normalize", "temperature", "queue", "labels", "hard"],
)
def test_what_only_a_contrast_has_is_refused(
    case: Case, options: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    z = torch.randn(4, 3)
    with pytest.raises(ValueError, match=message):
        case.build(**options)(z, z, **given)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"variance must be >= 0, got -1\.0"):
        flatclr.VICReg(variance=-1.0)
    with pytest.raises(ValueError, match=r"weight must be >= 0, got -0\.1"):
        flatclr.BarlowTwins(weight=-0.1)
