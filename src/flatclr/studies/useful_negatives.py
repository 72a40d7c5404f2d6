"""Given the frequencies of classes, how many negatives are useful: what the latent-class model answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from flatclr.checks import require_count, require_number
from flatclr.studies.latent_classes import Minimum, collision_probability, minimise, supervised_loss

TOGETHER = 1e-3  # 1 less the cosine of two classes that cannot be told apart
ROUNDING = 1e-9  # of losses
MOST_CLASSES = 100  # more take minutes
DEFAULT_MOST, DEFAULT_WITHIN = 4096, 0.01


@dataclass(frozen=True)
class AtNegatives:
    """The best representation with k negatives.

    Args:
        negatives: k; None: the limit of many.
        supervised: its supervised loss in nats.
        together: pairs of classes that coincide.
        nearest_cosine: of the two nearest classes.
        collision: probability that a negative is of the anchor's class; None in the limit.
        converged: whether the minimiser did.
    """

    negatives: int | None
    supervised: float
    together: tuple[tuple[int, int], ...]
    nearest_cosine: float
    collision: float | None
    converged: bool


@dataclass(frozen=True)
class UsefulNegatives:
    """How the supervised loss of the best representation depends on k.

    Args:
        rows: for rising k.
        limit: of many negatives.
        within: which part of the limit's loss still counts as nothing.
    """

    rows: tuple[AtNegatives, ...]
    limit: AtNegatives
    within: float

    @property
    def never_rises(self) -> bool:
        """Whether more negatives never raise the loss by more than rounding."""
        losses = [row.supervised for row in (*self.rows, self.limit)]
        return all(later <= earlier + ROUNDING for earlier, later in pairwise(losses))

    @property
    def useful(self) -> int | None:
        """The least k of the rows from which the loss falls no more, but for `within`, and no more classes separate.

        None where more than all of the rows are useful.
        """
        for row in self.rows:
            separated = len(row.together) <= len(self.limit.together)
            if separated and row.supervised <= (1 + self.within) * self.limit.supervised:
                return row.negatives
        return None


def powers_of_two(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, up to most.

    >>> list(powers_of_two(9))
    [1, 2, 4, 8]
    """
    k = 1
    while k <= most:
        yield k
        k *= 2


def useful_negatives(
    prior: Tensor, *, most: int = DEFAULT_MOST, within: float = DEFAULT_WITHIN, starts: int = 2
) -> UsefulNegatives:
    """How many negatives are useful for these frequencies of classes.

    Args:
        prior: of the classes, from `class_prior`.
        most: the largest k to try; all powers of two up to it are.
        within: how much above the loss of many negatives still counts as equal.
        starts: of each minimisation.

    Returns:
        The supervised loss and what coincides for each k, and the least k that is enough.

    >>> from flatclr.studies.latent_classes import class_prior
    >>> useful_negatives(class_prior([1, 1, 1]), most=4).useful
    1
    """
    require_count("classes", len(prior), at_least=2, at_most=MOST_CLASSES, advice="join rare classes.")
    require_count("most", most, at_most=2**20, advice="4096 is the default.")
    require_number("within", within, above=0, below=1, advice="0.01 is the default.")
    rows = tuple(at_negatives(prior, k, starts=starts) for k in powers_of_two(most))
    return UsefulNegatives(rows, at_negatives(prior, None, starts=starts), within)


def at_negatives(prior: Tensor, negatives: int | None, *, starts: int) -> AtNegatives:
    """The best representation with so many negatives."""
    minimum = minimise(prior, negatives=negatives, starts=starts)
    cosines = minimum.gram.clone().fill_diagonal_(-1)
    return AtNegatives(
        negatives=negatives,
        supervised=supervised_loss(minimum.points, prior).item(),
        together=_together(minimum),
        nearest_cosine=cosines.max().item(),
        collision=None if negatives is None else collision_probability(prior, negatives),
        converged=minimum.converged,
    )


def _together(minimum: Minimum) -> tuple[tuple[int, int], ...]:
    pairs = (minimum.gram > 1 - TOGETHER).triu(1).nonzero().tolist()
    return tuple((first, second) for first, second in pairs)
