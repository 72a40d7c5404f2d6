"""The log-K curse: scales are not chosen by the numbers that are judged, and every seed counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flatclr.studies import Found, Run, load_study
from flatclr.studies.experiments.log_k_curse import FLAT, SCALES, judge_best
from tests.support.made_up import finished, verdicts

STUDY = load_study("log-k-curse")
CEILING_NATS = 2.0


def made(pool_mi_nats: Callable[[Run], float], *, tied: Callable[[Run], bool] = lambda run: True) -> Found:
    """Runs with these numbers, whose last bound is 95 % of the ceiling, or half of it."""

    def numbers(run: Run) -> dict[str, Any]:
        nats, bound = pool_mi_nats(run), CEILING_NATS * (0.95 if tied(run) else 0.5)
        row = {"pool_mi_nats": nats, "batch_mi_nats": bound, "batch_ceiling_nats": CEILING_NATS}
        return {**row, "curve": [{"step": step, **row} for step in (1, 2)]}

    return finished(STUDY, numbers)


def scale_of(run: Run) -> int:
    """The place of the run's scale among those that are tried."""
    return next(place for place, scale in enumerate(SCALES) if run.arm.endswith(scale))


def is_flat(run: Run) -> bool:
    return run.arm.startswith(FLAT)


def test_luck_at_a_scale_does_not_choose_the_scale_that_it_is_judged_by() -> None:
    """Each seed of FlatNCE is lucky at a scale of its own: over seeds one of these is the best of all."""
    found = made(lambda run: 5.0 + (3.0 if is_flat(run) and scale_of(run) == run.seed else 0.0))
    gain = verdicts(STUDY, found)[2].measured
    assert gain is not None
    assert gain.value == 0


@pytest.mark.parametrize(("gain_nats", "word"), [(0.5, "held"), (-0.5, "did not hold"), (0.0, "cannot be told here")])
def test_each_objective_is_judged_at_its_own_best_scale(gain_nats: float, word: str) -> None:
    """FlatNCE is best at the third scale, InfoNCE at the first; elsewhere both are far below."""

    def pool_mi_nats(run: Run) -> float:
        is_best = scale_of(run) == (2 if is_flat(run) else 0)
        return (5.0 if is_best else 1.0) + (gain_nats if is_flat(run) else 0.0) + 0.01 * is_flat(run) * (run.seed - 1)

    verdict = verdicts(STUDY, made(pool_mi_nats))[2]
    assert verdict.word == word
    assert "(FlatNCE at beta 30, InfoNCE at beta 5)" in verdict.says


def test_one_seed_has_no_others_to_choose_its_scales_by() -> None:
    assert judge_best(made(lambda run: 5.0).first(1)).word == "cannot be told here"


@pytest.mark.parametrize("seed", range(STUDY.seeds))
def test_a_bound_that_does_not_tie_in_any_seed_refutes(seed: int) -> None:
    tied, loose = made(lambda run: 5.0), made(lambda run: 5.0, tied=lambda run: run.seed != seed)
    assert [verdicts(STUDY, found)[0].word for found in (tied, loose)] == ["held", "did not hold"]


def test_the_figure_has_a_curve_of_every_run() -> None:
    found = made(lambda run: 5.0)
    axes = STUDY.draw(found)["figure"].axes
    assert sum(len(one.lines) for one in axes) == len(found) + len(axes)  # and the ceiling of each panel
