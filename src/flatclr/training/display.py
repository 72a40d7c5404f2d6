"""What a person, or a program, sees while a run goes on: a bar in a terminal or notebook, lines where it is piped."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from flatclr.checkpoint import steps_in
from flatclr.files import json_ready
from flatclr.heartbeat import SILENCE_S, Heartbeat
from flatclr.runs import RunDirectory
from flatclr.training.events import Evaluated, Event, Finished, Forecast, Logged, Progressed, Started, Warned
from flatclr.training.progress import duration

LINE_S = 5.0  # between two lines about the same thing, where output is piped
PREPARING = "preparing"  # what is done before something says more


class JsonLines:
    """One JSON object per event on standard output; while nothing happens, the last `Progressed` again.

    Args:
        quiet: whether nothing is said.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet, self.shown_at = quiet, time.monotonic()
        self.last = Progressed(0, PREPARING, 0, 0)
        self.heartbeat = Heartbeat(self.alive)

    def __enter__(self) -> Self:
        if not self.quiet:
            self.heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.__exit__()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progressed):
            self.last = event
            if time.monotonic() - self.shown_at < LINE_S:
                return
        self._print(json_ready(event.row()))

    def alive(self) -> None:
        """Say what is being done, where nothing was said of late."""
        if time.monotonic() - self.shown_at >= SILENCE_S:
            self._print(self.last.row())

    def report(self, path: Path) -> None:
        self._print({"kind": "report", "path": str(path)})

    def watched(self, address: str) -> None:
        self._print({"kind": "watch", "address": address})

    def _print(self, row: Mapping[str, Any]) -> None:
        self.shown_at = time.monotonic()
        sys.stdout.write(f"{json.dumps(row)}\n")  # at once: two threads write
        sys.stdout.flush()


class Shown(Protocol):
    """How far something is, in whatever form."""

    def moved(self, what: str, done: int, total: int, gauges: str = "") -> None: ...

    def said(self) -> None:
        """Something else was said."""

    def alive(self) -> None:
        """Give a sign of life where one is due; called from another thread."""

    def stop(self) -> None: ...


