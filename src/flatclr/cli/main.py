"""The `flatclr` command."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from flatclr import __version__
from flatclr.cli.commands import LazyGroup
from flatclr.files import told_of_system

app = typer.Typer(
    name="flatclr",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Bad input ends with one line and exit code 2; a run that had to stop, with one line and exit code 1.

    A run that was asked to stop, and can go on, ends with one line and exit code 75.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown_once()
            code = app(prog_name="flatclr", standalone_mode=False)
    except OSError as error:
        _stop(told_of_system(error), 2)
    except (ValueError, TypeError, ImportError) as error:
        _stop(str(error), 2)
    except typer.Abort as abort:
        if isinstance(abort.__cause__, EOFError):  # which click takes for Ctrl-D
            _stop(f"a file must be whole, got one that ends too early ({abort.__cause__}); write it again.", 2)
        _stop("interrupted.", 1)
    except Exception as error:  # a wrong option is an error of click's, of which typer may bring a copy of its own
        if hasattr(error, "format_message"):
            _refuse_usage(error)
        if not hasattr(error, "exit_code"):  # that of a run which stopped
            raise
        _stop(str(error), error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _shown_once() -> Callable[..., None]:
    """A function that shows a warning as a line, once: several parts of a command may read the same file."""
    shown = set[str]()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            print(f"flatclr: {message}", file=sys.stderr)

    return show


def _refuse_usage(error: Any) -> NoReturn:
    """One line for a wrong option, argument or command; the help where nothing was asked."""
    message = error.format_message().strip()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" or not message:
        error.show()
        sys.exit(error.exit_code)
    path = "flatclr" if context is None else context.command_path
    _stop(f"{' '.join(message.split()).rstrip('.')}; see {path} --help.", 2)


def _stop(line: str, code: int) -> NoReturn:
    print(f"flatclr: {line}", file=sys.stderr)
    sys.exit(code)
