"""Discrete, rounded, tied and mixed columns are read near the information of their tables."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from flatclr.mi import FAST, FitSettings, estimate, tasks
from flatclr.mi.columns import dithered
from flatclr.mi.levels import blurred_nats
from flatclr.mi.splits import splits


def binary_nats(distance: float) -> float:
    """Information of a fair sign about N(sign * distance, 1), by quadrature."""
    t = np.linspace(-10, 10 + distance, 20_001)
    density = np.exp(-((t - distance) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(density * -np.log(0.5 + 0.5 * np.exp(-2 * distance * t))) * (t[1] - t[0]))


@pytest.mark.parametrize("swap", [False, True], ids=["y", "x"])
def test_the_default_classifies_a_discrete_variable_beside_many_columns(swap: bool):
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(4000, 2))
    rows = rng.normal(size=(4000, 14))
    rows[:, [0, 5]] += 1.5 * (2 * signs - 1)
    truth = 2 * binary_nats(1.5)
    settings = FitSettings(steps=400, hidden=64)

    result = estimate(signs, rows, settings=settings) if swap else estimate(rows, signs, settings=settings)

    assert (result.method, result.kind) == ("classifier", "lower")
    assert "4 classes" in result.reason
    assert result.runner_up.startswith("the gaussian copula ")
    assert truth - 0.05 - 3 * result.standard_error < result.nats < truth + 3 * result.standard_error
    assert result.ceiling_nats == pytest.approx(2 * math.log(2), abs=0.01)
    assert math.log(800) == pytest.approx(result.limits.distribution_free_nats)


def test_a_classifier_of_the_default_is_cross_fitted_where_folds_are_asked_for():
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(600, 1))
    rows = rng.normal(size=(600, 14))
    rows[:, [0]] += 1.5 * (2 * signs - 1)

    result = estimate(rows, signs, folds=3, settings=FitSettings(steps=50, hidden=16))

    assert (result.method, result.kind, result.limits.rows) == ("classifier", "lower", 600)
    assert not result.limits.ceiling_hides
    assert abs(result.nats - binary_nats(1.5)) < 0.1 + 3 * result.standard_error


def test_a_parity_of_bits_is_seen_whole_and_never_above_the_entropy():
    bits = np.random.default_rng(1).integers(2, size=(3000, 12))
    parity = bits[:, 0] ^ bits[:, 1]

    result = estimate(bits, parity, settings=FitSettings(steps=600, hidden=64))

    entropy = -sum(p * math.log(p) for p in (parity.mean(), 1 - parity.mean()))
    assert entropy - 0.01 < result.nats <= entropy
    assert not any("ceiling" in warning for warning in result.warnings)


@pytest.mark.parametrize(("dim", "expected"), [(1, "gaussian"), (8, "gaussian")])
def test_rounded_columns_are_taken_for_continuous_ones(dim: int, expected: str):
    task = tasks.gaussian_dense(dim)
    x, y = (np.round(v, 2) for v in task.sample(3000, seed=0))

    result = estimate(x, y, settings=FAST)

    assert result.method == expected
    assert "discrete or tied" in result.warnings[0]
    assert abs(result.nats - task.mi_nats) < 4 * result.standard_error


def test_rounded_columns_that_no_family_fits_get_neighbours():
    x, y = (np.round(v, 2) for v in tasks.additive_uniform(0.3).sample(3000, seed=0))

    result = estimate(x, y, settings=FAST)

    assert result.method == "ksg"
    assert "digits at random" in result.reason
    assert result.nats == pytest.approx(tasks.additive_uniform(0.3).mi_nats, abs=0.06)
    assert estimate(x, y, "mixed_ksg").nats > result.nats + 0.06  # of lattice points with few rows each


def test_dithering_keeps_the_order_of_levels_and_leaves_continuous_columns_alone():
    rows = np.random.default_rng(0).normal(size=(500, 2))
    rows[:, 0] = np.round(rows[:, 0], 1)
    moved = dithered(rows, np.random.default_rng(1))

    levels = np.unique(rows[:, 0])
    np.testing.assert_array_equal(levels[np.searchsorted(levels, moved[:, 0], "right") - 1], rows[:, 0])
    assert len(np.unique(moved[:, 0])) == 500
    np.testing.assert_array_equal(moved[:, 1], rows[:, 1])


def test_wide_tables_of_few_places_are_counted():
    rng = np.random.default_rng(0)
    bits = rng.integers(2, size=(3000, 3))
    wide = np.stack([bits @ weights for weights in itertools.product((0, 1, 3), repeat=3) if any(weights)], 1)
    y = bits[:, 0] ^ (rng.uniform(size=3000) < 0.1)
    truth = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)

    result = estimate(wide, y)

    assert result.method == "mixed_ksg"
    assert "16 places" in result.reason
    assert abs(result.nats - truth) < 4 * result.standard_error


@pytest.mark.parametrize("width", [4, 8])
def test_mixed_columns_on_both_sides_get_a_lower_bound_near_the_truth(width: int):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4000, width))
    y[:, 1] = 0.8 * x[:, 1] + 0.6 * y[:, 1]
    bit, flipped = rng.integers(2, size=4000), rng.uniform(size=4000) < 0.1
    x[:, 0], y[:, 0] = bit, bit ^ flipped
    truth = -0.5 * math.log(1 - 0.64) + math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)

    result = estimate(x, y, settings=FAST)

    assert (result.method, result.kind) == ("infonce, anchored on gaussian", "lower")
    assert "tied values" in result.reason
    assert truth - 0.1 - 3 * result.standard_error < result.nats < truth + 3 * result.standard_error


def test_a_rare_level_that_the_training_rows_miss_breaks_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1000, 3)), rng.normal(size=(1000, 1))
    x[:, 1], x[:, 2] = 0, 0
    unseen = next(splits(1000, seed=0)).evaluation
    x[unseen[0], 1], x[unseen[1], 2] = 1, 1

    for method in ("auto", "infonce", "dv", "flatnce", "ba", "club", "gaussian", "student", "spiral"):
        result = estimate(x, y, method, settings=FitSettings(steps=5, hidden=4))
        assert math.isfinite(result.nats)
        assert method == "club" or abs(result.nats) < 0.2


def likert(rng: np.random.Generator, rows: int, items: int) -> np.ndarray:
    return rng.integers(1, 6, size=(rows, items))


INDEPENDENT = {
    "three items each": lambda rng, n: (likert(rng, n, 3), likert(rng, n, 3)),
    "two items each": lambda rng, n: (likert(rng, n, 2), likert(rng, n, 2)),
    "counts in five columns each": lambda rng, n: rng.poisson(3, size=(2, n, 5)),
    "counts": lambda rng, n: rng.poisson(10, size=(2, n)),
    "twenty levels": lambda rng, n: rng.integers(20, size=(2, n)),
    "forty levels": lambda rng, n: rng.integers(40, size=(2, n)),
    "eighty levels": lambda rng, n: rng.integers(80, size=(2, n)),
    "forty levels and a normal": lambda rng, n: (rng.integers(40, size=n), rng.normal(size=n)),
    "one of three columns": lambda rng, n: (np.c_[rng.integers(40, size=n), rng.normal(size=n)], rng.normal(size=n)),
    "zeros": lambda rng, n: np.maximum(rng.normal(size=(2, n)), 0),
    "rounded": lambda rng, n: rng.normal(size=(2, n)).round(1),
}


@pytest.mark.parametrize("rows", [1000, 3000])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_tied_columns_share_nothing(name: str, rows: int):
    for seed in (0, 1):
        result = estimate(*INDEPENDENT[name](np.random.default_rng(seed), rows), settings=FAST)

        assert result.nats < 3 * result.standard_error + 0.01
        assert result.nats > -0.05  # a lower bound of what was learned in vain


def table_nats(table: np.ndarray) -> float:
    """Information of a joint table of probabilities."""
    outer = table.sum(1, keepdims=True) * table.sum(0, keepdims=True)
    seen = table > 0
    return float(np.sum(table[seen] * np.log(table[seen] / outer[seen])))


def drawn(table: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    place = np.random.default_rng(seed).choice(table.size, rows, p=table.ravel())
    return np.unravel_index(place, table.shape)


def channel(levels: int) -> np.ndarray:
    """Codes without order: a permutation, but any code with probability 0.3."""
    order = np.random.default_rng(1).permutation(levels)
    return (0.7 * np.eye(levels)[order] + 0.3 / levels) / levels


def rounded_normals(digits: int, correlation: float = 0.8) -> np.ndarray:
    """Probabilities of the places that two rounded normals meet in, by a fine grid along x."""
    step = 10.0**-digits
    edges = np.arange(-5, 5 + 2 * step, step) - step / 2
    inside = np.linspace(0, step, 41)[:-1] + step / 80
    x = edges[:-1, None] + inside
    scale = math.sqrt(1 - correlation**2)
    below = norm.cdf((edges[:, None, None] - correlation * x) / scale)
    table = (np.diff(below, axis=0) * norm.pdf(x)).mean(2).T
    return table / table.sum()


TABLES: dict[str, tuple[Callable[[], np.ndarray], int]] = {
    "few places": (lambda: np.random.default_rng(0).dirichlet(np.full(48, 0.5)).reshape(6, 8), 1500),
    "forty codes": (lambda: channel(40), 2000),
    "hundred codes": (lambda: channel(100), 3000),
    "rounded to whole numbers": (lambda: rounded_normals(0), 1000),
    "rounded to tenths": (lambda: rounded_normals(1), 500),
    "rounded to tenths, more rows": (lambda: rounded_normals(1), 3000),
    "rounded to hundredths": (lambda: rounded_normals(2), 2000),
}


@pytest.mark.parametrize("name", TABLES)
def test_discrete_pairs_are_read_near_the_information_of_their_table(name: str):
    make_table, rows = TABLES[name]
    table = make_table()
    for seed in (0, 1):
        result = estimate(*drawn(table, rows, seed), settings=FAST)

        assert abs(result.nats - table_nats(table)) < 3 * result.standard_error + 0.02


def codes(levels: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """A code without order, a normal around its mean, and their information by quadrature."""
    means = np.random.default_rng(7).normal(size=levels)
    rng = np.random.default_rng(seed)
    code = rng.integers(levels, size=rows)
    t = np.linspace(-6, 6, 6001)
    density = norm.pdf(t[:, None], means, 0.3).mean(1)
    nats = float(-np.sum(density * np.log(density)) * (t[1] - t[0]) - norm.entropy(scale=0.3))
    return code, means[code] + 0.3 * rng.normal(size=rows), nats


@pytest.mark.parametrize(("levels", "rows"), [(10, 500), (45, 1000), (55, 1000), (100, 1000), (100, 10_000)])
def test_codes_need_no_order_and_may_be_one_hot(levels: int, rows: int):
    code, y, truth = codes(levels, rows, seed=0)
    result = estimate(code, y)

    assert abs(result.nats - truth) < 3 * result.standard_error + 0.02
    assert "same levels" in result.reason
    assert not any("ordered" in warning for warning in result.warnings)
    if levels <= 55:
        assert estimate(np.eye(levels)[code], y).nats == pytest.approx(result.nats, abs=1e-9)


@pytest.mark.slow
def test_codes_with_few_rows_each_are_taken_as_ordered_unless_they_are_one_hot():
    code, y, truth = codes(400, 1000, seed=0)
    result, one_hot = estimate(code, y), estimate(np.eye(400)[code], y)

    (warning,) = [w for w in result.warnings if "ordered" in w]
    assert warning.startswith("1 tied column(s) have too many levels")
    assert "one-hot encode" in warning
    assert result.nats < truth / 2
    assert not any("ordered" in w for w in one_hot.warnings)
    assert abs(one_hot.nats - truth) < 3 * one_hot.standard_error + 0.02


@pytest.mark.parametrize("rows", [1000, 3000])
def test_a_column_with_many_zeros_is_read_near_the_truth(rows: int):
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, rows))
    y = 0.8 * x + 0.6 * noise
    a, b = np.meshgrid(np.linspace(0.01, 5.99, 300), np.linspace(-6, 6, 601), indexing="ij")
    above = norm.pdf(a) * norm.pdf(b, 0.8 * a, 0.6)
    at_zero = norm.cdf(0, 0.8 * b[0], 0.6) * norm.pdf(b[0])
    truth = 0.02**2 * np.sum(above * np.log(above / (norm.pdf(a) * norm.pdf(b))))
    truth += 0.02 * np.sum(at_zero * np.log(at_zero / (0.5 * norm.pdf(b[0]))))

    result = estimate(np.maximum(x, 0), y)

    assert abs(result.nats - truth) < 3 * result.standard_error + 0.02


@pytest.mark.parametrize(("rows", "near"), [(1000, 0.1), (10_000, 0.03)])
def test_rounded_copies_are_counted_before_they_are_dithered(rows: int, near: float):
    x = np.random.default_rng(0).normal(size=rows).round(2)
    result = estimate(x, -x)

    assert "counted" in result.reason
    assert result.nats == pytest.approx(norm.entropy() + math.log(100), abs=near)


def test_dithering_does_not_repeat_the_draws_that_made_the_rows():
    draws = np.random.default_rng(0).uniform(size=(2, 2000))

    result = estimate(*np.floor(40 * draws), seed=0)

    assert result.nats < 3 * result.standard_error


@pytest.mark.parametrize(("columns", "levels"), [(1, 6), (3, 6), (2, 20)])
def test_levels_that_continuous_columns_determine_are_within_their_error(columns: int, levels: int):
    """y is the level of x, so that they share its entropy; neighbours read 9 % low in 216 places, 6 % in 400."""
    x = np.random.default_rng(0).uniform(size=(10_000, columns))
    result = estimate(x, np.floor(levels * x), settings=FAST)

    assert result.method == "mixed_ksg"
    assert abs(result.nats - columns * math.log(levels)) < 3 * result.standard_error


@pytest.mark.slow
def test_levels_too_many_for_neighbours_are_within_their_error_of_densities():
    """Densities that see no steps read half a nat a column less, 9.0 of 10.0 nats, with an error of 0.2."""
    x = np.random.default_rng(0).uniform(size=(10_000, 2))
    result = estimate(x, np.floor(148 * x))

    assert result.method == "doe"
    assert abs(result.nats - 2 * math.log(148)) < 0.3
    assert result.standard_error > 0.4


@pytest.mark.parametrize("noise", [0.001, 0.2, 0.5, 1.0, 2.0])
def test_what_smooth_densities_miss_of_levels_is_within_the_half_that_is_in_doubt(noise: float):
    """Level of (u + noise z), u uniform over 60 levels, dithered: its information by sums, and without its steps."""
    parts, levels = 200, np.arange(-15, 16)
    fractions = (np.arange(parts) + 0.5) / parts
    chances = np.diff(norm.cdf((np.append(levels, 16)[:, None] - fractions) / noise), axis=0)
    entropy_nats = -np.sum(chances * np.log(np.maximum(chances, 1e-300))) / parts
    # the distance of the dithered level from u is level + dither - fraction, on the same grid
    distances = np.zeros(parts * (len(levels) + 1))
    for part, chance in enumerate(chances.T):
        distances[parts - 1 - part : -1 - part] += np.repeat(chance, parts) / parts
    blurred_entropy_nats = -np.sum(distances * np.log(np.maximum(distances, 1e-300))) / parts
    u = np.random.default_rng(0).uniform(size=(60_000, 1))

    missed = blurred_nats(u, np.floor(60 * u), math.log(60) - blurred_entropy_nats)

    assert abs(missed - (blurred_entropy_nats - entropy_nats)) < missed / 2
