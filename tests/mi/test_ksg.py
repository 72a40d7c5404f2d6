"""Nearest-neighbour estimators against loops over all pairs."""

import math

import numpy as np
import pytest
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_classif

from flatclr.mi import ksg, tasks
from flatclr.mi.arrays import Array
from flatclr.mi.levels import count_terms


def distances(rows: Array) -> Array:
    return np.abs(rows[:, None] - rows[None]).max(2)


def oracle(x: Array, y: Array, k: int, variant: str) -> list[float]:
    """Each row's term by sorting all its distances."""
    d_x, d_y = distances(x), distances(y)
    joint, rows = np.maximum(d_x, d_y), range(len(x))
    terms = []
    for i in rows:
        others = sorted((j for j in rows if j != i), key=lambda j: joint[i, j])
        nearest, radius = others[:k], joint[i, others[k - 1]]
        if variant == "ksg_1":
            n_x, n_y = (sum(d[i, j] < radius for j in others) for d in (d_x, d_y))
            terms.append(digamma(k) + digamma(len(x)) - digamma(n_x + 1) - digamma(n_y + 1))
        elif variant == "ksg_2":
            n_x, n_y = (sum(d[i, j] <= max(d[i, j] for j in nearest) for j in others) for d in (d_x, d_y))
            terms.append(digamma(k) - 1 / k + digamma(len(x)) - digamma(n_x) - digamma(n_y))
        else:
            same = k if radius > 0 else sum(joint[i, j] == 0 for j in rows)
            n_x, n_y = (sum(d[i, j] < radius or d[i, j] == radius == 0 for j in rows) for d in (d_x, d_y))
            terms.append(digamma(same) + math.log(len(x)) - digamma(n_x) - digamma(n_y))
    return terms


@pytest.mark.parametrize("variant", ["ksg_1", "ksg_2", "mixed_ksg"])
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("task", [tasks.gaussian_pairs(1, pairs=1), tasks.gaussian_dense(2, 3)], ids=["1v1", "2v3"])
def test_every_term_equals_the_loop_over_pairs(variant: str, k: int, task: tasks.Task):
    x, y = task.sample(60, seed=k)

    np.testing.assert_allclose(getattr(ksg, variant)(x, y, k), oracle(x, y, k, variant))


def test_counts_are_strict_where_a_sorted_column_would_round():
    x, y = tasks.gaussian_pairs(1, pairs=1).sample(60, seed=0)
    x = x + 1e6  # sums of a value and a radius round here; differences do not

    np.testing.assert_allclose(ksg.ksg_1(x, y, 3), oracle(x, y, 3, "ksg_1"))


@pytest.mark.parametrize(
    "task", [tasks.discrete_uniform(3), tasks.zero_inflated_poisson(0.3)], ids=["discrete", "poisson"]
)
def test_mixed_terms_equal_the_loop_where_values_repeat(task: tasks.Task):
    x, y = task.sample(70, seed=1)

    np.testing.assert_allclose(ksg.mixed_ksg(x, y, 3), oracle(x, y, 3, "mixed_ksg"))
    np.testing.assert_allclose(ksg.mixed_ksg(x, x.copy(), 3), oracle(x, x, 3, "mixed_ksg"))


@pytest.mark.parametrize("variant", ["ksg_1", "ksg_2", "mixed_ksg"])
@pytest.mark.parametrize(
    "task",
    [tasks.gaussian_pairs(1, pairs=1, correlation=0.75), tasks.additive_uniform(0.2)],
    ids=["normal", "additive"],
)
def test_one_dimensional_tasks_are_read_to_four_standard_errors(variant: str, task: tasks.Task):
    terms = getattr(ksg, variant)(*task.sample(4000, seed=0), 3)

    assert abs(terms.mean() - task.mi_nats) < 4 * terms.std() / math.sqrt(len(terms)) + 0.01


@pytest.mark.parametrize(
    "task", [tasks.discrete_uniform(5), tasks.zero_inflated_poisson(0.15)], ids=["discrete", "poisson"]
)
def test_mixed_tasks_are_read_to_four_standard_errors(task: tasks.Task):
    terms = ksg.mixed_ksg(*task.sample(4000, seed=0), 3)

    assert abs(terms.mean() - task.mi_nats) < 4 * terms.std() / math.sqrt(len(terms)) + 0.01


