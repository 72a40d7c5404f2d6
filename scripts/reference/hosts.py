"""Integrations as their files say, whether or not the libraries are there that they are for.

What a page has of them, signatures and docstrings, is the same on every machine: stand-ins take the libraries' places
while a module is read, and no trace of them is left.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

HOSTS = {  # module of this package -> libraries that it imports
    "flatclr.integrations.lightning": ("lightning",),
    "flatclr.integrations.sentence_transformers": ("sentence_transformers", "transformers"),
}


def module_named(name: str) -> ModuleType:
    """A module of this package; one that needs a library of others is read with stand-ins for it.

    >>> module_named("flatclr.integrations.lightning").ContrastMonitor.__name__
    'ContrastMonitor'
    """
    return _read_without_hosts(name) if name in HOSTS else importlib.import_module(name)


@cache
def _read_without_hosts(name: str) -> ModuleType:
    importlib.import_module(name.rpartition(".")[0])  # which keeps the modules it holds as attributes
    with _stand_ins(HOSTS[name]), _as_before(name):
        return importlib.import_module(name)


@contextmanager
def _stand_ins(libraries: tuple[str, ...]) -> Iterator[None]:
    finder = _Finder(libraries)
    with _as_before(*libraries):
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


@contextmanager
def _as_before(*names: str) -> Iterator[None]:
    """Without these modules for a while, and afterwards with those that were there."""
    before = {name: module for name, module in sys.modules.items() if _is_of(name, names)}
    for name in before:
        del sys.modules[name]
    parents = [(sys.modules[p], c) for p, _, c in (n.rpartition(".") for n in names) if p in sys.modules]
    bound = [(parent, child, getattr(parent, child, None)) for parent, child in parents]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_of(name, names)]:
            del sys.modules[name]
        sys.modules.update(before)
        for parent, child, value in bound:
            if value is not None:
                setattr(parent, child, value)
            elif hasattr(parent, child):
                delattr(parent, child)


def _is_of(name: str, names: Sequence[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in names)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of some libraries."""

    def __init__(self, libraries: Sequence[str]) -> None:
        self.libraries = libraries

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not _is_of(name, self.libraries):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


class _StandIn(ModuleType):
    """A module that has a class of every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made
