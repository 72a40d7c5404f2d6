"""What no estimator can do: ceilings and variances to print beside an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatclr.checks import require_count, require_number

_NEAR = 0.9  # of a ceiling
LARGEST_EXPONENT = 700.0
ROWS, NEGATIVES = "count the samples.", "count the pairs that are averaged over."


@dataclass(frozen=True)
class Limits:
    """The limits of one estimate in nats.

    Args:
        nats: the estimate.
        ceiling_nats: the most the method could have said: log K, log of the pool; infinite where there is no limit.
        rows: that the value was read from.
        negative_pairs: that it averages over, or could: all pairs of its rows.
        ceiling_hides: False where the information itself cannot be larger than the ceiling, as with an entropy.

    >>> limits = Limits(nats=2.0, ceiling_nats=4.85, rows=1000, negative_pairs=1000 * 127)
    >>> round(limits.distribution_free_nats, 2), round(limits.mi_bound_nats, 2), round(limits.nwj_variance, 6)
    (6.91, 18.82, 5e-05)
    """

    nats: float
    ceiling_nats: float
    rows: int
    negative_pairs: int
    ceiling_hides: bool = True

    @property
    def distribution_free_nats(self) -> float:
        """ln N of these rows, see `distribution_free_nats`."""
        return distribution_free_nats(self.rows)

    @property
    def mi_bound_nats(self) -> float:
        """2 ln N + 5 of these rows, see `mi_bound_nats`."""
        return mi_bound_nats(self.rows)

    @property
    def nwj_variance(self) -> float:
        """The least variance the NWJ family must have at this information with these negative pairs."""
        return nwj_least_variance(max(self.nats, 0.0), self.negative_pairs)

    def warnings(self) -> list[str]:
        """One sentence for each limit that the estimate is within a tenth of."""
        found = []
        hiding = self.ceiling_nats if self.ceiling_hides else math.inf
        for name, ceiling in (
            (f"the method's ceiling of {hiding:.2f} nats", hiding),
            (f"ln N = {self.distribution_free_nats:.2f} nats of {self.rows} rows", self.distribution_free_nats),
        ):
            if self.nats > _NEAR * ceiling:
                found.append(f"the estimate is within 10 % of {name}; the true value may be larger.")
        return found


def all_pairs(rows: int) -> int:
    """Pairs of rows that do not belong together, N (N - 1): each row's x with every other row's y.

    Args:
        rows: N.

    Returns:
        How many.

    >>> all_pairs(128)
    16256
    """
    require_count("rows", rows, advice=ROWS)
    return rows * (rows - 1)


def info_nce_ceiling_nats(negatives: int) -> float:
    """The most InfoNCE can report, log(M + 1).

    Args:
        negatives: M, of each anchor.

    Returns:
        Nats.

    >>> round(info_nce_ceiling_nats(negatives=127), 2)
    4.85

    Reference: van den Oord et al. 2018.
    """
    require_count("negatives", negatives, at_least=0, advice="count those of an anchor.")
    return math.log(negatives + 1)


def distribution_free_nats(rows: int) -> float:
    """The most a high-confidence distribution-free lower bound on a KL divergence can be, about ln N.

    Args:
        rows: N.

    Returns:
        Nats.

    >>> round(distribution_free_nats(rows=10_000), 2)
    9.21

    Reference: McAllester & Stratos 2020.
    """
    require_count("rows", rows, advice=ROWS)
    return math.log(rows)


def mi_bound_nats(rows: int) -> float:
    """What such a lower bound on mutual information exceeds with probability at most 0.04, 2 ln N + 5.

    Args:
        rows: N.

    Returns:
        Nats.

    >>> round(mi_bound_nats(rows=10_000), 2)
    23.42

    Reference: McAllester & Stratos 2020.
    """
    require_count("rows", rows, advice=ROWS)
    return 2 * math.log(rows) + 5


def entropy_limit_nats(rows: int, k: float = 20.0) -> float:
    """The most that a distribution-free lower bound on an entropy can be, ln(2 k N^2).

    From that many equal symbols N draws hardly ever repeat one, so they look like draws from any larger entropy.

    Args:
        rows: N.
        k: the bound is above the limit with a probability of at most 1.01 / k.

    Returns:
        Nats.

    >>> round(entropy_limit_nats(rows=10_000), 2)
    22.11

    Reference: McAllester & Stratos 2020.
    """
    require_count("rows", rows, advice=ROWS)
    require_number("k", k, above=0, advice="20 is the published choice.")
    return math.log(2) + math.log(k) + 2 * math.log(rows)


def nwj_least_variance(mi_nats: float, negatives: int) -> float:
    """The least variance of the NWJ family's partition term at its optimum, (e^I - 1) / M.

    Args:
        mi_nats: I, the information.
        negatives: M, the negative pairs that are averaged over.

    Returns:
        Nats squared; infinite where it would overflow.

    >>> round(nwj_least_variance(mi_nats=10, negatives=16_256), 3)
    1.355

    Reference: Song & Ermon 2020.
    """
    require_number("mi_nats", mi_nats)
    require_count("negatives", negatives, advice=NEGATIVES)
    return math.expm1(mi_nats) / negatives if mi_nats < LARGEST_EXPONENT else math.inf


def gaussian_nwj_variance(mi_nats: float, negatives: int) -> float:
    """The variance of the NWJ partition term at its optimum on equally correlated Gaussian pairs, chi^2 / M.

    chi^2 + 1 = prod 1 / (1 - rho^2) = e^(2 I), whatever the number of pairs.

    Args:
        mi_nats: I, the information.
        negatives: M, the negative pairs that are averaged over.

    Returns:
        Nats squared; infinite where it would overflow.

    >>> round(gaussian_nwj_variance(mi_nats=2, negatives=16_256), 5)
    0.0033
    """
    require_number("mi_nats", mi_nats)
    require_count("negatives", negatives, advice=NEGATIVES)
    return math.expm1(2 * mi_nats) / negatives if 2 * mi_nats < LARGEST_EXPONENT else math.inf


def dv_bias_nats(chi_squared: float, negatives: int) -> float:
    """By how much DV reads too high at the optimal critic, to first order, chi^2 / (2 M).

    Args:
        chi_squared: E_q r^2 - 1, r the density ratio.
        negatives: M, the negative pairs that are averaged over.

    Returns:
        Nats.

    >>> dv_bias_nats(chi_squared=1.78, negatives=89)
    0.01
    """
    require_number("chi_squared", chi_squared, advice="it is E_q r^2 - 1.")
    require_count("negatives", negatives, advice=NEGATIVES)
    return chi_squared / (2 * negatives)
