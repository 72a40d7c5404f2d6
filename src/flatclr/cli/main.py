"""The `flatclr` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flatclr import __version__
from flatclr.cli.eval import eval_command
from flatclr.cli.export import export_command
from flatclr.cli.mi import mi_command
from flatclr.cli.report import report_command
from flatclr.cli.train import train_command
from flatclr.training.errors import TrainingStoppedError

app = typer.Typer(
    name="flatclr",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
ENCODERS, INFORMATION = "Encoders", "Mutual information"
app.command("train", rich_help_panel=ENCODERS)(train_command)
app.command("report", rich_help_panel=ENCODERS)(report_command)
app.command("eval", rich_help_panel=ENCODERS)(eval_command)
app.command("export", rich_help_panel=ENCODERS)(export_command)
app.command("mi", rich_help_panel=INFORMATION)(mi_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flatclr {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Learn representations from pairs of views on a small budget, and estimate mutual information."""


def main() -> None:
    """Bad input ends with one line and exit code 2; a run that had to stop, with one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"flatclr: {error}", file=sys.stderr)
        sys.exit(2)
    except TrainingStoppedError as error:
        print(f"flatclr: {error}", file=sys.stderr)
        sys.exit(1)
