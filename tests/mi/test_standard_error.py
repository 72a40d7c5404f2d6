"""A standard error is the spread over fresh rows, and covers as promised."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.mi import FAST, estimate, tasks
from flatclr.mi.arrays import as_tensor
from flatclr.mi.critics import make_critic
from flatclr.mi.density import Conditional
from flatclr.mi.fit import fit
from flatclr.mi.methods import VARIATIONAL
from tests.support.mi import FIXED


@pytest.mark.parametrize("method", ["infonce", "dv", "js"])
def test_the_standard_error_covers_as_promised(method: str):
    """The reading of a fixed critic is off by more than two standard errors in about 5 % of samples."""
    critic = make_critic("anchored", 1, 1, hidden=4, copula=_population_copula())
    reader = VARIATIONAL[method](critic, 1, 1, 4)
    task = tasks.gaussian_pairs(1, pairs=1, correlation=0.7)
    off = []
    for seed in range(300):
        x, y = (torch.from_numpy(v).float() for v in task.sample(200, seed))
        reading = reader.read(x, y)
        off.append((reading.nats - task.mi_nats) / reading.standard_error)

    spread = np.std(off)
    assert spread == pytest.approx(1, abs=0.2)
    assert np.mean(np.abs(off) < 2) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def _population_copula() -> flatclr.mi.copula.Copula:
    fitted = flatclr.mi.copula.fit_gaussian(*tasks.gaussian_pairs(1, pairs=1, correlation=0.7).sample(100, seed=0))
    return flatclr.mi.copula.Copula(**{**vars(fitted), "correlation": np.array([[1, 0.7], [0.7, 1]])})


@pytest.mark.parametrize("method", FIXED)
def test_plug_in_and_neighbour_errors_cover_too(method: str):
    task = tasks.gaussian_pairs(1, pairs=1, correlation=0.6)
    results = [estimate(*task.sample(400, seed), method) for seed in range(40)]
    off = [(result.nats - task.mi_nats) / result.standard_error for result in results]

    assert np.mean(np.abs(off) < 2) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 40)


@pytest.mark.parametrize(("d", "rows"), [(25, 110), (15, 100), (5, 400)])
def test_the_gaussian_standard_error_is_its_spread_also_with_few_rows_for_the_width(d: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    results = [estimate(rng.normal(size=(rows, d)), rng.normal(size=(rows, d)), "gaussian") for _ in range(40)]
    spread = np.std([result.nats for result in results])
    assert spread < 1.5 * np.median([result.standard_error for result in results])


RUN_BY_HAND = [
    pytest.param(method, marks=pytest.mark.slow) for method in ("tuba", "flo", "smile", "interpolated", "nwj")
]


@pytest.mark.parametrize("method", ["club", "l1out", "infonce", *RUN_BY_HAND])
def test_a_trained_methods_standard_error_is_the_spread_over_fresh_rows(method: str) -> None:
    """One fit, read on many fresh samples: what the standard error of an evaluation split has to be."""
    task = tasks.gaussian_pairs(2, pairs=2, correlation=0.8)
    x, y = (as_tensor(v) for v in task.sample(1000, seed=0))
    generator = torch.Generator().manual_seed(0)
    reader: Any
    if method in ("club", "l1out"):
        learner = Conditional(x[:600], y[:600], hidden=32)
        fit(learner, (x[:600], y[:600]), (x[600:], y[600:]), FAST, generator)
        reader = partial(learner.read, method, entropy_nats=0.0)
    else:
        critic = make_critic("separable", 2, 2, hidden=32, copula=None)
        trained = VARIATIONAL[method](critic, 2, 2, 32)
        fit(trained, (x[:600], y[:600]), (x[600:], y[600:]), FAST, generator)
        reader = trained.read
    draws = 30 if method == "interpolated" else 60  # its jackknife takes twenty readings each
    readings = [reader(*(as_tensor(v) for v in task.sample(400, seed=seed))) for seed in range(1, draws + 1)]
    ratio = np.std([r.nats for r in readings]) / np.median([r.standard_error for r in readings])
    assert 0.7 < ratio < 1.4  # the spread of 60 draws is known to about a tenth, of 30 to an eighth
