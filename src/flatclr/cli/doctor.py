"""`flatclr doctor`"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from flatclr.cli.options import FOREIGN, OUTPUT, quiet_option
from flatclr.doctor import Diagnosis, examine
from flatclr.training.display import Display, JsonLines

Option = typer.Option
FIRST = 2  # findings that the end of a run shows


def doctor_command(
    run: Annotated[
        str | None,
        typer.Argument(help="The run directory, of a run that is finished or still going on.", show_default=False),
    ] = None,
    metrics: Annotated[
        str | None,
        Option(
            help="Instead of a run, metrics of any training: a .csv or .jsonl file, or a folder of TensorBoard events.",
            rich_help_panel=FOREIGN,
        ),
    ] = None,
    embeddings: Annotated[
        str | None,
        Option(
            help="Embeddings of that network: .npy, .npz, .csv or .parquet with a row for each image.",
            rich_help_panel=FOREIGN,
        ),
    ] = None,
    negatives: Annotated[
        int | None,
        Option(
            help="How many negatives each anchor of an InfoNCE loss in --metrics had, which says where its ceiling is.",
            rich_help_panel=FOREIGN,
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print the verdict alone.")] = False,
) -> None:
    """Say what is wrong with a run, what it costs, and what to change, as a command line or a line of Python."""
    diagnosis = examine(run, metrics=metrics, embeddings=embeddings, negatives=negatives)
    if as_json:
        print(json.dumps(diagnosis.to_dict()))
    elif quiet:
        print(diagnosis.verdict)
    else:
        show(diagnosis, Console())


def tell(diagnosis: Diagnosis, display: Display | JsonLines, run: Path) -> None:
    """At the end of a run: the verdict and the first findings, as a line of JSON where those are asked for."""
    if isinstance(display, JsonLines):
        print(json.dumps({"kind": "diagnosis", **diagnosis.to_dict()}), flush=True)
    else:
        show(diagnosis, display.talk, most=FIRST)
        if left := len(diagnosis.findings[FIRST:]):
            told = f"\n{left} more: flatclr doctor {shlex.quote(str(run))}"
            display.talk.print(escape(told), highlight=False, soft_wrap=True)


def show(diagnosis: Diagnosis, console: Console, *, most: int | None = None) -> None:
    """The verdict, and the findings in order, or the first of them."""
    style, piped = "green" if diagnosis.healthy else "bold yellow", not console.is_terminal
    console.print(escape(diagnosis.verdict), style=style, highlight=False, soft_wrap=piped)
    for place, finding in enumerate(diagnosis.findings[:most], 1):
        console.print(f"\n[bold]{place}. {escape(finding.title)}[/bold] (costs {finding.costs})", highlight=False)
        for line in (finding.evidence, finding.cause, finding.remedy):
            console.print(f"   {escape(line)}", highlight=False, soft_wrap=piped)
        if finding.command is not None:
            console.print(f"   $ {escape(finding.command)}", style="cyan", highlight=False, soft_wrap=True)
        elif finding.code is not None:
            console.print(f"   >>> {escape(finding.code)}", style="cyan", highlight=False, soft_wrap=True)
