"""What held, what did not, and what cannot be told: claims judged as those of studies are, by intervals alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flatclr.evaluation.intervals import Score
from flatclr.studies.judging import FAILED, HELD, OPEN, above

ORDER = (HELD, FAILED, OPEN)
PLURAL = {"is": "are", "goes": "go"}  # verbs whose plural is not the singular without its s


@dataclass(frozen=True)
class Claim:
    """Something about a subject, and by every measure of it a number that is above zero where it holds.

    The predicate begins with its verb.

    >>> level, above = Score(0.0, -1.0, 1.0), Score(2.0, 1.0, 3.0)
    >>> Claim("a", "is better than b", {"kNN": above, "linear": level}).verdict
    'held by kNN, cannot be told here by linear'
    >>> Claim("b", "is better than a", {"kNN": Score(-2.0, -3.0, -1.0)}).verdict
    'did not hold'
    """

    subject: str
    predicate: str
    measured: Mapping[str, Score]

    @property
    def verdict(self) -> str:
        """Whether it held, and by which measures where not all of them say so."""
        words = {name: above(score) for name, score in self.measured.items()}
        told = [name for name, word in words.items() if word != OPEN]
        if len({words[name] for name in told}) != 1:
            return f"{OPEN}: {joined(told)} contradict each other" if told else OPEN
        doubt = [name for name, word in words.items() if word == OPEN]
        word = words[told[0]]
        return f"{word} by {joined(told)}, {OPEN} by {joined(doubt)}" if doubt else word


def judged(claims: Sequence[Claim]) -> list[dict[str, str]]:
    """A row per claim and verdict, those that held first; subjects of one claim stand together.

    >>> above = {"kNN": Score(2.0, 1.0, 3.0)}
    >>> for row in judged([Claim("a", "is cheap", {}), Claim("a", "is good", above), Claim("b", "is good", above)]):
    ...     print(row["claim"], "|", row["verdict"])
    a and b are good. | held
    a is cheap. | cannot be told here
    """
    subjects: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        subjects.setdefault((claim.verdict, claim.predicate), []).append(claim.subject)
    in_order = sorted(subjects, key=lambda found: next(i for i, word in enumerate(ORDER) if found[0].startswith(word)))
    return [{"claim": _sentence(subjects[found], found[1]), "verdict": found[0]} for found in in_order]


def joined(parts: Iterable[str], by: str = "and") -> str:
    """
    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} {by} {last}" if most else last


def _sentence(subjects: Sequence[str], predicate: str) -> str:
    verb, _, rest = predicate.partition(" ")
    if len(subjects) > 1:
        verb = PLURAL.get(verb, verb.removesuffix("s"))
    return f"{joined(subjects)} {verb} {rest}."
