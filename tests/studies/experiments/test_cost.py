"""What pre-training costs: bills are of runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks.cifar10.kept import HOME, kept_runs
from benchmarks.cifar10.summary import times
from flatclr.studies.experiments.cost import OURS, PAGE, Measured


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.run)
def test_minutes_and_accuracies_of_a_bill_are_those_of_the_kept_run(ours: Measured) -> None:
    run = kept_runs(HOME)[ours.run]
    knn, linear = run.score("knn"), run.score("linear")
    assert knn is not None
    assert linear is not None
    assert ours.minutes == round(times(run)[-1].wall / 60, 1)
    assert (ours.knn_percent, ours.linear_percent) == (round(100 * knn.value, 1), round(100 * linear.value, 1))
    assert f"{run.config.epochs:g} epochs" in ours.what
    assert f"| {ours.run} |" in (HOME.parents[1] / PAGE).read_text(encoding="utf-8")
