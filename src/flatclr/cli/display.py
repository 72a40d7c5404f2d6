"""What a person, or a program, sees while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from flatclr.checkpoint import steps_in
from flatclr.files import json_ready
from flatclr.runs import RunDirectory
from flatclr.training.events import Evaluated, Event, Finished, Logged, Started, Warned


class JsonLines:
    """One JSON object per event on standard output."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, event: Event) -> None:
        print(json.dumps(json_ready(event.row())), flush=True)

    def report(self, path: Path) -> None:
        print(json.dumps({"kind": "report", "path": str(path)}), flush=True)


class LiveDisplay:
    """A progress bar with the gauges that matter, and a line for what will not come back."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[gauges]}"),
        )
        self.progress = Progress(*columns, console=self.console)
        self.task: TaskID | None = None
        self.run: RunDirectory | None = None
        self.alarms: set[str] = set()
        self.pace = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is not None:  # a bar that was never shown ends with a line all the same
            self.progress.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self.run is not None:
            self.console.print(_how_to_go_on(self.run))

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._begin(event)
            case Logged():
                self._show_gauges(event)
            case Evaluated():
                self.console.print(f"step {event.step}: {_evaluation(event.metrics)}")
            case Warned():
                self.console.print(event.message, style="yellow")
            case Finished():
                if self.pace:
                    self.console.print(f"pace: {self.pace}")
                for path in event.encoders:
                    self.console.print(f"encoder: {path}")

    def _begin(self, event: Started) -> None:
        if event.run is not None:
            self.run = RunDirectory(event.run)
            self.console.print(f"run directory: {event.run}")
        self.progress.start()  # only now: bad input should be answered by its line alone
        self.task = self.progress.add_task("training", total=event.total_steps, completed=event.step, gauges="")

    def _show_gauges(self, event: Logged) -> None:
        assert self.task is not None
        self.progress.update(self.task, completed=event.step, gauges=_gauges(event.metrics))
        self.pace = _pace(event.metrics)
        alarms = {alarm for alarm in ("beta_clamped", "collapsed") if event.metrics.get(alarm)}
        for alarm in sorted(alarms ^ self.alarms):  # said when it begins and when it is over
            over = "" if alarm in alarms else " is over"
            self.console.print(f"step {event.step}: alarm, {alarm.replace('_', ' ')}{over}", style="yellow")
        self.alarms = alarms

    def report(self, path: Path) -> None:
        self.console.print(f"report: {path}")


def _how_to_go_on(run: RunDirectory) -> str:
    steps = steps_in(run.checkpoints)
    if not steps:
        return f"interrupted before the first checkpoint; begin anew with: flatclr train --resume {run.path}"
    return f"interrupted; from the checkpoint of step {max(steps)} go on with: flatclr train --resume {run.path}"


def _gauges(row: Mapping[str, Any]) -> str:
    waiting = f", {row['data_wait_share']:.0%} waiting for data" if row.get("data_wait_share", 0) >= 0.01 else ""
    return (
        f"loss {row['loss']:.3f}  MI {row['mi_nats']:.2f}/{row['ceiling_nats']:.2f}  ESS {row['ess']:.2f}  "
        f"beta {row['beta']:.1f}  {_pace(row)}{waiting}"
    )


def _pace(row: Mapping[str, Any]) -> str:
    return f"{row['images_per_second']:,.0f} images/s, {row['views_per_second']:,.0f} views/s"


def _evaluation(row: Mapping[str, Any]) -> str:
    parts = [f"kNN {100 * row['knn']:.1f} %"] if "knn" in row else []
    parts += [f"linear {100 * row['linear']:.1f} %"] if "linear" in row else []
    parts += [f"retrieval at 1 {100 * row['retrieval_at_1']:.1f} %"] if "retrieval_at_1" in row else []
    parts.append(f"effective rank {row['effective_rank']:.1f}")
    parts.append(f"pool MI {row['pool_mi_best_nats']:.2f} of at most {row['pool_ceiling_nats']:.2f} nats")
    return ", ".join(parts)
