"""Where one variable determines the other, no finite number is given a small error."""

import math

import numpy as np
import pytest

from flatclr.mi import FAST, FitSettings, estimate, tasks
from flatclr.mi.noiseless import exact_relation, keeps_rising

FUNCTIONS = {"sine": lambda v: np.sin(5 * v), "square": np.square}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_noise_may_have_infinite_information(name: str):
    x = np.random.default_rng(0).normal(size=(1500, 1))

    result = estimate(x, FUNCTIONS[name](x), settings=FAST)

    assert math.isinf(result.standard_error)
    assert any("may be infinite" in warning for warning in result.warnings)
    assert "without an upper limit" in result.sentence()
    assert result.to_dict()["standard_error"] is None


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
