"""Options of commands: panels that group them, and texts and defaults from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from flatclr.training.config import describe_settings
from flatclr.training.settings import BY_DEFAULT

SETTINGS = {row.name: row for row in describe_settings()}

DATA, HARDWARE, OUTPUT = "Data", "Hardware", "Output"
MEASUREMENT, ELSEWHERE = "Measurement", "Weights from elsewhere"
ESTIMATE, BENCHMARK = "Estimate", "Benchmark"


def option_of(name: str, *flags: str) -> Any:
    """The option of a setting: its text as help, its group as panel, its default shown; None leaves it to the config.

    Flags are for one that is called otherwise than its setting.

    >>> option_of("batch_size").rich_help_panel, option_of("batch_size").show_default
    ('Optimisation', '32')
    """
    row = SETTINGS[name]
    text, _, otherwise = row.help.removesuffix(".").partition(BY_DEFAULT)
    shown = otherwise if row.default is None else f"{row.default:g}" if type(row.default) is float else row.default
    return typer.Option(
        *flags, help=f"{text}.", rich_help_panel=row.group.capitalize(), show_default=str(shown) or False
    )


def settings_without_option(command: Callable[..., None]) -> str:
    """The names of the settings that a command has no option for."""
    own = inspect.signature(command).parameters
    return ", ".join(name for name in SETTINGS if name not in own)
