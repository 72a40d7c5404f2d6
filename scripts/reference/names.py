"""Which names are public, where each is documented, and what is said of those that carry no docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from flatclr.contrast.numerics import Cached
from scripts.reference.hosts import module_named

PAGES = {  # page -> modules whose public names it documents, the first of them by its own docstring
    "contrast": ("flatclr.contrast",),
    "objectives": ("flatclr.objectives",),
    "diagnostics": ("flatclr.diagnostics",),
    "mutual-information": ("flatclr.mi", "flatclr.mi.bounds", "flatclr.mi.limits", "flatclr.mi.tasks"),
    "data": ("flatclr.data", "flatclr.data.views"),
    "models": ("flatclr.models",),
    "training": ("flatclr.training", "flatclr.training.estimator"),
    "evaluation": ("flatclr.evaluation",),
    "doctor": ("flatclr.doctor",),
    "studies": ("flatclr.studies",),
    "integrations": (
        "flatclr.integrations",
        "flatclr.integrations.sentence_transformers",
        "flatclr.integrations.open_clip",
        "flatclr.integrations.lightning",
    ),
}


@dataclass(frozen=True)
class Entry:
    """A public name: the shortest path it is imported by, and the page that documents it."""

    path: str
    module: str  # that exports it
    name: str
    page: str
    value: Any

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @property
    def is_function(self) -> bool:
        return inspect.isfunction(self.value)

    @property
    def doc(self) -> str:
        """The docstring of a function or class; of a value, the text below its assignment."""
        if self.is_class or self.is_function:
            return inspect.cleandoc(self.value.__doc__ or "")
        return value_doc(self.module, self.name)

    @property
    def anchor(self) -> str:
        """What a code host makes of the heading."""
        return self.path.lower().replace(".", "")


def entries() -> list[Entry]:
    """Every public name once, page by page; a name of `flatclr` itself is called by that path."""
    top = importlib.import_module("flatclr")
    short = {id(getattr(top, name)): name for name in top.__all__ if not inspect.ismodule(getattr(top, name))}
    found: dict[tuple[str, int], Entry] = {}
    for page, modules in PAGES.items():
        for module in modules:
            for name, value in public_names(module_named(module)):
                key = (name, id(value))
                if key not in found:
                    path = f"flatclr.{name}" if short.get(id(value)) == name else f"{module}.{name}"
                    found[key] = Entry(path, module, name, page, value)
    return list(found.values())


def undocumented() -> list[str]:
    """Names of `flatclr` that no page documents."""
    top = importlib.import_module("flatclr")
    known = {id(entry.value) for entry in entries()}
    values = ((name, getattr(top, name)) for name in top.__all__)
    return [name for name, value in values if not inspect.ismodule(value) and id(value) not in known]


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module exports, submodules left out; without a list, what it defines."""
    for name in getattr(module, "__all__", None) or _defined(module):
        value = getattr(module, name)
        if not inspect.ismodule(value):
            yield name, value


def members(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Methods and properties with a docstring of their own, those of bases that are not public included."""
    public = {id(other.value) for other in entries()}
    seen: set[str] = set()
    for base in entry.value.__mro__:
        if not base.__module__.startswith("flatclr") or (base is not entry.value and id(base) in public):
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in seen and callable_of(member) is not None:
                seen.add(name)
                if callable_of(member).__doc__:
                    yield name, member


def callable_of(member: Any) -> Any:
    """The function under a property, class method or plain method; None for anything else."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    if isinstance(member, cached_property):
        return member.func
    if isinstance(member, Cached):
        return member.compute
    return member if inspect.isfunction(member) else None


def value_doc(module: str, name: str) -> str:
    """The text below an assignment, followed through imports to where it stands."""
    body = ast.parse(inspect.getsource(module_named(module))).body
    for place, statement in enumerate(body):
        if isinstance(statement, ast.ImportFrom) and name in (alias.name for alias in statement.names):
            assert statement.module is not None
            return value_doc(statement.module, name)
        if name in _assigned(statement) and place + 1 < len(body):
            below = body[place + 1]
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return inspect.cleandoc(str(below.value.value))
    return ""


def _assigned(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _defined(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
