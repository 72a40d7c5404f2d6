"""The pages of docs/reference, as text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from flatclr.contrast.numerics import Cached
from scripts.reference import tables
from scripts.reference.hosts import module_named
from scripts.reference.names import PAGES, Entry, callable_of, entries, members
from scripts.reference.text import arguments, markdown, signature, table

MADE = "<!-- written by `make docs` from the code; edit the docstrings instead -->"
TITLES = {
    "contrast": "Contrast",
    "objectives": "Objectives",
    "diagnostics": "Diagnostics",
    "mutual-information": "Mutual information",
    "data": "Data",
    "models": "Models",
    "training": "Training",
    "evaluation": "Evaluation",
    "doctor": "Doctor",
    "studies": "Studies",
    "integrations": "Integrations",
    "settings": "Settings of a run",
    "command-line": "Command line",
}
BEFORE: Mapping[str, Callable[[], str]] = {  # tables that stand above the names of a page
    "contrast": lambda: f"## Options\n\n{tables.contrast_options()}\n\n{tables.pairings_and_routes()}",
    "objectives": lambda: f"## Registry\n\n{tables.objectives()}",
    "mutual-information": lambda: f"## Methods\n\n{tables.methods()}",
}
LINK = re.compile(r"`([\w.]+)(\(\))?`")


def pages() -> dict[str, str]:
    """File name -> content, the index first."""
    found = entries()
    link = _linker(found)
    written = {f"{page}.md": _names_page(page, found, link) for page in PAGES}
    written["settings.md"] = _page("settings", _settings())
    written["command-line.md"] = _page("command-line", ["Bad input ends with one line and exit code 2.", *_commands()])
    return {"README.md": _index(found), **written}


def _settings() -> Iterator[str]:
    yield (
        "The fields of `flatclr.TrainConfig`, the lines of `config.yaml`, and the names that `flatclr train --set "
        "NAME=VALUE` takes. Many have an option of their own ([command line](command-line.md#flatclr-train))."
    )
    yield from tables.settings()


def _commands() -> Iterator[str]:
    yield from tables.commands()


def _page(page: str, blocks: Any) -> str:
    return "\n\n".join([f"# {TITLES[page]}", MADE, *blocks]) + "\n"


def _names_page(page: str, found: list[Entry], link: Callable[[str], str]) -> str:
    module = module_named(PAGES[page][0])
    blocks = [markdown(inspect.cleandoc(module.__doc__ or ""), link)]
    if page in BEFORE:
        blocks.append(BEFORE[page]())
    for name in PAGES[page]:
        own = [entry for entry in found if entry.page == page and entry.module == name]
        if own:
            blocks.append(f"## {name}")
        for entry in own:
            blocks += _described(entry, link)
    return _page(page, blocks)


def _described(entry: Entry, link: Callable[[str], str]) -> Iterator[str]:
    yield f"### {entry.path}"
    if not (entry.is_class or entry.is_function):
        yield markdown(entry.doc, link)
        yield from _value(entry.value)
        return
    shown = signature(entry.path, entry.value)
    if entry.is_class and not arguments(entry.doc):
        shown = f"class {entry.path}"  # made by another function, or described by a table
    yield f"```text\n{shown}\n```"
    yield markdown(entry.doc, link)
    if entry.is_class:
        yield from _based_on(entry, link)
        for name, member in members(entry):
            yield f"#### {entry.name}.{name}"
            function = callable_of(member)
            if not _is_read(member):
                yield f"```text\n{signature(f'{entry.name}.{name}', function)}\n```"
            yield markdown(inspect.cleandoc(function.__doc__), link)


def _is_read(member: Any) -> bool:
    """A property, cached or not."""
    return isinstance(member, property | cached_property | Cached)


def _based_on(entry: Entry, link: Callable[[str], str]) -> Iterator[str]:
    bases = [link(f"`{base.__name__}`") for base in entry.value.__bases__]
    linked = [base for base in bases if base.startswith("[")]
    if linked:
        yield f"Based on {', '.join(linked)}, with its fields and methods."


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) or (isinstance(value, tuple) and all(isinstance(item, str) for item in value)):
        yield f"Names: {', '.join(f'`{name}`' for name in value)}."
    elif isinstance(value, tuple) or not callable(value):
        yield f"```text\n{value!r}\n```"


def _linker(found: list[Entry]) -> Callable[[str], str]:
    """Turns public names in backquotes into links."""
    targets = {entry.path: entry for entry in found}
    for entry in found:
        if entry.name[0].isupper() or "_" in entry.name:
            targets.setdefault(entry.name, entry)

    def replaced(match: re.Match[str]) -> str:
        entry = targets.get(match[1])
        return match[0] if entry is None else f"[{match[0]}]({entry.page}.md#{entry.anchor})"

    return lambda text: LINK.sub(replaced, text)


def _index(found: list[Entry]) -> str:
    about = {
        "settings": "every field of `TrainConfig`, and the recipes",
        "command-line": "every command and option of `flatclr`",
        **{page: ", ".join(f"`{name}`" for name in modules) for page, modules in PAGES.items()},
    }
    rows = [[f"[{title}]({page}.md)", about[page]] for page, title in TITLES.items()]
    names = sorted(found, key=lambda entry: (entry.path.lower(), entry.path))
    listed = ([f"[`{entry.path}`]({entry.page}.md#{entry.anchor})", _summary(entry)] for entry in names)
    return (
        "\n\n".join(
            [
                "# Reference",
                MADE,
                table(["page", "what it has"], rows),
                "## Names",
                table(["name", "what it is"], listed),
            ]
        )
        + "\n"
    )


def _summary(entry: Entry) -> str:
    return " ".join(entry.doc.split("\n\n")[0].split())
