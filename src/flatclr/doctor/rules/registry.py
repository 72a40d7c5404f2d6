"""The rules by the name of what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flatclr.doctor.diagnosis import Finding
from flatclr.doctor.evidence import Evidence

Look = Callable[[Evidence], Finding | None]


@dataclass(frozen=True)
class Rule:
    """One fault and how it is seen.

    Args:
        name: of the fault.
        look: returns the finding, or None where it is not seen or what it needs was not measured.
        effect_of: faults that bring it about: where one of them is found too, that comes first.
    """

    name: str
    look: Look
    effect_of: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}


def rule(name: str, *, effect_of: tuple[str, ...] = ()) -> Callable[[Look], Look]:
    """Register a function as the rule of a fault."""

    def register(look: Look) -> Look:
        RULES[name] = Rule(name, look, effect_of)
        return look

    return register
