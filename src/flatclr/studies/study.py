"""What a study is: the runs it plans, the numbers they leave, what is drawn of them, and claims with their criteria."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatclr.evaluation.intervals import Score
from flatclr.files import json_ready
from flatclr.studies.judging import Verdict, mean_score
from flatclr.training.stopping import StopRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]
Numbers = dict[str, Any]  # what a run measured: numbers, texts, and lists and mappings of them, as JSON has them
Row = Mapping[str, str]  # of a table: a text by column
OVER_SEEDS = "95 % intervals over seeds"
FILLED_BY = "filled by"  # the column of the command in rows of what is empty


@dataclass(frozen=True)
class Job:
    """One run at work.

    Args:
        settings: of the run.
        seed: of everything random in it.
        device: "cpu", "cuda" or "cuda:1".
        folder: of its own, for what it needs to go on after a kill; it need not exist.
        stop: asks it to stop where it can go on later.
    """

    settings: Settings
    seed: int
    device: str
    folder: Path
    stop: StopRequest = field(default_factory=StopRequest)


Measure = Callable[[Job], Numbers]
"""A function at the top of a module, so that another process can be told of it."""


@dataclass(frozen=True)
class Run:
    """Something to measure.

    Args:
        arm: what is compared, as tables call it; runs of one arm differ in their seeds.
        seed: of everything random in it.
        measure: a function of a module that measures it.
        settings: that it measures at; plain values, kept beside the numbers.
        shared: whether it is kept for all studies, so that another one that plans the same does not make it again.
        asked: whether it is to be made; one that is not still counts where it is kept.

    >>> Run("FlatNCE, ESS 0.25", 1, print).name
    'flatnce-ess-0.25-s1'
    >>> Run("a", 1, print, {"nats": 2}).digest == Run("b", 1, print, {"nats": 2}).digest
    True
    """

    arm: str
    seed: int
    measure: Measure
    settings: Settings = field(default_factory=dict)
    shared: bool = False
    asked: bool = True

    @property
    def name(self) -> str:
        """Within its study."""
        return f"{re.sub(r'[^a-z0-9.]+', '-', self.arm.lower()).strip('-')}-s{self.seed}"

    @property
    def digest(self) -> str:
        """Of what is measured and how, whatever a study calls it."""
        content = [self.measure.__module__, self.measure.__qualname__, json_ready(dict(self.settings))]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Kept:
    """A finished run.

    Args:
        run: its name.
        arm: what is compared.
        seed: of everything random in it.
        settings: that it was measured at.
        numbers: what it measured.
        seconds: that it took.
        environment: where: hardware, versions, commit.
    """

    run: str
    arm: str
    seed: int
    settings: Settings
    numbers: Numbers
    seconds: float
    environment: Mapping[str, Any]


class Found:
    """The finished runs of a study, in the order of its plan.

    Args:
        kept: the runs.

    >>> kept = [Kept(f"a-s{seed}", "a", seed, {}, {"nats": 2.0 + seed}, 1.0, {}) for seed in range(2)]
    >>> Found(kept).values("a", "nats"), "a-s1" in Found(kept)
    ([2.0, 3.0], True)
    """

    def __init__(self, kept: Sequence[Kept] = ()) -> None:
        self._kept = {one.run: one for one in kept}

    def __contains__(self, run: str) -> bool:
        return run in self._kept

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def first(self, seeds: int) -> Found:
        """The runs of so many seeds: what decides about further ones, and must not change when these are there."""
        return Found([one for one in self if one.seed < seeds])

    @property
    def arms(self) -> list[str]:
        """In the order of the plan."""
        return list(dict.fromkeys(one.arm for one in self))

    def of(self, arm: str) -> list[Kept]:
        """The runs of an arm, by seed."""
        return sorted((one for one in self if one.arm == arm), key=lambda one: one.seed)

    def one(self, arm: str) -> Kept:
        """The run of an arm that has one."""
        return self.of(arm)[0]

    def values(self, arm: str, number: str) -> list[float]:
        """A number of every run of an arm, by seed."""
        return [float(one.numbers[number]) for one in self.of(arm)]

    def mean(self, arm: str, number: str) -> Score:
        """Over seeds, with its interval."""
        return mean_score(self.values(arm, number))

    def differences(self, one: str, other: str, number: str) -> list[float]:
        """One arm less another, seed by seed."""
        first, second = ({kept.seed: float(kept.numbers[number]) for kept in self.of(arm)} for arm in (one, other))
        return [first[seed] - second[seed] for seed in first if seed in second]

    def difference(self, one: str, other: str, number: str) -> Score:
        """The mean of `differences`, with its interval: seeds are paired."""
        return mean_score(self.differences(one, other, number))


@dataclass(frozen=True)
class Plan:
    """How large a study is to be.

    Args:
        seeds: to run.
        quick: a smoke test of the same code, which says nothing of the claims.
        found: what is finished, for runs that depend on it.
        options: of the study, by name.
    """

    seeds: range
    quick: bool
    found: Found
    options: Mapping[str, float | str]


def every_run(run: Run) -> bool:
    """What a claim needs that says nothing else."""
    return True


@dataclass(frozen=True)
class Claim:
    """A statement of the literature and how it is judged.

    Args:
        source: where it stands.
        statement: what is claimed.
        criterion: when it holds, written before the runs.
        judge: of the finished runs.
        needs: which planned runs must be finished before it can be judged.

    >>> judge = lambda found: Verdict("held", "It is so.")
    >>> Claim("Fig. 1", "FlatNCE goes on rising.", "interval above 0", judge).judge(Found()).word
    'held'
    """

    source: str
    statement: str
    criterion: str
    judge: Callable[[Found], Verdict]
    needs: Callable[[Run], bool] = every_run


def no_notes(found: Found) -> list[str]:
    """Of a study whose table says it all."""
    return []


def nothing_empty(found: Found) -> list[Row]:
    """Of a study that does not list what is missing."""
    return []


def no_summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Of a study whose verdicts say it all."""
    return []


@dataclass(frozen=True)
class Study:
    """An experiment of the literature.

    Args:
        name: on the command line.
        title: one line.
        source: the paper and the place in it.
        experiment: what is done, in a few sentences.
        changed: what differs from the source, and why.
        claims: that it judges.
        plan: the runs that are known so far, the most valuable first; asked again whenever one is finished, until it
            has no more.
        table: rows of the finished runs.
        draw: figures by name of the finished runs.
        seeds: of the full size.
        budget: what the full size takes.
        options: that a user may change, by name, with what they are otherwise.
        notes: of the finished runs, below the table: what it shows besides the claims.
        empty: rows of what no run has filled yet, each with the command that does.
        summary: of the verdicts, in plain sentences.
        brackets: what those on its page are; "" where it has none.

    >>> [claim.source for claim in flatclr.studies.load_study("cost").claims]
    ['FlatNCE paper (Chen et al. 2021), Table S1']
    """

    name: str
    title: str
    source: str
    experiment: str
    changed: str
    claims: tuple[Claim, ...]
    plan: Callable[[Plan], list[Run]]
    table: Callable[[Found], list[Row]]
    draw: Callable[[Found], Mapping[str, Figure]]
    seeds: int
    budget: str
    options: Mapping[str, float | str] = field(default_factory=dict)
    notes: Callable[[Found], list[str]] = no_notes
    empty: Callable[[Found], list[Row]] = nothing_empty
    summary: Callable[[Sequence[Verdict]], list[str]] = no_summary
    brackets: str = OVER_SEEDS