class Display:
    """Tells a person what happens: what was resolved, a forecast, gauges, evaluations, and where the encoder is.

    Args:
        quiet: whether nothing is said, not even where the encoder is.
        brief: whether only that is said.
        console: where to; standard output unless given.
    """

    def __init__(self, *, quiet: bool = False, brief: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(quiet=quiet)
        self.talk = Console(quiet=True) if quiet or brief else self.console
        self.shown: Shown = Bar(self.talk) if redraws(self.talk) else Lines(self.talk)
        self.heartbeat = Heartbeat(self.shown.alive)
        self.run: RunDirectory | None = None
        self.total_steps = 0
        self.alarms: set[str] = set()
        self.pace = ""
        self.said_how_long = False

    def __enter__(self) -> Self:
        if not self.talk.quiet:
            self.heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heartbeat.__exit__()
        self.shown.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self.run is not None:
            self._say(_how_to_go_on(self.run))

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._begin(event)
            case Progressed():
                self.shown.moved(event.what, event.done, event.total)
            case Forecast():
                self._forecast(event)
            case Logged():
                self._show_gauges(event)
            case Evaluated():
                self._say(f"step {event.step}: {_evaluation(event.metrics)}")
            case Warned():
                self._say(event.message, style="yellow")
            case Finished():
                self._finish(event)

    def _begin(self, event: Started) -> None:
        if event.summary:
            self._say(event.summary)
        if event.run is not None:
            self.run = RunDirectory(event.run)
            self._say(f"run directory: {event.run}")
        self.total_steps, self.said_how_long = event.total_steps, event.seconds is not None

    def _forecast(self, event: Forecast) -> None:
        if not self.said_how_long:
            self._say(event.sentence)
        elif event.advice:
            self._say(f"{event.advice}.")

    def _show_gauges(self, event: Logged) -> None:
        self.shown.moved("training", event.step, self.total_steps, _gauges(event.metrics))
        self.pace = _pace(event.metrics)
        alarms = {alarm for alarm in ("beta_clamped", "collapsed") if event.metrics.get(alarm)}
        for alarm in sorted(alarms ^ self.alarms):  # said when it begins and when it is over
            over = "" if alarm in alarms else " is over"
            self._say(f"step {event.step}: alarm, {alarm.replace('_', ' ')}{over}", style="yellow")
        self.alarms = alarms

    def _finish(self, event: Finished) -> None:
        self.shown.stop()
        if self.pace:
            self._say(f"pace: {self.pace}")
        for path in event.encoders:
            self.console.print(f"encoder: {escape(str(path))}", soft_wrap=True, highlight=False)

    def _say(self, line: str, style: str | None = None) -> None:
        # a line stays one where it is piped, and is wrapped by the terminal
        self.talk.print(escape(line), style=style, highlight=False, soft_wrap=not self.talk.is_terminal)
        self.shown.said()

    def report(self, path: Path) -> None:
        self.console.print(f"report: {escape(str(path))}", soft_wrap=True, highlight=False)

    def watched(self, address: str) -> None:
        self.console.print(f"watch: {escape(address)}", soft_wrap=True, highlight=False)


def redraws(console: Console) -> bool:
    """Whether what was printed can be drawn over: in a terminal or a notebook."""
    return (console.is_terminal and not console.is_dumb_terminal) or console.is_jupyter


class Bar:
    """A progress bar, with the gauges on a line of their own: nothing of it is cut on a narrow terminal."""

    def __init__(self, console: Console) -> None:
        self.progress = _BarAndGauges(
            _Turning(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self.task: TaskID | None = None
        self.lock, self.made_at = threading.Lock(), time.monotonic()

    def moved(self, what: str, done: int, total: int | None, gauges: str = "") -> None:
        with self.lock:
            self.progress.start()  # only now: bad input should be answered by its line alone
            if self.task is None or self.progress.tasks[0].description != what:
                if self.task is not None:
                    self.progress.remove_task(self.task)
                self.task = self.progress.add_task(what, total=total)
            self.progress.update(self.task, completed=done, total=total)
            self.progress.gauges = gauges or self.progress.gauges

    def said(self) -> None: ...

    def alive(self) -> None:
        if self.task is None and time.monotonic() - self.made_at >= SILENCE_S:
            self.moved(PREPARING, 0, None)

    def stop(self) -> None:
        if self.task is not None:  # a bar that was never shown ends with a line all the same
            self.progress.stop()


class _Turning(SpinnerColumn):
    """Turns while a single step takes long, and while more is to be done after the last part of something."""

    def render(self, task: Task) -> RenderableType:
        return self.spinner.render(task.get_time())


class _BarAndGauges(Progress):
    gauges = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.gauges:
            yield Text(self.gauges, style="dim")


class Lines:
    """A line every few seconds, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.shown_at, self.begun_at, self.begun_with, self.what = time.monotonic(), 0.0, 0, ""
        self.said_at, self.far = self.shown_at, PREPARING

    def moved(self, what: str, done: int, total: int, gauges: str = "") -> None:
        now = time.monotonic()
        if what != self.what:
            self.what, self.begun_at, self.begun_with = what, now, done
        self.far = f"{what} {done:,}/{total:,}"
        if now - self.shown_at < LINE_S and not (gauges and done == total):
            return
        self.shown_at = self.said_at = now
        left = ""
        if self.begun_with < done < total:
            left = f", about {duration((total - done) * (now - self.begun_at) / (done - self.begun_with))} left"
        self._print(f"{self.far}{left}{': ' if gauges else ''}{gauges}")

    def said(self) -> None:
        self.said_at = time.monotonic()

    def alive(self) -> None:
        if time.monotonic() - self.said_at >= SILENCE_S:
            self._print(f"still at it: {self.far}")

    def _print(self, line: str) -> None:
        self.said()
        self.console.print(escape(line), highlight=False, soft_wrap=True)

    def stop(self) -> None: ...


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
