"""`flatclr settings`"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flatclr.checks import require_one_of
from flatclr.cli.options import OUTPUT, SETTINGS, quiet_option
from flatclr.training.settings import GROUPS, Setting


def settings_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Settings, or groups of them, to list.", show_default="all of them"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line per setting instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print the names alone.")] = False,
) -> None:
    """List every setting of a run with its default and what it means.

    A setting is given to flatclr train as an option, or as --set NAME=VALUE, and to flatclr.TrainConfig by name.
    """
    wanted = [name.replace("-", "_") for name in names or GROUPS]
    for name in wanted:
        require_one_of("a setting", name, [*SETTINGS, *GROUPS])
    rows = [row for row in SETTINGS.values() if row.name in wanted or row.group in wanted]
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    if quiet:
        print("\n".join(row.name for row in rows))
        return
    console = Console()
    for group in dict.fromkeys(row.group for row in rows):
        console.print(_table(group, [row for row in rows if row.group == group]))


def _table(group: str, rows: list[Setting]) -> Table:
    table = Table(title=group.capitalize(), title_justify="left", box=None, pad_edge=False, expand=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=12)
    table.add_column("meaning", overflow="fold")
    for row in rows:
        table.add_row(row.name, escape(_shown(row.default)), escape(row.help))
    return table


def _shown(default: Any) -> str:
    return f"{default:g}" if type(default) is float else str(default)
