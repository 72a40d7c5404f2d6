"""`flatclr study`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from flatclr.accelerator import takes_turns
from flatclr.cli.options import HARDWARE, OUTPUT, parsed_setting, quiet_option
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
from flatclr.studies import STUDIES, StudyResult, load_study, run
from flatclr.studies.pages import claim_row
from flatclr.training.stopping import RESUME_ME, StopRequest

Option = typer.Option
SIZE, LIST = "Size", "list"
TURNS = (
    "runs will take turns on the GPU, so --jobs gains nothing; start NVIDIA's multi-process service first: "
    "nvidia-cuda-mps-control -d"
)


def study_command(
    name: Annotated[str, typer.Argument(help="The name of the study; 'list' shows them all.")],
    quick: Annotated[
        bool,
        Option("--quick", help="Run a smoke test of seconds, which judges nothing.", rich_help_panel=SIZE),
    ] = False,
    seeds: Annotated[
        int | None, Option(help="How many seeds.", rich_help_panel=SIZE, show_default="those of the study")
    ] = None,
    setting: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="An option of the study; 'list' shows them.", rich_help_panel=SIZE),
    ] = None,
    device: Annotated[
        str, Option(help="The device: cpu, cuda or cuda:1; auto: cuda where there is one.", rich_help_panel=HARDWARE)
    ] = "auto",
    jobs: Jobs = 1,
    minutes: Minutes = None,
    out: Annotated[
        str | None,
        Option(
            help="The folder of all studies; finished runs found there are not made again.",
            rich_help_panel=OUTPUT,
            show_default="runs/studies",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON line per run and claim instead.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print only where the page is.")] = False,
) -> None:
    """Run an experiment of the literature again and judge what it claims.

    A study that was killed goes on where it was. Exit code 75: time was up, or Ctrl-C, SIGTERM, SIGHUP or SIGUSR1
    stopped it; training runs have saved where they are, and the same command goes on.
    """
    if name == LIST:
        _list(as_json=as_json)
        return
    if jobs > 1 and takes_turns(device):
        print(f"flatclr: {TURNS}", file=sys.stderr)
    stop = StopRequest()
    with stop.on_signals(), RunsDisplay(name, quiet=as_json or quiet) as display:
        found = run(
            name,
            quick=quick,
            device=device,
            seeds=seeds,
            out=out,
            jobs=jobs,
            minutes=minutes,
            options=dict(map(parsed_setting, setting or ())),
            progress=print_progress if as_json else display.show,
            stop=stop,
        )
    if as_json:
        _print_result(found)
    elif quiet:
        print(f"page: {found.page}")
    else:
        _show(found, quick=quick)
    if found.failed:
        print(f"flatclr: {failures(found.failed, found.planned)}", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)
    if not found.complete:
        there = f"{len(found.found)} of {found.planned} runs are kept"
        print(f"flatclr: {why(stop)}, {there}; the same command goes on.", file=sys.stderr)
        raise typer.Exit(RESUME_ME)


def _list(*, as_json: bool) -> None:
    for study in map(load_study, STUDIES):
        if as_json:
            print_line(
                {
                    "study": study.name,
                    "title": study.title,
                    "source": study.source,
                    "budget": study.budget,
                    "options": study.options,
                }
            )
        else:
            options = "".join(f"; --set {name}={value}" for name, value in study.options.items())
            print(f"{study.name:<24} {study.title} ({study.budget}{options})")


def _print_result(found: StudyResult) -> None:
    for claim, verdict in zip(found.study.claims, found.verdicts, strict=True):
        print_line({"kind": "claim", **claim_row(claim, verdict)})
    print_line({"kind": "end", "page": str(found.page), "complete": found.complete, "table": found.table})


def _show(found: StudyResult, *, quick: bool) -> None:
    console = Console()
    if found.table:
        names = list(dict.fromkeys(name for row in found.table for name in row))
        table = Table(*(Column(name, overflow="fold") for name in names))
        for row in found.table:
            table.add_row(*(row.get(name, "") for name in names))
        console.print(table)
    if quick:
        console.print("A smoke test: its verdicts say nothing of the claims.", style="yellow")
    for claim, verdict in zip(found.study.claims, found.verdicts, strict=True):
        console.print(f"{verdict.word}: {claim.statement} {verdict.says}", markup=False, highlight=False)
    console.print(f"page: {found.page}", soft_wrap=True)
