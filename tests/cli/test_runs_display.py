"""The bar of commands that make several runs: what went wrong is told once, whole."""

import pytest

from flatclr.cli.runs_display import RunsDisplay
from flatclr.studies import Progress
from flatclr.studies.execution import Ended


def test_a_problem_that_several_runs_have_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    problems = {"a-s0": "no data", "b-s0": "no data", "c-s0": "", "d-s0": "out of memory", "e-s0": "no data"}
    with RunsDisplay("a study", quiet=True) as display:
        for done, (run, problem) in enumerate(problems.items(), 1):
            display.show(Progress(done, len(problems), Ended(run, 0.1, problem)))
    told = capsys.readouterr().err.splitlines()
    assert told == ["a-s0: no data", "b-s0: as a-s0", "d-s0: out of memory", "e-s0: as a-s0"]
