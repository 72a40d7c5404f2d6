"""Where one variable determines the other, no finite number is given a small error."""

import math

import numpy as np
import pytest

from flatclr.mi import FAST, FitSettings, estimate, tasks
from flatclr.mi.continuous import Look, _without_noise
from flatclr.mi.noiseless import exact_relation, keeps_rising

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
