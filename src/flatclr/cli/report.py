"""`flatclr report`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.options import OUTPUT, quiet_option
from flatclr.report.page import write_report


def report_command(
    run: Annotated[Path, typer.Argument(help="The run directory, of a run that is finished or still going on.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print nothing.")] = False,
) -> None:
    """Write report.html into a run directory, with settings, evaluations, alarms and figures on one page."""
    path = write_report(run)
    if as_json or not quiet:
        print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")
