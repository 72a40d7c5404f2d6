"""Finished runs of a study with made-up numbers, for its judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from flatclr.studies import Found, Kept, Plan, Run, Study
from flatclr.studies.judging import Verdict
from flatclr.studies.pages import judge

Accuracy = Callable[[Run], float]
NOISE = (0.0, 0.001, -0.001, 0.0005)  # of seeds, shares of 1


def planned(study: Study, found: Found, *, seeds: int | None = None) -> list[Run]:
    return study.plan(Plan(range(study.seeds if seeds is None else seeds), False, found, study.options))


def finished(study: Study, numbers: Callable[[Run], Mapping[str, Any]], *, seeds: int | None = None) -> Found:
    """All that is planned, one round after another, until nothing more is."""
    found = Found()
    while True:
        runs = planned(study, found, seeds=seeds)
        there = Found([kept_of(run, numbers(run)) for run in runs])
        if len(there) <= len(found):
            assert len(there) == len(found), "a plan took back what it had seen"
            return there
        found = there


def kept_of(run: Run, numbers: Mapping[str, Any], **environment: Any) -> Kept:
    return Kept(run.name, run.arm, run.seed, run.settings, dict(numbers), 1.0, environment)


def accuracies(of: Accuracy, *names: str) -> Callable[[Run], dict[str, Any]]:
    """The same accuracy by every protocol, a little apart by seed; a run without one was stopped."""

    def numbers(run: Run) -> dict[str, Any]:
        value = of(run)
        if math.isnan(value):
            return {
                "stopped": "not finite",
                "log": [],
                "evaluations": [],
                "minutes": 1.0,
                **dict.fromkeys(names, value),
            }
        value += NOISE[run.seed % len(NOISE)]
        log = [{"step": 1, "epoch": 1.0, "ess": 0.2, "alignment": 0.5, "uniformity": -2.0}]
        evaluations = [{"step": 1, "epoch": 1.0, "minutes": 1.0, **dict.fromkeys(names, value)}]
        return {"log": log, "evaluations": evaluations, "minutes": 1.0, **dict.fromkeys(names, value)}

    return numbers


def verdicts(study: Study, found: Found) -> list[Verdict]:
    """Of every claim; table, figure and notes are made too, which must not fail."""
    study.table(found)
    study.draw(found)
    study.notes(found)
    return judge(study, planned(study, found), found)
