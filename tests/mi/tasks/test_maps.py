"""Maps that leave the information as it is."""

import math

import numpy as np
import pytest
from scipy import stats

from flatclr.mi import tasks
from flatclr.mi.tasks import Task


@pytest.mark.parametrize("make", [tasks.normal_cdf, tasks.half_cube, tasks.asinh, tasks.wiggly])
def test_maps_of_margins_are_strictly_increasing(make: object):
    grid = np.linspace(-4, 4, 4001)[:, None]
    line = Task("line", 0.0, 1, 1, lambda n, rng: (grid, grid))

    for mapped in make(line).draw(0, np.random.default_rng(0)):
        assert (np.diff(mapped[:, 0]) > 0).all()


def test_bimodal_margins_are_the_mixtures():
    x, y = tasks.bimodal().sample(4000, seed=0)
    cdf = stats.norm.cdf

    assert stats.kstest(x[:, 0], lambda v: 0.3 * cdf(v) + 0.7 * cdf(v - 5)).pvalue > 0.01
    assert stats.kstest(y[:, 0], lambda v: 0.5 * cdf(v + 1) + 0.5 * cdf(v - 3)).pvalue > 0.01


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_a_spiral_keeps_norms_and_can_be_turned_back(dim: int):
    base = tasks.gaussian_pairs(dim)
    plain, turned = base.sample(50, seed=1), tasks.spiral(base, speed=0.7).sample(50, seed=1)
    first_y = 1 if dim > 2 else 0

    for before, after, i in zip(plain, turned, (0, first_y), strict=True):
        squared_norm = (after**2).sum(1)
        np.testing.assert_allclose(squared_norm, (before**2).sum(1))
        np.testing.assert_allclose(tasks.turned(after, i, i + 1, -0.7 * squared_norm), before, atol=1e-9)
        assert np.abs(after - before).max() > 0.5


def test_a_swiss_roll_can_be_unrolled():
    plain = tasks.gaussian_pairs(1, pairs=1, correlation=0.75).sample(50, seed=1)[0]
    rolled = tasks.swiss_roll().sample(50, seed=1)[0]

    radius = 21 * np.hypot(rolled[:, 0], rolled[:, 1])
    np.testing.assert_allclose(radius, 1.5 * math.pi * (1 + 2 * stats.norm.cdf(plain[:, 0])))


@pytest.mark.parametrize("dim", [2, 5])
def test_a_shear_can_be_undone(dim: int):
    base = tasks.gaussian_pairs(dim)
    plain, moved = base.sample(50, seed=1), tasks.sheared(base, 0.7).sample(50, seed=1)

    for before, after in zip(plain, moved, strict=True):
        back = after.copy()
        for j in range(1, dim, 2):
            back[:, j] -= 0.7 * np.sin(2 * after[:, j - 1])
        np.testing.assert_allclose(back, before)
        assert np.abs(after - before).max() > 0.5


def test_rotations_keep_every_inner_product_and_stirring_is_two_of_them_around_a_stretch():
    base = tasks.gaussian_dense(4)
    for turned, other in (
        (tasks.rotated(base, seed=3), base),
        (tasks.stirred(base, seed=3), tasks.half_cube(tasks.rotated(base, seed=3))),
    ):
        for after, before in zip(turned.sample(30, seed=1), other.sample(30, seed=1), strict=True):
            np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-9)
            assert np.abs(after - before).max() > 0.5
        assert turned.mi_nats == base.mi_nats
