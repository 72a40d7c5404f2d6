"""What a person sees of an evaluation: a bar while it goes on, a table at the end."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flatclr.evaluation.features import OUTPUT
from flatclr.evaluation.figures import SHARES
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.protocols import TEN_NEIGHBOURS
from flatclr.evaluation.results import FIGURE, RESULTS, TRAINED, Evaluation, Row
from flatclr.heartbeat import Heartbeat
from flatclr.training.display import Bar, Lines, Shown, redraws

PERCENT = (*SHARES, "top5", TEN_NEIGHBOURS, "recall_at_5", "recall_at_10")


class EvaluationDisplay:
    """One bar for what is being done, a line for every result."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet)
        self.shown: Shown = Bar(self.console) if redraws(self.console) else Lines(self.console)
        self.heartbeat = Heartbeat(self.shown.alive)

    def __enter__(self) -> Self:
        if not self.console.quiet:
            self.heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heartbeat.__exit__()
        self.shown.stop()

    def progressed(self, what: str, done: int, total: int) -> None:
        self.shown.moved(what, done, total)

    def ready(self, row: Row) -> None:
        unit = " %" if row.headline in PERCENT else ""
        score = f"{row.headline} {_number(row.headline, row.best)}{unit}"
        text = f"{_name(row)}, {row.weights} weights: {score} ({row.seconds:.1f} s)"
        self._say(text)
        self.shown.said()

    def _say(self, line: str, style: str | None = None) -> None:
        # a line stays one where it is piped, and is wrapped by the terminal
        self.console.print(escape(line), style=style, highlight=False, soft_wrap=not self.console.is_terminal)

    def table(self, found: Evaluation, folder: Path) -> None:
        table = Table(title=f"{found.encoder}: value [95 % interval]")
        table.add_column("protocol, score")
        table.add_column("trained", justify="right", no_wrap=True)
        table.add_column("random weights", justify="right", no_wrap=True)
        for row in (row for row in found.rows if row.weights == TRAINED):
            random = found.random_beside(row)
            table.add_row(f"[bold]{escape(_name(row))}[/bold]")
            for place, (score, value) in enumerate(row.scores.items()):
                beside = "" if random is None else _number(score, random.scores[score])
                unit = ", %" if score in PERCENT else ""
                cells = (f"  {score.replace('_', ' ')}{unit}", _number(score, value), beside)
                table.add_row(*map(escape, cells), end_section=place == len(row.scores) - 1)
        self.console.print(table)
        if found.report:
            self._say(f"weights: {found.report}")
        for protocol, reason in found.skipped:
            self._say(f"left out {protocol}: {reason}", style="yellow")
        self.console.print(f"{folder / RESULTS}\n{folder / FIGURE}", highlight=False, soft_wrap=True)


def _name(row: Row) -> str:
    layer = "" if row.layer == OUTPUT else f" at {row.layer}"
    return f"{row.protocol} {row.variant}".strip() + f" on {row.data}{layer}"


def _number(name: str, score: Score) -> str:
    if name in PERCENT:
        return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
