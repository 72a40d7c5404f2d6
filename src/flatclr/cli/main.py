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
    help="Contrastive representation learning on a budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("train")(train_command)
app.command("report")(report_command)
app.command("eval")(eval_command)
app.command("export")(export_command)
app.command("mi")(mi_command)


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
    """Contrastive representation learning on a budget."""


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
