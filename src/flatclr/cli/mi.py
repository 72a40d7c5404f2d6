"""`flatclr mi`"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table

from flatclr.checks import require_count, require_number
from flatclr.cli.options import BENCHMARK, DATA, ESTIMATE, OUTPUT
from flatclr.files import require_place
from flatclr.heartbeat import Heartbeat
from flatclr.mi import CRITICS, FAST, METHODS, Consistency, MIEstimate, Progress, check, estimate
from flatclr.mi.benchmark import TABLE, cells, measured_before, run_benchmark
from flatclr.mi.estimator import BUDGET_SECONDS
from flatclr.mi.inputs import FEWEST_ROWS_TO_LEARN
from flatclr.mi.outcome import ASKED
from flatclr.mi.tables import Variables, read_table
from flatclr.training.display import Lines

Option = typer.Option
COLUMNS = "COLUMNS"
MOST_COLUMNS = 3  # methods side by side in a table of 80 characters


def mi_command(
    data: Annotated[
        str | None,
        typer.Argument(help="The table: .csv, .tsv, .parquet, .npy, .npz with the arrays x and y, or x.npy,y.npy."),
    ] = None,
    x: Annotated[
        list[str] | None,
        Option(
            metavar=COLUMNS,
            help="The columns of x, or the arrays of an .npz, separated by commas.",
            rich_help_panel=DATA,
        ),
    ] = None,
    y: Annotated[list[str] | None, Option(metavar=COLUMNS, help="The columns of y.", rich_help_panel=DATA)] = None,
    given: Annotated[
        list[str] | None, Option(metavar=COLUMNS, help="The columns to condition on.", rich_help_panel=DATA)
    ] = None,
    drop_missing: Annotated[
        bool,
        Option(
            "--drop-missing",
            help="Leave out rows with missing values in the columns that are used.",
            rich_help_panel=DATA,
        ),
    ] = False,
    method: Annotated[
        str,
        Option(
            help="The methods, separated by commas; 'all' runs every one, 'list' describes them.",
            rich_help_panel=ESTIMATE,
        ),
    ] = "auto",
    critic: Annotated[
        str | None,
        Option(
            help=f"The critic of a learned bound: {', '.join(CRITICS)}.",
            rich_help_panel=ESTIMATE,
            show_default="that of the method",
        ),
    ] = None,
    folds: Annotated[
        int,
        Option(help="Over how many folds to cross-fit; 1 evaluates on a fifth of the rows.", rich_help_panel=ESTIMATE),
    ] = 1,
    seed: Annotated[int, Option(help="The seed of splits, weights and batches.", rich_help_panel=ESTIMATE)] = 0,
    budget: Annotated[
        float,
        Option(
            metavar="SECONDS",
            help="Seconds after which training ends and further tries are left out.",
            rich_help_panel=ESTIMATE,
        ),
    ] = BUDGET_SECONDS,
    steps: Annotated[
        int | None,
        Option(
            help="End after these steps instead, as an earlier result says: the number is then the same.",
            rich_help_panel=ESTIMATE,
            show_default="none",
        ),
    ] = None,
    fast: Annotated[
        bool, Option("--fast", help="Train small networks for few steps.", rich_help_panel=ESTIMATE)
    ] = False,
    check_laws: Annotated[
        bool,
        Option(
            "--check",
            help="Try on the rows what holds of any information, and say how far the number can be trusted.",
            rich_help_panel=ESTIMATE,
        ),
    ] = False,
    benchmark: Annotated[
        bool,
        Option("--benchmark", help="Run methods on tasks whose answer is known.", rich_help_panel=BENCHMARK),
    ] = False,
    task_set: Annotated[
        str | None,
        Option(
            help="The set of tasks: 'benchmark', which nothing was tuned on, 'tuning', 'unfamiliar' or 'mixtures'.",
            rich_help_panel=BENCHMARK,
            show_default="benchmark",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        Option(
            help="The tasks of the set, separated by commas.", rich_help_panel=BENCHMARK, show_default="all of them"
        ),
    ] = None,
    rows: Annotated[
        int | None, Option(help="How many rows a sample has.", rich_help_panel=BENCHMARK, show_default="10000")
    ] = None,
    seeds: Annotated[
        int | None, Option(help="How many samples of a task are drawn.", rich_help_panel=BENCHMARK, show_default="1")
    ] = None,
    out: Annotated[
        str | None,
        Option(
            help="The folder of the results; those found there are kept.",
            rich_help_panel=BENCHMARK,
            show_default="results",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        Option(help="How many processes work at once.", rich_help_panel=BENCHMARK, show_default="one per core"),
    ] = None,
    detail: Annotated[
        bool,
        Option("--detail", help="Show standard errors, ceilings and limits in a table.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON line per result instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print the sentence alone.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Estimate mutual information in nats, with its standard error and its limits."""
    if method == "list":
        for name, meaning in METHODS.items():
            print(f"{name:<14} {meaning}")
        return
    methods = list(METHODS) if method == "all" else _names(method)
    if not methods:
        raise ValueError(f"--method must name at least one, got {method!r}; --method list shows them.")
    if len(methods) > 1 and (critic is not None or folds > 1):
        raise ValueError("--critic and --folds must go with one method, got several; ask for one at a time.")
    of_benchmark = {"task-set": task_set, "tasks": tasks, "rows": rows, "seeds": seeds, "out": out, "workers": workers}
    if benchmark:
        _refuse_given({"a data file": data, "--x": x, "--y": y, "--given": given}, "not go with --benchmark")
        if workers is not None:
            require_count("--workers", workers, advice="leave it out for one per core.")
        if rows is not None and rows < FEWEST_ROWS_TO_LEARN:
            raise ValueError(f"--rows must be at least {FEWEST_ROWS_TO_LEARN}, got {rows}; 10000 is the default.")
        wanted = cells(
            methods,
            task_set=task_set or "benchmark",
            rows=rows or 10_000,
            seeds=1 if seeds is None else seeds,
            fast=fast,
            names=_names(tasks or ""),
        )
        _run_benchmark(wanted, require_place(out or "results"), workers, as_json)
        return
    _refuse_given({f"--{name}": value for name, value in of_benchmark.items()}, "go with --benchmark")
    if data is None:
        raise ValueError("a data file or --benchmark must be given, got neither; try flatclr mi table.csv --x a --y b.")
    require_number("--budget", budget, above=0, advice="60 is the default.")
    columns = {name: _names(*(named or ())) for name, named in (("x", x), ("y", y), ("given", given))}
    table = read_table(data, columns, drop_missing=drop_missing)
    variables = table.values
    settings = FAST if fast else None
    if check_laws:
        refused: dict[str, object] = {
            "--given": given,
            "--critic": critic,
            "--steps": steps,
            "several methods": methods[1:] or None,
        }
        _refuse_given(refused, "not go with --check")
        if folds > 1:
            raise ValueError(f"--folds must be 1 with --check, got {folds}; leave one of them out.")
        found = check(variables["x"], variables["y"], methods[0], seed=seed, settings=settings, budget_seconds=budget)
        _show_check(found, table, as_json=as_json, quiet=quiet)
        return
    results: dict[str, MIEstimate] = {}
    in_terminal = sys.stderr.isatty()
    lines = Lines(Console(stderr=True, quiet=as_json or quiet or in_terminal))
    with Heartbeat(lines.alive), _progress(quiet=as_json or quiet or not in_terminal) as bar:
        task = bar.add_task("estimate", total=len(methods))
        for name in methods:

            def show(stands: Progress, name: str = name) -> None:
                bar.update(task, description=_stage(name, stands))
                lines.moved(_stage(name, stands), len(results), len(methods))

            results[name] = estimate(
                variables["x"],
                variables["y"],
                name,
                variables.get("given"),
                critic=critic,
                folds=folds,
                seed=seed,
                settings=settings,
                budget_seconds=budget,
                steps=steps,
                progress=show,
            )
            bar.advance(task)
    if as_json:
        _print_lines({"asked": name, **result.to_dict()} for name, result in results.items())
    else:
        _show(results, table, detail=detail, quiet=quiet)


