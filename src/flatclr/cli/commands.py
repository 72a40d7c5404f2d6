"""The commands by name; a command's own module is imported when it is called, so that `flatclr --help` is quick."""

from __future__ import annotations

import copy
import importlib
import sys
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from flatclr.heartbeat import SILENCE_S, Heartbeat

ENCODERS, INFORMATION, LITERATURE = "Encoders", "Mutual information", "Literature"


class Command(TyperCommand):
    """A command whose help shows defaults that are texts as they stand; Typer puts them in parentheses."""

    def __init__(self, *arguments: Any, params: list[Any] | None = None, **settings: Any) -> None:
        for param in params or []:
            shown = getattr(param, "show_default", None)
            if isinstance(shown, str):
                param._get_default_string = lambda *, _shown=shown, **_: _shown
        super().__init__(*arguments, params=params, **settings)


class _Loading:
    """Says in a terminal that modules are still being loaded, which on a network drive may take long.

    Not where it is piped: programs expect one line of standard error for bad input.
    """

    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def alive(self) -> None:
        if sys.stderr.isatty() and time.monotonic() - self.said_at >= SILENCE_S:
            self.said_at = time.monotonic()
            print("flatclr: loading PyTorch and what else the command needs", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Entry:
    """A command before its module is imported.

    Args:
        name: as it is typed; its function is NAME_command of flatclr.cli.NAME.
        panel: where the list of commands has it.
        summary: the first sentence of its help.
    """

    name: str
    panel: str
    summary: str

    def listed(self) -> TyperCommand:
        """As the list of commands shows it, without options."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def loaded(self) -> Any:
        """With everything it can do."""
        module = self.name.replace("-", "_")
        with Heartbeat(_Loading().alive):
            function = getattr(importlib.import_module(f"flatclr.cli.{module}"), f"{module}_command")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(self.name, cls=Command, rich_help_panel=self.panel)(function)
        return typer.main.get_command(alone)


COMMANDS = {
    entry.name: entry
    for entry in (
        Entry("train", ENCODERS, "Train an encoder without labels and write a run directory."),
        Entry(
            "doctor",
            ENCODERS,
            "Say what is wrong with a run, what it costs, and what to change, as a command line or a line of Python.",
        ),
        Entry(
            "report",
            ENCODERS,
            "Write a page about a run, or one that ranks and overlays several.",
        ),
        Entry(
            "watch",
            ENCODERS,
            "Serve the pages of a folder of runs, and keep them up to date while the runs go on.",
        ),
        Entry(
            "sweep",
            ENCODERS,
            "Train at every combination of some settings, and write the page and the table that rank the runs.",
        ),
        Entry(
            "eval",
            ENCODERS,
            "Measure an encoder by fixed protocols, with 95 % intervals, beside the same encoder with random weights.",
        ),
        Entry("finetune", ENCODERS, "Train an encoder further with labels, and keep the classifier."),
        Entry(
            "embed", ENCODERS, "Write the features of images or sentences, with their names and labels, to one file."
        ),
        Entry(
            "neighbours",
            ENCODERS,
            "Show the images or sentences nearest to some, near-duplicates or outliers.",
        ),
        Entry("export", ENCODERS, "Take an encoder away, as an ONNX file or as a folder for the Hugging Face hub."),
        Entry("settings", ENCODERS, "List every setting of a run with its default and what it means."),
        Entry(
            "check-loss",
            ENCODERS,
            "Test whether a loss has the same gradient on several processes as on one, and its value at known inputs.",
        ),
        Entry("mi", INFORMATION, "Estimate mutual information in nats, with its standard error and its limits."),
        Entry("negatives", LITERATURE, "Say how many negatives are useful, given the frequencies of your classes."),
        Entry("study", LITERATURE, "Run an experiment of the literature again and judge what it claims."),
    )
}


class Loaded(MutableMapping[str, Any]):
    """Commands by name, each made when it is asked for."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = COMMANDS[name].loaded()
        return self.made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self.made[name] = command

    def __delitem__(self, name: str) -> None:
        del self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """The `flatclr` command: it lists its commands without their modules."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Loaded()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self._listed(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        listing = copy.copy(ctx)
        listing.command = self._listed()
        return TyperGroup.shell_complete(listing.command, listing, incomplete)

    def _listed(self) -> LazyGroup:
        listed = copy.copy(self)
        listed.commands = {name: entry.listed() for name, entry in COMMANDS.items()}
        return listed
