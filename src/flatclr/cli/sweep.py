"""`flatclr sweep`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from flatclr.checks import require_one_of
from flatclr.cli.options import OUTPUT, option_of, parsed_setting, quiet_option
from flatclr.cli.runs_display import (
    SOME_FAILED,
    Jobs,
    Minutes,
    RunsDisplay,
    failures,
    print_line,
    print_progress,
    why,
)
from flatclr.report.page import write_comparison
from flatclr.report.runs_view import Comparison, ranking, records_of, require_measure, row_of
from flatclr.runs import REPORT
from flatclr.sweep import SweepResult, sweep
from flatclr.training.config import TrainConfig
from flatclr.training.recipes import RECIPES
from flatclr.training.stopping import RESUME_ME, StopRequest

Option = typer.Option
GRID = "Grid"


def sweep_command(
    settings: Annotated[
        list[str],
        Option(
            "--set",
            metavar="NAME=VALUE,...",
            help="A setting and its values, with commas between; one value holds for all runs. A run is made for every "
            "combination; seed=0,1,2 makes three of each.",
            rich_help_panel=GRID,
        ),
    ],
    recipe: Annotated[
        str | None,
        Option(help=f"Start from the settings of a recipe: {', '.join(RECIPES)}.", rich_help_panel=GRID),
    ] = None,
    data: Annotated[str | None, option_of("data")] = None,
    data_dir: Annotated[str | None, option_of("data_dir")] = None,
    device: Annotated[str, option_of("device")] = "auto",
    jobs: Jobs = 1,
    minutes: Minutes = None,
    out: Annotated[
        str,
        Option(help="The folder of the sweep; finished runs found there are not made again.", rich_help_panel=OUTPUT),
    ] = "runs/sweep",
    by: Annotated[
        str | None,
        Option(
            help="The result that runs are ranked by, as the table calls it.",
            rich_help_panel=OUTPUT,
            show_default="the first that most of them have",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON line per run, and one with the table.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Show no progress; the table is printed.")] = False,
) -> None:
    """Train at every combination of some settings, and write the page and the table that rank the runs.

    A sweep that was killed goes on where it was. Exit code 75: time was up, or Ctrl-C, SIGTERM, SIGHUP or SIGUSR1
    stopped it; its runs have saved where they are, and the same command goes on.
    """
    if by is not None:
        require_measure(by)
    stop = StopRequest()
    with stop.on_signals(), RunsDisplay("sweep", quiet=as_json or quiet) as display:
        found = sweep(
            _base(recipe, data, data_dir),
            _grid(settings),
            out,
            jobs=jobs,
            device=device,
            minutes=minutes,
            progress=print_progress if as_json else display.show,
            stop=stop,
        )
    if found.runs:
        _show(found, by, as_json=as_json)
    if found.failed:
        print(f"flatclr: {failures(found.failed, found.planned)}", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)
    if not found.complete:
        there = f"{found.finished} of {found.planned} runs are finished"
        print(f"flatclr: {why(stop)}, {there}; the same command goes on.", file=sys.stderr)
        raise typer.Exit(RESUME_ME)


def _base(recipe: str | None, data: str | None, data_dir: str | None) -> TrainConfig:
    if recipe is not None:
        require_one_of("recipe", recipe, RECIPES)
    given = {name: value for name, value in (("data", data), ("data_dir", data_dir)) if value is not None}
    return (TrainConfig() if recipe is None else RECIPES[recipe]()).changed(**given)


def _grid(settings: list[str]) -> dict[str, list[Any]]:
    grid: dict[str, list[Any]] = {}
    for text in settings:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE,VALUE, got {text!r}; for example --set batch_size=32,64.")
        parsed = [parsed_setting(f"{name}={value}") for value in _parted(values)]
        key = parsed[0][0]
        if key in grid:
            raise ValueError(f"--set {key} must be given once, got it twice; put its values together with commas.")
        grid[key] = [value for _, value in parsed]
    return grid


def _parted(values: str) -> list[str]:
    """At the commas that stand outside of brackets and quotes.

    >>> _parted("0.1,[1, 2],{a: 3, b: 4}")
    ['0.1', '[1, 2]', '{a: 3, b: 4}']
    """
    parts, depth, quote = [""], 0, ""
    for letter in values:
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _show(found: SweepResult, by: str | None, *, as_json: bool) -> None:
    page: Path | None = None
    comparison = _compared(found, by)
    try:
        page = write_comparison(comparison, found.home / REPORT)
    except ImportError as error:  # the table is worth having without
        print(f"flatclr: {error}", file=sys.stderr)
    if as_json:
        table = [row_of(comparison, record) for record in comparison.records]
        print_line({"kind": "end", "page": page and str(page), "complete": found.complete, "table": table})
        return
    console = Console()
    console.print(_table(comparison))
    if said := ranking(comparison):
        console.print(escape(said), highlight=False)
    if page is not None:
        console.print(f"page: {escape(str(page))}", soft_wrap=True, highlight=False)


def _compared(found: SweepResult, by: str | None) -> Comparison:
    """The runs ranked as asked; by the first result that most of them have where none has that one."""
    records = records_of(found.runs)
    try:
        return Comparison.of(records, by)
    except ValueError as error:
        print(f"flatclr: {error}", file=sys.stderr)
        return Comparison.of(records, None)


def _table(comparison: Comparison) -> Table:
    """The settings that differ and the results, the best first; where each run is stands on the page."""
    measures = [m for m in comparison.measures if m.is_result or m.name == "minutes"]
    table = Table(*(Column(name, overflow="fold") for name in (*comparison.differing, *(m.name for m in measures))))
    for record in comparison.records:
        settings = [escape(record.words.get(name, "")) for name in comparison.differing]
        table.add_row(*settings, *(measure.text(measure.value(record)) for measure in measures))
    return table
