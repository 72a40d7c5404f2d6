"""The directions in which x and y correlate, and what the default reads in them."""

import numpy as np
import pytest

from flatclr.mi import estimate, tasks
from flatclr.mi.canonical import CanonicalColumns, correlating_pairs, largest_by_chance
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.fit import FAST
from flatclr.mi.gaussian import pairs_are_normal


def test_directions_are_those_of_the_linked_columns():
    x, y = tasks.rotated(tasks.gaussian_pairs(6)).sample(3000, seed=0)
    copula = fit_gaussian(x, y)
    assert correlating_pairs(copula) == 2
    u, v = CanonicalColumns.of(copula, 2)(x, y)
    found = np.corrcoef(np.hstack([u, v]), rowvar=False)
    np.testing.assert_allclose(np.diag(found[:2, 2:]), 0.8, atol=0.04)  # of canonical pairs, whatever the rotation
    np.testing.assert_allclose(found[:2, :2], np.eye(2), atol=0.05)


@pytest.mark.parametrize("columns", [2, 10, 40])
def test_chance_seldom_makes_canonical_correlations_as_large(columns: int):
    rng, above = np.random.default_rng(columns), 0
    for _ in range(40):
        x, y = rng.standard_normal((2, 400, columns))
        above += correlating_pairs(fit_gaussian(x, y)) > 0
    assert above <= 4
    assert largest_by_chance(400, columns, columns) > largest_by_chance(4000, columns, columns)


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_not_linked_among_linked_ones_do_not_look_normal(seed: int):
    linked, mixed = tasks.gaussian_pairs(5, correlation=0.64), tasks.inliers(5, 0.2)  # of equal correlations
    assert pairs_are_normal(np.hstack(linked.sample(4000, seed)))
    assert not pairs_are_normal(np.hstack(mixed.sample(4000, seed)))


def test_the_default_reads_them_where_a_gaussian_is_not_refuted_but_does_not_fit():
    """The Gaussian copula of these correlations has 0.53 nats, which held-out rows confirm; there are 0.64."""
    task = tasks.inliers(5, 0.2)
    x, y = task.sample(4000, seed=1)
    found = estimate(x, y, seed=1, settings=FAST)
    assert abs(found.nats - task.mi_nats) < 2 * found.standard_error < 0.3
    assert found.nats > 0.57
