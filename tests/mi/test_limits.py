"""An estimate claims only what it can: kinds, limits and warnings."""

import json
import math
import re

import numpy as np
import pytest

from flatclr.mi import FitSettings, estimate, tasks
from flatclr.mi.limits import entropy_limit_nats
from tests.support.mi import ANCHOR_ONLY, PAIR


@pytest.mark.parametrize(
    ("x", "y", "options", "warning"),
    [
        (PAIR.sample(100, 0)[0], PAIR.sample(100, 0)[1], {"method": "gaussian"}, "100 rows are few for 2 . 2 columns"),
        (np.round(PAIR.sample(600, 0)[0]), PAIR.sample(600, 0)[1], {"method": "ksg"}, "x has 2 discrete or tied"),
        (PAIR.sample(600, 0)[0], PAIR.sample(600, 0)[0], {"method": "ksg"}, "a column in common"),
        (*tasks.gaussian_with_mi(6, 6).sample(600, 0), {"method": "infonce", "settings": ANCHOR_ONLY}, "within 10 % of the method's ceiling of 4.79"),
    ],
    ids=["few", "discrete", "shared", "ceiling"],
)  # fmt: skip
def test_doubtful_estimates_come_with_a_warning(x: object, y: object, options: dict[str, object], warning: str):
    assert any(re.search(warning, given) for given in estimate(x, y, **options).warnings)


def test_conditional_densities_claim_only_what_they_can():
    quick = FitSettings(steps=2, hidden=4)
    kinds = {
        task.name: estimate(*task.sample(300, seed=0), "ba", settings=quick).kind
        for task in (tasks.gaussian_dense(3, 1), tasks.gaussian_dense(1, 3), PAIR, tasks.zero_inflated_poisson())
    }

    assert list(kinds.values()) == ["lower", "lower", "neither", "neither"]
    club, l1out = (estimate(*PAIR.sample(600, seed=0), method, settings=quick) for method in ("club", "l1out"))
    for fitted in (club, l1out):
        assert fitted.kind == "neither"
        assert "it would be an upper bound if the learned q(y | x) were the true one" in fitted.warnings[-1]


def test_a_wrong_conditional_density_reads_far_below_the_truth_and_is_not_called_an_upper_bound():
    x, noise = np.random.default_rng(0).normal(size=(2, 2000, 1))
    y = x**2 + 0.1 * noise  # the untrained q is a linear regression, which sees nothing of it

    result = estimate(x, y, "club", settings=ANCHOR_ONLY)

    assert result.nats + 10 * result.standard_error < estimate(x, y, "ksg").nats
    assert result.kind == "neither"


def test_nothing_above_ln_n_is_called_a_lower_bound():
    result = estimate(*tasks.gaussian_with_mi(12.0, dim=3).sample(600, seed=0), "dv", settings=ANCHOR_ONLY)

    assert result.nats > math.log(120)
    assert result.kind == "neither"
    assert result.lower_nats == 0
    assert any("above ln N" in warning for warning in result.warnings)


def test_values_beyond_every_exponent_are_reported_and_written():
    x = np.random.default_rng(0).normal(size=(400, 1))
    result = estimate(x, x + 1e-3 * np.random.default_rng(1).normal(size=(400, 1)), "club", settings=ANCHOR_ONLY)

    assert result.nats > 710
    assert result.limits.nwj_variance == math.inf
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["limits"]["nwj_variance"] is None


@pytest.mark.parametrize("method", ["ksg", "ksg2", "mixed_ksg"])
def test_neighbours_say_the_most_they_can_and_warn_near_it(method: str):
    x = np.random.default_rng(0).normal(size=(300, 1))
    result = estimate(x, x + 1e-9 * np.random.default_rng(1).normal(size=(300, 1)), method)

    assert result.nats == pytest.approx(result.ceiling_nats, rel=0.02)
    assert result.nats <= result.ceiling_nats + 1e-9
    assert any("method's ceiling" in warning for warning in result.warnings)


def test_draws_from_as_many_symbols_as_the_entropy_limit_hardly_ever_repeat():
    rows, k, trials = 50, 5.0, 2000
    symbols = round(math.exp(entropy_limit_nats(rows, k)))
    assert symbols == 2 * k * rows**2
    draws = np.random.default_rng(0).integers(symbols, size=(trials, rows))
    repeated = np.mean([len(set(row)) < rows for row in draws.tolist()])
    assert repeated < 1.01 / k
