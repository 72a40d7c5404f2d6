"""Tables that are made of what the code keeps as data: options, objectives, settings, recipes, commands."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import typer

from flatclr.cli.main import app
from flatclr.contrast import ContrastOptions, Options, contrast_stats, relation, route
from flatclr.contrast.options import CallOptions
from flatclr.mi.methods import methods_markdown
from flatclr.objectives import OBJECTIVES
from flatclr.training import RECIPES, TrainConfig, describe_settings
from flatclr.training.settings import GROUPS
from scripts.reference.text import arguments, markdown, table


def code(value: Any) -> str:
    """A value as it is typed; nothing where there is none."""
    return "" if value is None else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def contrast_options() -> str:
    """The options of every contrast: where each is said, its default, its meaning."""
    defaults = {field.name: field.default for field in fields(Options)}
    meaning = arguments(inspect.getdoc(contrast_stats) or "")
    rows = [
        [f"`{name}`", _said(name), code(defaults.get(name)) or "none", meaning[name]]
        for name in CallOptions.__annotations__
    ]
    text = (
        "Some are given to the constructor of an objective, some to each call of it. `contrast_stats`, `pairwise_mean` "
        "and `PairSet.of` take all of them, `shared_loss` too. `graphed` is for the constructor of an objective alone: "
        "see [`Objective`](objectives.md)."
    )
    return "\n\n".join([text, table(["option", "given to", "default", "meaning"], rows)])


def _said(name: str) -> str:
    if name in ContrastOptions.__annotations__:
        return "the constructor"
    return "`contrast_stats`" if name == "shared_loss" else "the call"


def pairings_and_routes() -> str:
    return "\n\n".join(
        ["## Pairings", _module_text(relation.__doc__), "## Routes", _module_text(route.__doc__)],
    )


def _module_text(doc: str | None) -> str:
    assert doc is not None
    lines = doc.splitlines()
    return markdown("\n".join([*lines[:2], *("    " + line if _is_row(line) else line for line in lines[2:])]))


def _is_row(line: str) -> bool:
    """A line of columns that are told apart by spaces."""
    return not line.startswith(" ") and "   " in line.strip()


def objectives() -> str:
    """The registry with its traits."""
    rows = [
        [
            f"`{name}`",
            f"`{objective.__name__}`",
            objective.traits.summary,
            code(objective.traits.temperature) or "none",
            code(objective.traits.pairing),
            "yes" if objective.traits.bounded_scores else "no",
            "yes" if objective.traits.accepts_control and objective.traits.temperature is not None else "no",
        ]
        for name, objective in OBJECTIVES.items()
    ]
    head = ["name", "class", "what it is", "temperature", "pairing", "needs bounded scores", "`EssControl`"]
    return table(head, rows)


def methods() -> str:
    return methods_markdown().rstrip("\n")


def settings() -> Iterator[str]:
    """The fields of TrainConfig group by group, and the recipes."""
    rows = describe_settings()
    for group in GROUPS:
        yield f"## {group.capitalize()}"
        found = [row for row in rows if row.group == group]
        cells = ([f"`{row.name}`", f"`{row.type}`", code(row.default) or "`None`", row.help] for row in found)
        yield table(["setting", "type", "default", "meaning"], cells)
    yield "## Recipes"
    yield "A recipe starts from these settings instead of the defaults."
    default = TrainConfig().to_dict()
    recipes = []
    for name, make in RECIPES.items():
        changed = {key: value for key, value in make().to_dict().items() if value != default[key]}
        text = (make.__doc__ or "").strip().splitlines()[0]
        recipes.append([f"`{name}`", text, ", ".join(f"`{key}={value}`" for key, value in changed.items())])
    yield table(["recipe", "what for", "settings"], recipes)


def commands() -> Iterator[str]:
    """Every command with its arguments and options, panel by panel."""
    every: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in every.items():
        yield f"## flatclr {name}"
        yield "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        positional = [p for p in command.params if p.param_type_name == "argument"]
        yield f"```sh\nflatclr {' '.join([name, '[OPTIONS]', *map(_usage, positional)])}\n```"
        if positional:
            yield table(["argument", "meaning"], ([f"`{p.name}`", p.help] for p in positional))
        hints = typing.get_type_hints(command.callback)
        yield from _panels([p for p in command.params if p.param_type_name == "option"], hints)


def _panels(options: Iterable[Any], hints: Mapping[str, Any]) -> Iterator[str]:
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    for panel, found in panels.items():
        yield f"### {panel}"
        yield table(
            ["option", "value", "default", "meaning"], [_option_row(o, _value_type(hints[o.name])) for o in found]
        )


def _value_type(hint: Any) -> type:
    """The type of an option's value: `str` of `list[str] | None`."""
    inner = [part for part in typing.get_args(hint) if part is not type(None)]
    return _value_type(inner[0]) if inner else hint


def _option_row(option: Any, kind: type) -> list[str]:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    value = "" if kind is bool else f"`{option.metavar or kind.__name__}`"
    return [flags, value, _option_default(option, kind), option.help]


def _option_default(option: Any, kind: type) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if kind is bool and option.default is not None:
        return "on" if option.default else "off"
    return code(option.default) if option.default not in (None, "") else ""


def _usage(argument: Any) -> str:
    return argument.name.upper() if argument.required else f"[{argument.name.upper()}]"
