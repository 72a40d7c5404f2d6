"""What a protocol is, and what it says it has measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from flatclr.evaluation.bench import Bench
from flatclr.evaluation.scores import Scores, is_unbalanced, score_predictions


@dataclass(frozen=True)
class Measured:
    """Scores of one variant of a protocol, and what was fixed or selected on training data to get them."""

    scores: Scores
    variant: str = ""
    chosen: Mapping[str, Any] = field(default_factory=dict)


def _enough(bench: Bench) -> str | None:
    """Nothing is lacking."""
    return None


@dataclass(frozen=True)
class Protocol:
    """One way to measure an encoder. Its version changes whenever its numbers would."""

    version: int
    run: Callable[[Bench], Iterator[Measured]]
    needs_labels: bool = True
    one_class: bool = False  # images of several classes are refused
    trains: bool = False  # changes weights, so it looks at no layer and needs a module
    elsewhere: bool = False  # on data of its own
    needs_images: bool = False  # makes views or crops of them
    too_few: Callable[[Bench], str | None] = _enough  # what is lacking, as in "must have X, got Y"


def scored(bench: Bench, *draws: Tensor) -> Scores:
    """Predictions for the test images, [N, classes] of every draw, against their labels."""
    unbalanced = is_unbalanced(bench.data.labels)
    return score_predictions(draws, bench.test_labels, bench.data.train.classes, unbalanced=unbalanced, seed=bench.seed)
