"""`flatclr report`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flatclr.report.page import write_report


def report_command(
    run: Annotated[Path, typer.Argument(help="A run directory, finished or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line instead of text.")] = False,
) -> None:
    """Write report.html into a run directory: settings, evaluations, alarms and figures on one page."""
    path = write_report(run)
    print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")
