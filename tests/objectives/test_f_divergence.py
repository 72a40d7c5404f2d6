"""The table of f-divergences: conjugates by definition, identities, finiteness on the whole sphere."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import optimize

import flatclr
from flatclr.objectives.f_divergence import DIVERGENCES, Divergence, tsallis
from flatclr.objectives.rpc import density_ratio, rpc_negative, rpc_positive
from tests.support import oracles
from tests.support.harness import Batch

EVERY = {**DIVERGENCES, "tsallis_3": tsallis(3.0), "tsallis_2": tsallis(2.0), "tsallis_half": tsallis(0.5)}
every_divergence = pytest.mark.parametrize("divergence", EVERY.values(), ids=EVERY)
U = torch.linspace(0.05, 5, 60, dtype=torch.float64)


@every_divergence
def test_f_is_convex_and_zero_at_one(divergence: Divergence) -> None:
    assert divergence.f(torch.tensor(1.0, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-12)
    assert (divergence.derivative(U).diff() > 0).all()


@every_divergence
def test_derivative_is_the_derivative(divergence: Divergence) -> None:
    u = U.clone().requires_grad_()
    (slope,) = torch.autograd.grad(divergence.f(u).sum(), u)
    torch.testing.assert_close(divergence.derivative(U), slope)


@every_divergence
def test_conjugate_is_the_supremum_it_is_defined_as(divergence: Divergence) -> None:
    for t in divergence.derivative(torch.tensor([0.2, 0.7, 1.0, 1.9], dtype=torch.float64)).tolist():

        def minus(u: float, t: float = t) -> float:
            return divergence.f(torch.tensor(u, dtype=torch.float64)).item() - t * u

        best = optimize.minimize_scalar(minus, bounds=(1e-9, 50), method="bounded", options={"xatol": 1e-10})
        tensor = torch.tensor(t, dtype=torch.float64)
        assert divergence.conjugate(tensor).item() == pytest.approx(-best.fun, abs=1e-7)
        assert divergence.conjugate_derivative(tensor).item() == pytest.approx(best.x, rel=1e-3)


@every_divergence
def test_conjugate_of_derivative_is_what_its_name_says(divergence: Divergence) -> None:
    torch.testing.assert_close(divergence.conjugate_of_derivative(U), divergence.conjugate(divergence.derivative(U)))


@every_divergence
def test_penalty_slope_is_the_slope_of_the_penalty(divergence: Divergence) -> None:
    v = U.log().requires_grad_()
    (slope,) = torch.autograd.grad(divergence.penalty(v).sum(), v)
    torch.testing.assert_close(divergence.penalty_slope(U.log()), slope)


@every_divergence
def test_reward_slope_is_the_slope_of_the_reward_however_small_the_ratio(divergence: Divergence) -> None:
    v = torch.tensor([-4000.0, -80.0, -1.0, 0.0, 2.0], dtype=torch.float32, requires_grad=True)
    (slope,) = torch.autograd.grad(divergence.reward(v).sum(), v)
    assert slope.isfinite().all()
    torch.testing.assert_close(divergence.reward_slope(v), slope)


@every_divergence
def test_the_cosine_map_is_monotone_and_stays_inside_the_domain(divergence: Divergence) -> None:
    cosine = torch.linspace(-1, 1, 401, dtype=torch.float64, requires_grad=True)
    critic = divergence.critic(cosine)
    assert (critic.diff() > 0).all()
    phi = divergence.cosine_penalty()
    value = phi.value(cosine)
    (slope,) = torch.autograd.grad(value.sum(), cosine)
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert (slope[1:] > 0).all()  # every negative is pushed away, whatever its cosine
    torch.testing.assert_close(phi.derivative(cosine), slope)


@pytest.mark.parametrize("name", [*DIVERGENCES, "tsallis"])
def test_defaults_are_the_published_settings(name: str) -> None:
    batch = Batch.random(5, 4, pairing="within")
    z_a, z_b, _ = batch.tensors()
    expected = oracles.fmicl_loss(batch.z_a, batch.z_b, name, mu=1.0, inverse_two_sigma_sq=1.0, weight=40.0)
    assert flatclr.FMICL(name)(z_a, z_b).item() == pytest.approx(expected, rel=1e-10)


def test_tsallis_near_one_tends_to_kl() -> None:
    """Up to the linear term (u - 1) / (alpha - 1), which has expectation 0."""
    near = tsallis(1 + 2**-20).f(U) - (U - 1) * 2**20
    torch.testing.assert_close(near, DIVERGENCES["kl"].f(U), rtol=1e-4, atol=1e-5)


def test_rpc_optimum_is_where_its_ratio_says() -> None:
    """On two discrete distributions the pointwise maximiser of J is (r - a) / (b r + g)."""
    a, b, g = 0.3, 0.2, 0.7
    ratio = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
    f = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    q = torch.full((3,), 1 / 3, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([f], max_iter=100)

    def minus_j() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (q * rpc_negative(a=a, g=g).value(f)).sum() - (q * ratio * rpc_positive(f, b=b)).sum()
        loss.backward()
        return loss

    optimizer.step(minus_j)
    np.testing.assert_allclose(f.detach(), (ratio - a) / (b * ratio + g), rtol=1e-5)
    np.testing.assert_allclose(density_ratio(f.detach(), a=a, b=b, g=g), ratio, rtol=1e-5)


RAW_CONJUGATES: dict[str, Callable[[float], float]] = {  # written from the table of the definitions
    "kl": lambda t: math.exp(t - 1),
    "js": lambda t: -math.log(2 - math.exp(t)),
    "pearson": lambda t: t * t / 4 + t,
    "hellinger": lambda t: t / (1 - t),
    "tsallis": lambda t: max(2 * t / 3, 0.0) ** 1.5 + 0.5,
    "vlc": lambda t: 4 - t - 4 * math.sqrt(1 - t),
}


@pytest.mark.parametrize("name", RAW_CONJUGATES)
def test_a_raw_cosine_is_the_critic_itself(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    z_a = torch.randn(5, 40, generator=generator, dtype=torch.float64)  # wide: cosines of negatives are small
    z_b = z_a + 0.5 * torch.randn(5, 40, generator=generator, dtype=torch.float64)
    views = [torch.nn.functional.normalize(z).numpy() for z in (z_a, z_b)]
    conjugate = RAW_CONJUGATES[name]
    penalties = [conjugate(float(z[i] @ z[j])) for z in views for i in range(5) for j in range(5) if i != j]
    expected = 7.0 * np.mean(penalties) - np.mean([float(views[0][i] @ views[1][i]) for i in range(5)])
    z_a.requires_grad_()
    loss = flatclr.FMICL(name, kernel="raw_cosine", weight=7.0)(z_a, z_b)
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.grad(loss, z_a)[0].isfinite().all()


def test_raw_cosines_leave_the_domain_where_mapped_ones_do_not() -> None:
    near = torch.nn.functional.normalize(torch.ones(4, 8) + 0.05 * torch.eye(4, 8))
    fails = {
        name: not flatclr.FMICL(name, kernel="raw_cosine")(near, near).isfinite().item() for name in RAW_CONJUGATES
    }
    assert fails == {"kl": False, "js": True, "pearson": False, "hellinger": False, "tsallis": False, "vlc": False}
    for name in RAW_CONJUGATES:
        assert flatclr.FMICL(name, kernel="cosine")(near, near).isfinite()
    same = torch.ones(4, 8, dtype=torch.float64)
    assert not flatclr.FMICL("hellinger", kernel="raw_cosine")(same, same).abs() < 1e6
    (slope,) = (DIVERGENCES["vlc"].with_raw_cosine().cosine_penalty().derivative(torch.ones(1)),)
    assert slope.isinf().all()


def test_a_raw_cosine_has_no_temperature() -> None:
    with pytest.raises(ValueError, match="temperature must be None with kernel='raw_cosine'"):
        flatclr.FMICL(kernel="raw_cosine", temperature=0.1)
    assert flatclr.FMICL.traits_with(kernel="raw_cosine").accepts_control is False
