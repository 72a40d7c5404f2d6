"""Where one variable determines the other, no finite number is given a small error."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from flatclr.mi import FAST, FitSettings, estimate, tasks
from flatclr.mi.continuous import Look, _without_noise
from flatclr.mi.noiseless import exact_relation, function_found, keeps_rising

Rows = NDArray[np.float64]
FUNCTIONS = {"sine": lambda v: np.sin(5 * v), "square": np.square}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_noise_may_have_infinite_information(name: str):
    x = np.random.default_rng(0).normal(size=(1000, 1))

    result = estimate(x, FUNCTIONS[name](x), settings=FAST)

    assert math.isinf(result.standard_error)
    assert any("may be infinite" in warning for warning in result.warnings)
    assert "without an upper limit" in result.sentence()
    assert result.to_dict()["standard_error"] is None


@pytest.mark.slow
def test_a_critic_that_sees_more_of_a_sine_than_neighbours_do_explains_nothing():
    """It rises with the rows as they do: 2.9 +- 1.2 once had no warning."""
    x = np.random.default_rng(1).normal(size=(1000, 1))

    result = estimate(x, np.sin(5 * x))

    assert result.method.startswith("infonce")
    assert math.isinf(result.standard_error)
    assert any("may be infinite" in warning for warning in result.warnings)


def test_what_sees_more_than_neighbours_explains_their_rise_unless_it_rises_too():
    def look(nats: float, gain_nats: float | None) -> Look:
        return Look("a look", nats, 0.03, lambda: pytest.fail("nothing is to be finished"), gain_nats)

    near = look(2.2, 1.15)
    assert _without_noise(near, near)
    assert _without_noise(near, look(2.5, 1.2))
    assert not _without_noise(near, look(2.5, 0.1))
    assert _without_noise(near, look(2.5, None))  # nobody knows whether it has ceased to rise
    assert _without_noise(near, look(2.25, 0.1))  # no clear more
    assert not _without_noise(look(2.2, 0.1), look(2.1, 1.2))


@pytest.mark.parametrize("method", ["gaussian", "ksg", "auto"])
def test_a_monotone_or_linear_law_is_infinite_by_any_method(method: str):
    x = np.random.default_rng(0).normal(size=(300, 2))

    for y, told in ((np.exp(x[:, :1]), "a column in common"), (x.sum(1), "a linear combination in common")):
        result = estimate(x, y, method, settings=FitSettings(steps=0, hidden=4))
        assert math.isinf(result.standard_error)
        assert any(told in warning and "infinite" in warning for warning in result.warnings)


def test_a_little_noise_is_no_exact_relation():
    x, noise = np.random.default_rng(0).normal(size=(2, 500, 3))

    assert exact_relation(x, x + 1e-3 * noise) == ""
    assert exact_relation(x, x @ np.ones((3, 2)) + np.array([0.0, 1.0])) == "a linear combination in common"


def test_copies_of_a_discrete_column_share_its_entropy():
    coin = np.random.default_rng(0).integers(2, size=400).astype(float)

    result = estimate(coin, coin)

    assert math.isfinite(result.standard_error)
    assert result.nats == pytest.approx(math.log(2), abs=0.02)


def test_noise_that_the_rows_resolve_does_not_count_as_none():
    result = estimate(*tasks.additive_uniform(0.1).sample(2000, seed=0), settings=FAST)

    assert math.isfinite(result.standard_error)
    assert not keeps_rising(2.0, 1.4, error=0.05)


def beside(*columns: Rows) -> Rows:
    return np.column_stack(columns)


# of normal a, b, noise and a code of five levels
DETERMINED: dict[str, Callable[[Rows, Rows, Rows, Rows], tuple[Rows, Rows]]] = {
    "a code beside y": lambda a, b, noise, code: (beside(a), beside(a**2, code)),
    "a code beside x, a rounded column beside y": lambda a, b, noise, code: (
        beside(a, code),
        beside(a**2, np.round(a + 0.5 * noise)),
    ),
    "x of y": lambda a, b, noise, code: (beside(a**2, code), beside(a, noise)),
    "within levels": lambda a, b, noise, code: (beside(a, code), beside((code - 2) * a**2 + noise * (code == 2), b)),
    "straight within levels": lambda a, b, noise, code: (beside(a), beside(np.sign(code - 2.5) * a, code)),
    "of two columns": lambda a, b, noise, code: (beside(a, b, code), beside(a * b, noise)),
}
NOISY: dict[str, Callable[[Rows, Rows, Rows, Rows], tuple[Rows, Rows]]] = {
    "independent": lambda a, b, noise, code: (beside(a, code), beside(b, noise)),
    "heavy tails": lambda a, b, noise, code: (beside((a / b) ** 3, code), beside(1 / noise)),
    "a line": lambda a, b, noise, code: (beside(a, code), beside(a + 0.01 * noise, np.round(b))),
    "a line after monotone maps": lambda a, b, noise, code: (beside(np.exp(a)), beside((a + 1e-3 * noise) ** 3, code)),
    "a square": lambda a, b, noise, code: (beside(a, code), beside(a**2 + 0.01 * noise, b)),
    "a product": lambda a, b, noise, code: (beside(a, b, code), beside(a * b + 0.01 * noise)),
    "codes": lambda a, b, noise, code: (beside(code), beside((code + np.round(b)) % 5)),
    "rounded": lambda a, b, noise, code: (beside(np.round(a, 1), code), beside(np.round(a**2, 1))),
    "many zeros": lambda a, b, noise, code: (
        beside(np.where(b < 0, 0, a), code),
        beside(np.where(b < 0, 0, a**2 + 0.01 * noise), noise),
    ),
}


def draw(rows: int, seed: int) -> tuple[Rows, Rows, Rows, Rows]:
    rng = np.random.default_rng([seed, rows])
    a, b, noise = rng.normal(size=(3, rows))
    return a, b, noise, rng.integers(5, size=rows).astype(float)


@pytest.mark.parametrize("name", DETERMINED)
def test_a_function_is_found_whatever_stands_beside_it(name: str):
    assert function_found(*DETERMINED[name](*draw(2000, seed=0)))


@pytest.mark.parametrize("name", NOISY)
def test_noise_of_a_hundredth_is_no_function(name: str):
    for rows in (200, 1000):
        for seed in range(3):
            assert not function_found(*NOISY[name](*draw(rows, seed)))


def test_a_code_beside_a_function_hides_no_infinite_information():
    a, _, noise, code = draw(500, seed=0)

    for x, y in ((beside(a), beside(a**2, code)), (beside(a, code), beside(a**2, np.round(a + 0.5 * noise)))):
        result = estimate(x, y)
        assert math.isinf(result.standard_error)
        assert "without an upper limit" in result.sentence()
        assert any("may be infinite" in warning for warning in result.warnings)


def test_a_noisy_column_beside_a_function_hides_no_infinite_information():
    a, _, noise, _ = draw(500, seed=0)

    result = estimate(a, beside(a**2, a + 0.5 * noise), settings=FAST, steps=100)

    assert math.isinf(result.standard_error)
    assert any("may be infinite" in warning for warning in result.warnings)
