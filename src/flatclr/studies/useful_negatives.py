"""Given the frequencies of classes, how many negatives are useful: what the latent-class model answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from flatclr.checks import require_count, require_number
from flatclr.data.progress import Progress
from flatclr.studies.latent_classes import Minimum, collision_probability, minimise, supervised_loss

TOGETHER = 1e-3  # 1 less the cosine of two classes that cannot be told apart
ROUNDING = 1e-9  # of losses
SETTLED = 1e-6  # the slope at a minimum, as a part of the rarest class's share of the loss: cosines are right to 1e-4
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
        converged: whether the minimiser did, as far as the other numbers need it.
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
    def unsettled(self) -> tuple[AtNegatives, ...]:
        """Those that the answer rests on and whose minimisation did not converge; the answer cannot be told then."""
        place = next((place for place, row in enumerate(self.rows) if self._enough(row)), len(self.rows))
        return tuple(row for row in (*self.rows[: place + 1], self.limit) if not row.converged)

    @property
    def never_rises(self) -> bool:
        """Whether more negatives never raise the loss by more than rounding."""
        losses = [row.supervised for row in (*self.rows, self.limit)]
        return all(later <= earlier + ROUNDING for earlier, later in pairwise(losses))

    @property
    def useful(self) -> int | None:
        """The least k of the rows from which the loss falls no more, but for `within`, and no more classes separate.

        None where more than all of the rows are useful, and where some are `unsettled`.
        """
        if self.unsettled:
            return None
        return next((row.negatives for row in self.rows if self._enough(row)), None)

    def _enough(self, row: AtNegatives) -> bool:
        separated = len(row.together) <= len(self.limit.together)
        return separated and row.supervised <= (1 + self.within) * self.limit.supervised


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
    prior: Tensor,
    *,
    most: int = DEFAULT_MOST,
    within: float = DEFAULT_WITHIN,
    starts: int = 2,
    progress: Progress | None = None,
) -> UsefulNegatives:
    """How many negatives are useful for these frequencies of classes.

    Args:
        prior: of the classes, from `class_prior`.
        most: the largest k to try; all powers of two up to it are.
        within: how much above the loss of many negatives still counts as equal.
        starts: of each minimisation.
        progress: called with (what, done, total).

    Returns:
        The supervised loss and what coincides for each k, and the least k that is enough.

    >>> from flatclr.studies.latent_classes import class_prior
    >>> useful_negatives(class_prior([1, 1, 1]), most=4).useful
    1
    """
    require_count("classes", len(prior), at_least=2, at_most=MOST_CLASSES, advice="join rare classes.")
    require_count("most", most, at_most=2**20, advice="4096 is the default.")
    require_number("within", within, above=0, below=1, advice="0.01 is the default.")
    tried = [*powers_of_two(most), None]
    found = []
    for done, k in enumerate(tried):
        if progress is not None:
            progress("minimising the loss", done, len(tried))
        found.append(at_negatives(prior, k, starts=starts))
    return UsefulNegatives(tuple(found[:-1]), found[-1], within)


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
        converged=minimum.slope < SETTLED * prior.min().item() and minimum.spread < ROUNDING,
    )


def _together(minimum: Minimum) -> tuple[tuple[int, int], ...]:
    pairs = (minimum.gram > 1 - TOGETHER).triu(1).nonzero().tolist()
    return tuple((first, second) for first, second in pairs)
