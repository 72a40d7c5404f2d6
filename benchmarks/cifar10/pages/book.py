"""The plan, what there is of it, and which differences are read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.cifar10 import figures
from benchmarks.cifar10.kept import KeptRun, measured_rates
from benchmarks.cifar10.plan import BETWEEN, CONTROLLED, NCE, SIMCLR, PlannedRun, Rates, Scale, planned
from benchmarks.cifar10.summary import Cell, Judge, Spread, cells, pooled_spread

NOT_RUN = "not run"
INFONCE = [name for name, settings in {**NCE, **BETWEEN}.items() if settings["objective"] == "infonce"]
Spreads = Mapping[str, Spread]  # by protocol
Row = dict[str, str]
FLAT_AGAINST = (
    ("FlatNCE, temperature 0.1", "InfoNCE, temperature 0.1"),
    *((CONTROLLED, name) for name in (SIMCLR, *BETWEEN)),
)


@dataclass(frozen=True)
class Book:
    """The plan and what there is of it."""

    scale: Scale
    kept: Mapping[str, KeptRun]

    @property
    def rates(self) -> Rates:
        return measured_rates(self.kept, self.scale) or self.scale.starting_rates

    def runs(self, *stages: str) -> list[PlannedRun]:
        return planned(stages, self.scale, self.rates)

    def there(self, runs: Sequence[PlannedRun]) -> list[KeptRun]:
        return [self.kept[run.name] for run in runs if run.name in self.kept]

    def cells(self, *stages: str) -> list[Cell]:
        return cells(self.runs(*stages), self.kept)

    @cached_property
    def spread(self) -> Spreads:
        """Of InfoNCE and FlatNCE at the common length, so that a cell has one interval on all pages."""
        table = self.cells("grid", "grid-more", "tau", "ess")
        return {protocol: pooled_spread(table, protocol) for protocol in figures.PROTOCOLS}

    @property
    def short_spread(self) -> Spread:
        """Over seeds, by kNN, of runs that are short, or of those of full length until there are such."""
        short = pooled_spread(self.cells("equal-updates"), "knn")
        return short if short.freedom else self.spread["knn"]

    def grid(self) -> list[Cell]:
        """What is under comparison, and what lies between in batch size or temperature if any of it was run."""
        between = [self.cells("grid-more"), self.cells("tau")]
        return self.cells("grid") + [cell for group in between if any(c.runs for c in group) for cell in group]

    def batch_judge(self) -> Judge:
        """Over all differences that the page of batch sizes and docs/benchmarks.md speak of."""
        table, small, large = self.grid(), self.scale.small, self.scale.large
        pairs = [(name, small, name, large) for name in INFONCE]
        pairs += [(one, b, other, b) for b in sorted({c.batch for c in table}) for one, other in FLAT_AGAINST]
        pairs += [(CONTROLLED, small, name, large) for name in INFONCE]
        found = [(cell_of(table, *pair[:2]), cell_of(table, *pair[2:])) for pair in pairs]
        found += [(cell, cell_of(table, cell.objective, large)) for cell in self.cells("equal-updates")]
        return Judge.over([(one, other) for one, other in found if one and other], self.spread)


def cell_of(table: Sequence[Cell], objective: str, batch: int) -> Cell | None:
    return next((cell for cell in table if (cell.objective, cell.batch) == (objective, batch)), None)
