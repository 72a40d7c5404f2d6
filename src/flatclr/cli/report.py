"""`flatclr report`"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.eval_display import EvaluationDisplay
from flatclr.cli.options import OUTPUT, quiet_option
from flatclr.files import require_place
from flatclr.report.page import write_comparison, write_report
from flatclr.report.pictures import refresh_pictures
from flatclr.report.reading import find_runs
from flatclr.report.runs_view import Comparison, records_of
from flatclr.runs import REPORT, RunDirectory

Option = typer.Option


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, of runs that are finished or still going on, or folders of runs."),
    ],
    by: Annotated[
        str | None,
        Option(
            help="The result that several runs are ranked by, as their table calls it.",
            rich_help_panel=OUTPUT,
            show_default="the first that most of them have",
        ),
    ] = None,
    pictures: Annotated[
        bool,
        Option(
            help="Whether pictures are made with the encoder and the data, where there are none of these weights yet.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
    out: Annotated[
        Path | None,
        Option(
            help="The page of several runs.",
            rich_help_panel=OUTPUT,
            show_default="report.html in the folder they have in common",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print nothing.")] = False,
) -> None:
    """Write a page about a run, or one that ranks and overlays several.

    Of one run: a verdict, evaluations, curves, pictures and settings, as report.html in its directory.
    """
    if len(runs) == 1 and (out is None and by is None) and RunDirectory.begun_in(runs[0]):
        with EvaluationDisplay(quiet=as_json or quiet) as display:
            note = refresh_pictures(runs[0], patient=True, progress=display.progressed) if pictures else ""
        path = write_report(runs[0], pictures_note=note)
    else:
        path = _several(runs, out, by)
    if as_json or not quiet:
        print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


def _several(given: list[Path], out: Path | None, by: str | None) -> Path:
    paths = [path for one in given for path in find_runs(one) or [RunDirectory.open(one).path]]
    if out is not None:
        require_place(out)
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise ValueError(f"--out must end in .html, got {str(out)!r}; name such a file.")
    unique = list({path.resolve(): path for path in paths}.values())
    common = Path(os.path.commonpath([path.resolve().parent for path in unique]))
    return write_comparison(Comparison.of(records_of(unique), by), out or common / REPORT)
