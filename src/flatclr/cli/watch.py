"""`flatclr watch`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.options import OUTPUT, quiet_option
from flatclr.report.bundle import plotly_gzipped
from flatclr.report.page import templates
from flatclr.report.serving import LOCAL, Server

Option = typer.Option
ADDRESS = "Address"


def watch_command(
    folder: Annotated[Path, typer.Argument(help="The folder of runs, or one run.")],
    port: Annotated[
        int, Option(help="The port to serve at.", rich_help_panel=ADDRESS, show_default="a free one", min=0, max=65535)
    ] = 0,
    host: Annotated[
        str,
        Option(
            help="The interface to serve at; any other than this one lets other machines in that know the address.",
            rich_help_panel=ADDRESS,
        ),
    ] = LOCAL,
    as_json: Annotated[bool, Option("--json", help="Print the address as JSON.", rich_help_panel=OUTPUT)] = False,
    quiet: Annotated[bool, quiet_option("Print the address alone.")] = False,
) -> None:
    """Serve the pages of a folder of runs, and keep them up to date while the runs go on.

    The address holds a random token. Nothing is written, and nothing outside of the folder is read. Ctrl-C ends it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"a folder of runs must exist, got {folder}, which is none; check the path.")
    plotly_gzipped()
    templates()  # what is missing is said at once
    try:
        with Server(folder, host=host, port=port) as server:
            runs = len(server.site.watched.records())
            told = f"watching {runs} {'run' if runs == 1 else 'runs'} of {folder}: {server.address}"
            shown = json.dumps({"address": server.address, "runs": runs}) if as_json else told
            print(server.address if quiet and not as_json else shown, flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        if not quiet:
            print("flatclr: no longer watching.", file=sys.stderr)
