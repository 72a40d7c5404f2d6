"""Options of commands: panels that group them, and texts and defaults from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer
import yaml

from flatclr.files import require_few_values
from flatclr.training.config import describe_settings
from flatclr.training.settings import BY_DEFAULT

SETTINGS = {row.name: row for row in describe_settings()}

DATA, HARDWARE, OUTPUT = "Data", "Hardware", "Output"
MEASUREMENT, ELSEWHERE, FOREIGN = "Measurement", "Weights from elsewhere", "Metrics from elsewhere"
ESTIMATE, BENCHMARK = "Estimate", "Benchmark"


def quiet_option(help: str) -> Any:
    """--quiet, with what is left of the command's words."""
    return typer.Option("--quiet", "-q", help=help, rich_help_panel=OUTPUT)


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


def parsed_setting(text: str) -> tuple[str, Any]:
    """Name and value of --set NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set must be NAME=VALUE, got {text!r}; for example --set weight_decay=0.0005.")
    try:
        parsed = require_few_values(yaml.safe_load(value))
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # a date that does not exist is a ValueError
        raise ValueError(f"--set {name} must have a YAML value, got {value!r:.80}; say --set 'views={{}}'.") from error
    if isinstance(parsed, str):
        with suppress(ValueError):
            parsed = float(parsed)  # YAML 1.1 takes 1e-4 for text
    return name.strip().replace("-", "_"), parsed