def _run_benchmark(wanted: list[Any], out: Path, workers: int | None, as_json: bool) -> None:
    with _progress(quiet=as_json) as progress:
        bar = progress.add_task("benchmark", total=len(wanted))
        results = run_benchmark(
            wanted, out, workers=workers, on_done=lambda done, total: progress.update(bar, completed=done, total=total)
        )
    if as_json:
        _print_lines(results)
    else:
        print((out / TABLE).read_text(), end="")
    for commit, count in measured_before(results).items():
        there = f"{count} of {len(results)} results were there already, of commit {commit}"
        print(f"{there}; remove {out} to measure again.", file=sys.stderr)


def _stage(method: str, stands: Progress) -> str:
    """Say "auto: densities, best so far 0.812 nats"."""
    best = "" if stands.best_nats is None else f", best so far {stands.best_nats:.3f} nats"
    return f"{method}: {stands.stage}{best}"


def _print_lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row))


def _refuse_given(options: dict[str, object], must: str) -> None:
    """What would be passed over in silence."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} must {must}, got {value!r}; leave one of them out.")


def _names(*texts: str) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _progress(*, quiet: bool) -> Bar:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=Console(stderr=True, quiet=quiet), disable=quiet)


def _show(results: dict[str, MIEstimate], table: Variables, *, detail: bool, quiet: bool) -> None:
    """A sentence for each number; what a reader should know below; numbers for experts on request."""
    console = Console()
    for asked, result in results.items():
        of = "" if len(results) == 1 else f"{asked}: "
        _say(console, f"{of}{result.sentence(**table.names)}")
    if quiet:
        return
    for note in table.notes:
        _say(console, note)
    for asked, result in results.items():
        if result.reason != ASKED:
            _say(console, f"{asked}: {result.reason}")
        if result.kind != "lower" and result.lower_nats > 0:
            _say(console, f"{asked}: certified: at least {result.lower_nats:.3f} nats (95 %).")
    if detail:
        console.print(_details(results))
        _say(
            console,
            "ln N: about where any distribution-free lower bound from the N rows of the reading ends. NWJ variance: "
            "the least that the NWJ family has at such a value over the reading's pairs of rows.",
        )
    for warning in dict.fromkeys(w for result in results.values() for w in result.warnings):
        warned = [asked for asked, result in results.items() if warning in result.warnings]
        of = "" if len(warned) == len(results) else f" of {', '.join(warned)}"
        _say(console, f"warning{of}: {warning}", style="yellow")


def _show_check(found: Consistency, table: Variables, *, as_json: bool, quiet: bool) -> None:
    """The number, a line for each law, and how far to trust it."""
    if as_json:
        _print_lines([found.to_dict()])
        return
    console = Console()
    _say(console, found.estimate.sentence(**table.names))
    if not quiet:
        shown = Table("law", "tried on", "expected", "found", "s.e.", "holds")
        for test in found.tests:
            expected = f"{'<= ' if test.at_most else ''}{test.expected_nats:.3f}"
            holds = ("yes" if test.kept else "no") if test.tried else "cannot be told"
            shown.add_row(test.law, test.what, expected, f"{test.found_nats:.3f}", f"{test.standard_error:.3f}", holds)
        console.print(shown)
    _say(console, found.sentence())


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, markup=False, highlight=False)


def _details(results: dict[str, MIEstimate]) -> Table:
    """A column for each method: a row each would be too wide for 80 characters."""
    rows: dict[str, list[str]] = {}
    for asked, result in results.items():
        ceiling = f"{result.ceiling_nats:.2f}" if result.ceiling_nats < 1e9 else "none"
        values = {
            "method": f"auto: {result.method}" if asked == "auto" and len(results) > 1 else result.method,
            "nats": f"{result.nats:.4f}",
            "standard error": f"{result.standard_error:.4f}",
            "certified": f"{result.lower_nats:.4f}",
            "kind": result.kind,
            "ceiling": ceiling,
            "ln N": f"{result.limits.distribution_free_nats:.2f}",
            "NWJ variance": f"{result.limits.nwj_variance:.2g}",
            "steps": str(result.steps),
        }
        for name, value in values.items():
            rows.setdefault(name, []).append(value)
    if len(results) > MOST_COLUMNS:
        return _as_rows(rows)
    table = Table(show_header=False)
    for name, found in rows.items():
        table.add_row(name, *found)
    return table


def _as_rows(rows: dict[str, list[str]]) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in rows))
    for values in zip(*rows.values(), strict=True):
        table.add_row(*values)
    return table
