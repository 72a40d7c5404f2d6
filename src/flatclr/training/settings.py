"""A setting of a config: its default, the group it belongs to, what it means, and what is refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from flatclr.checks import require_count, require_number, require_one_of

BY_DEFAULT = "; None: "  # how a setting says what holds where it has no value
GROUPS = ("data", "network", "objective", "optimisation", "hardware", "output")

Check = Callable[[str, Any], None]  # of a setting's name and value; raises what is wrong with it


@dataclass(frozen=True)
class Setting:
    """A row of the table that reference pages, `--help` and listings are made from.

    Args:
        name: of the field, and of the line in config.yaml.
        type: as it is written in the code, say "int | None".
        default: what holds where nothing is said.
        group: one of `GROUPS`.
        help: what it means, in one sentence or two.
    """

    name: str
    type: str
    default: Any
    group: str
    help: str


def setting(default: Any, group: str, help: str, check: Check | None = None) -> Any:
    """A field of a config that says what it means; a mapping is copied for every config.

    >>> @dataclass(frozen=True)
    ... class Config:
    ...     steps: int = setting(10, "optimisation", "Optimizer steps.", positive_count)
    >>> settings_of(Config)
    [Setting(name='steps', type='int', default=10, group='optimisation', help='Optimizer steps.')]
    >>> require_settings(Config(steps=0))
    Traceback (most recent call last):
    ValueError: steps must be a whole number >= 1, got 0; pass a larger whole number.
    """
    require_one_of("group", group, GROUPS)
    metadata = {"group": group, "help": help, "check": check}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(config: type[Any]) -> list[Setting]:
    """The settings of a config class, group by group."""
    rows = [
        Setting(
            name=f.name,
            type=f.type if isinstance(f.type, str) else f.type.__name__,
            default=f.default if f.default_factory is MISSING else f.default_factory(),
            group=f.metadata["group"],
            help=f.metadata["help"],
        )
        for f in fields(config)
    ]
    return sorted(rows, key=lambda row: GROUPS.index(row.group))


def require_settings(config: Any) -> None:
    """Refuse the first setting that its own check refuses."""
    for f in fields(config):
        if f.metadata["check"] is not None:
            f.metadata["check"](f.name, getattr(config, f.name))


def require_known(config: type[Any], names: Collection[str]) -> None:
    """Refuse names that are no settings, with the nearest that are."""
    known = [f.name for f in fields(config)]
    for name in names:
        if name not in known:
            near = " or ".join(map(repr, difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)))
            advice = f"did you mean {near}?" if near else "see flatclr.training.describe_settings() for all of them."
            raise ValueError(f"a setting must be one of {config.__name__}'s {len(known)}, got {name!r}; {advice}")


def optional(check: Check) -> Check:
    """None, or what the check allows."""
    return lambda name, value: None if value is None else check(name, value)


def one_of(allowed: Collection[str], *more: str, untold: Collection[str] = ()) -> Check:
    """A name of the list, which may grow, or one more; those that are `untold` are taken, but not offered."""
    return lambda name, value: None if value in untold else require_one_of(name, value, [*allowed, *more])


def positive_count(name: str, value: Any) -> None:
    require_count(name, value, advice="pass a larger whole number.")


def optional_count(name: str, value: Any) -> None:
    if value is not None:
        require_count(name, value, advice="pass a larger whole number, or leave it out.")


def at_most(most: int, advice: str) -> Check:
    """A whole number from 1 on, up to a largest one."""
    return lambda name, value: require_count(name, value, at_most=most, advice=advice)


def count_or_zero(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        kind = ValueError if type(value) is int else TypeError
        raise kind(f"{name} must be a whole number >= 0, got {value!r}; pass 0 for none.")


def positive(name: str, value: Any) -> None:
    require_number(name, value, above=0)


def not_negative(name: str, value: Any) -> None:
    require_number(name, value, above=-1e-12, advice="pass 0 or more.")


def between_0_and_1(name: str, value: Any) -> None:
    require_number(name, value, above=0, below=1)


def share(name: str, value: Any) -> None:
    require_number(name, value, above=-1e-12, below=1 + 1e-12, advice="pass 0 to 1, say 0.01.")


def true_or_false(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {value!r}; pass one of these.")


def named_values(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be named values, got {value!r}; for example {{width: 64}}.")


def text(like: str) -> Check:
    """A text, such as these."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, got {value!r}; say {like}.")

    return check


def path(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str | Path):
        raise TypeError(f"{name} must be a path, got {value!r}; put it in quotes.")
    if value == "":
        raise ValueError(f"{name} must be a path, got ''; name one, or leave it out.")