@pytest.mark.parametrize("variant", ["ksg_1", "ksg_2", "mixed_ksg"])
def test_independent_variables_share_nothing(variant: str):
    x, y = np.random.default_rng(0).normal(size=(2, 2000, 2))
    terms = getattr(ksg, variant)(x, y, 3)

    assert abs(terms.mean()) < 4 * terms.std() / math.sqrt(len(terms))


def test_more_neighbours_than_rows_are_refused():
    x, y = tasks.gaussian_pairs(1, pairs=1).sample(10, seed=0)

    with pytest.raises(ValueError, match="k must be a whole number >= 1 and <= 9, got 10; 3 to 10 are usual"):
        ksg.ksg_1(x, y, 10)


def level_oracle(x: Array, y: Array, x_levels: Array, y_levels: Array, k: int) -> list[float]:
    """Each row's term among the rows of its levels by sorting all distances, which are infinite between levels."""
    d_x = np.where(x_levels[:, None] == x_levels, distances(x), np.inf)
    d_y = np.where(y_levels[:, None] == y_levels, distances(y), np.inf)
    joint, terms = np.maximum(d_x, d_y), []
    for i in range(len(x)):
        others = np.sort(np.delete(joint[i], i))
        near = min(k, int(np.isfinite(others).sum()))
        if near:
            n_x, n_y = (int((d[i] < others[near - 1]).sum()) for d in (d_x, d_y))
            terms.append(digamma(near) + math.log(len(x)) - digamma(n_x) - digamma(n_y))
    return terms


@pytest.mark.parametrize("k", [1, 3])
def test_terms_among_the_same_levels_equal_the_loop_even_where_a_level_has_few_rows(k: int):
    rng = np.random.default_rng(k)
    x, y = rng.normal(size=(80, 1)), rng.normal(size=(80, 2))
    x_levels, y_levels = rng.integers(3, size=80), rng.poisson(1, size=80)
    expected = level_oracle(x, y, x_levels, y_levels, k)

    assert len(expected) < 80  # some rows are alone
    np.testing.assert_allclose(ksg.same_level_ksg(x, y, x_levels, y_levels, k), expected)


def test_levels_against_one_column_are_read_as_scikit_learn_reads_them():
    rng = np.random.default_rng(0)
    label = rng.integers(8, size=400)
    y = rng.normal(size=(400, 1)) + 0.3 * label[:, None]
    terms = ksg.same_level_ksg(np.zeros((400, 0)), y, label, np.zeros(400, int), 3)

    (expected,) = mutual_info_classif(y, label, discrete_features=False, n_neighbors=3, random_state=0)
    assert terms.mean() + digamma(400) - math.log(400) == pytest.approx(expected, abs=1e-8)  # it adds a little noise


def test_the_names_of_levels_do_not_matter():
    rng = np.random.default_rng(0)
    label, y = rng.integers(9, size=300), rng.normal(size=(300, 1))
    nothing, same = np.zeros((300, 0)), np.zeros(300, int)

    renamed = rng.permutation(9)[label]
    np.testing.assert_allclose(
        ksg.same_level_ksg(nothing, y, label, same), ksg.same_level_ksg(nothing, y, renamed, same)
    )


def test_counts_equal_the_recursion_of_their_digamma():
    """G(1) = -gamma - ln 2, G(2) = 2 + G(1), G(2n + 1) = G(2n), G(2n + 2) = G(2n) + 2 / (2n + 1)."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(4, size=200), rng.poisson(2, size=200)
    value = [math.nan, -np.euler_gamma - math.log(2), 2 - np.euler_gamma - math.log(2)]
    while len(value) <= 200:
        n = len(value)
        value.append(value[n - 1] if n % 2 else value[n - 2] + 2 / (n - 1))

    expected = [
        value[int(((x == a) & (y == b)).sum())]
        + math.log(200)
        - value[int((x == a).sum())]
        - value[int((y == b).sum())]
        for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(count_terms(x, y), expected)
