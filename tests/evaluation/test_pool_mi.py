"""Information read from a pool of pairs: held out, and with an interval that covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from flatclr.evaluation.intervals import jackknife
from flatclr.evaluation.pool_mi import pool_mi_nats


def test_the_halves_of_the_pool_stay_when_samples_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    z_a = torch.randn(64, 8, generator=generator)
    z_b = z_a + torch.randn(64, 8, generator=generator)
    z_b[1::2] = torch.randn(32, 8, generator=generator)  # the halves are nothing alike
    chooses = torch.arange(64) % 2 == 0
    whole = pool_mi_nats(z_a, z_b, beta=8.0, chooses=chooses)
    rows = torch.arange(1, 64)  # every parity flips
    left = pool_mi_nats(z_a[rows], z_b[rows], beta=8.0, chooses=chooses[rows])
    assert left["pool_best_beta"] == whole["pool_best_beta"]
    assert left["pool_mi_best_nats"] == pytest.approx(whole["pool_mi_best_nats"], abs=0.1)
    assert pool_mi_nats(z_a[rows], z_b[rows], beta=8.0)["pool_mi_best_nats"] > whole["pool_mi_best_nats"] + 0.5


def test_mi_intervals_cover_the_mean_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    trials, samples, chooses = 40, 160, torch.arange(160) % 2 == 0

    def views() -> tuple[Tensor, Tensor]:
        z = torch.randn(samples, 6, generator=generator)
        return z, z + torch.randn(samples, 6, generator=generator)

    def bound(z_a: Tensor, z_b: Tensor, rows: Tensor) -> dict[str, float]:
        return pool_mi_nats(z_a[rows], z_b[rows], beta=4.0, chooses=chooses[rows])

    truth = sum(bound(*views(), torch.arange(samples))["pool_mi_best_nats"] for _ in range(200)) / 200
    covered = 0
    for trial in range(trials):
        pair = views()
        score = jackknife(lambda rows, pair=pair: bound(*pair, rows), samples, seed=trial)["pool_mi_best_nats"]  # type: ignore[misc]
        covered += score.low <= truth <= score.high
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_pool_mi_of_independent_views_does_not_lean_up() -> None:
    found = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        z_a, z_b = (torch.randn(128, 16, generator=generator) for _ in range(2))
        found.append(pool_mi_nats(z_a, z_b, beta=4.0)["pool_mi_best_nats"])
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert np.mean(found) < 2 * error  # the bound's expectation is at most the true 0


def test_pool_mi_reads_the_best_beta_on_samples_that_did_not_choose_it() -> None:
    z_a = torch.randn(64, 8)
    z_b = z_a + 0.5 * torch.randn(64, 8)
    found = pool_mi_nats(z_a, z_b, beta=3.0)
    shuffled_a, shuffled_b = z_a.clone(), z_b.clone()
    shuffled_b[1::2] = z_b[1::2].roll(1, 0)
    changed = pool_mi_nats(shuffled_a, shuffled_b, beta=3.0)
    assert changed["pool_best_beta"] == found["pool_best_beta"]
    assert changed["pool_mi_best_nats"] < found["pool_mi_best_nats"]
    assert found["pool_ceiling_nats"] == pytest.approx(math.log(64))


def test_a_pool_of_three_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool must have at least 4 samples, got 3"):
        pool_mi_nats(torch.randn(3, 2), torch.randn(3, 2), beta=1.0)
