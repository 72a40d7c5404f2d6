"""What held, what did not, and what stays open: claims judged by intervals alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flatclr.evaluation.intervals import Score

HELD, FAILED, OPEN = "Held", "Did not hold", "Not told"


@dataclass(frozen=True)
class Claim:
    """Something about a subject, and by every measure of it a number that is above zero where it holds.

    >>> level, above = Score(0.0, -1.0, 1.0), Score(2.0, 1.0, 3.0)
    >>> Claim("a", "better than b", {"kNN": above, "linear": level}).verdict
    ('Held', 'better than b (by kNN; not told by linear)')
    >>> Claim("b", "better than a", {"kNN": Score(-2.0, -3.0, -1.0)}).verdict
    ('Did not hold', 'better than a')
    """

    subject: str
    predicate: str
    measured: Mapping[str, Score]

    @property
    def verdict(self) -> tuple[str, str]:
        """Which it is, and the predicate with what told it where not all measures did."""
        signs = {name: _sign(score) for name, score in self.measured.items()}
        told = [name for name in signs if signs[name]]
        if len({signs[name] for name in told}) != 1:
            return OPEN, f"{self.predicate} ({joined(told)} contradict each other)" if told else self.predicate
        word = HELD if signs[told[0]] > 0 else FAILED
        doubt = [name for name in signs if not signs[name]]
        return word, f"{self.predicate} (by {joined(told)}; not told by {joined(doubt)})" if doubt else self.predicate


def in_short(claims: Sequence[Claim], cannot: str) -> str:
    """The paragraph of a page.

    >>> above = {"kNN": Score(2.0, 1.0, 3.0)}
    >>> in_short([Claim("a", "good", above), Claim("b", "good", above), Claim("a", "cheap", {})], "why.")
    'Held: a and b good. Not told: a cheap. Cannot be shown here: why.'
    """
    groups: dict[str, dict[str, list[str]]] = {HELD: {}, FAILED: {}, OPEN: {}}
    for claim in claims:
        word, predicate = claim.verdict
        groups[word].setdefault(predicate, []).append(claim.subject)
    found = [f"{word}: {'; '.join(_told(group))}." for word, group in groups.items() if group]
    return " ".join([*found, f"Cannot be shown here: {cannot}"])


def joined(parts: Iterable[str]) -> str:
    """
    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _told(group: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from (f"{joined(subjects)} {predicate}" for predicate, subjects in group.items())


def _sign(score: Score) -> int:
    return 0 if math.isnan(score.low) else (score.low > 0) - (score.high < 0)
