"""A bar of finished runs, for commands that make several."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from flatclr.cli.options import HARDWARE
from flatclr.files import json_ready
from flatclr.studies import Progress
from flatclr.studies.execution import LATE
from flatclr.training.stopping import StopRequest

Jobs = Annotated[
    int, typer.Option(help="How many runs share the device, each in its own process.", rich_help_panel=HARDWARE)
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="The minutes after which no run is begun; the same command goes on later.",
        rich_help_panel=HARDWARE,
        show_default="no limit",
    ),
]
SOME_FAILED = 1  # the exit code


class RunsDisplay:
    """A bar, shown from the first run on: bad input is answered by its line alone."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Bar(*columns, console=Console(stderr=True), disable=quiet)
        self.task = self.bar.add_task(name)
        self.shown = False
        self.told: dict[str, str] = {}  # problems, by the run that had each first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.bar.stop()

    def show(self, progress: Progress) -> None:
        if not self.shown:
            self.bar.start()
            self.shown = True
        self.bar.update(self.task, completed=progress.done, total=progress.total)
        if progress.ended is None:
            return
        run, problem = progress.ended.run, progress.ended.problem
        if problem:
            first = self.told.setdefault(problem, run)
            told = problem if first == run else f"as {first}"
            self.bar.console.print(f"{run}: {told}", style="yellow", markup=False)
        elif not (self.bar.disable or self.bar.console.is_terminal):  # where a bar is shown at the end only
            line = f"{run}: {progress.ended.seconds:.0f} s, {progress.done} of {progress.total} runs"
            self.bar.console.print(line, markup=False, highlight=False)


def why(stop: StopRequest) -> str:
    """Why runs are missing that have not failed."""
    return "time is up" if stop.reason in (None, LATE) else f"stopped by {stop.reason}"


def failures(failed: Mapping[str, str], planned: int) -> str:
    """How many runs failed, why the first did, and when it helps to try again."""
    name, problem = next(iter(failed.items()))
    first = f"{name}: {problem.rstrip('.')}" if len(failed) == 1 else f"the first, {name}: {problem.rstrip('.')}"
    return f"{len(failed)} of {planned} runs failed, {first}; once that is set right, the same command makes the rest."


def print_progress(progress: Progress) -> None:
    """One JSON line for a run that has ended."""
    ended = progress.ended
    if ended is not None:
        state = {"done": progress.done, "total": progress.total, "problem": ended.problem or None}
        print_line({"kind": "run", "run": ended.run, "seconds": ended.seconds, **state})


def print_line(row: Mapping[str, Any]) -> None:
    print(json.dumps(json_ready(dict(row))), flush=True)
