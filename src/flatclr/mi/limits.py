"""What no estimator can do: ceilings and variances to print beside an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

_NEAR = 0.9  # of a ceiling
LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Limits:
    """The limits of one estimate in nats.

    >>> limits = Limits(nats=2.0, ceiling_nats=4.85, rows=1000, negative_pairs=1000 * 127)
    >>> round(limits.distribution_free_nats, 2), round(limits.mi_bound_nats, 2), round(limits.nwj_variance, 6)
    (6.91, 18.82, 5e-05)
    """

    nats: float  # the estimate
    ceiling_nats: float  # of the method: log K, log of the pool; infinite where there is none
    rows: int  # the value was read from
    negative_pairs: int  # it averages over, or could: all pairs of its rows
    ceiling_hides: bool = True  # False: the information itself cannot be larger, as with an entropy

    @property
    def distribution_free_nats(self) -> float:
        return distribution_free_nats(self.rows)

    @property
    def mi_bound_nats(self) -> float:
        return mi_bound_nats(self.rows)

    @property
    def nwj_variance(self) -> float:
        """The least variance the NWJ family must have at this information with these negative pairs."""
        return nwj_least_variance(max(self.nats, 0.0), self.negative_pairs)

    def warnings(self) -> list[str]:
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
    """N (N - 1): each row's x with every other row's y."""
    return rows * (rows - 1)


def info_nce_ceiling_nats(negatives: int) -> float:
    """log(M + 1): the most InfoNCE can report against M negatives."""
    return math.log(negatives + 1)


def distribution_free_nats(rows: int) -> float:
    """ln N: the most a high-confidence distribution-free lower bound on a KL divergence can be from N rows."""
    return math.log(rows)


def mi_bound_nats(rows: int) -> float:
    """2 ln N + 5: what such a lower bound on mutual information exceeds with probability at most 0.04."""
    return 2 * math.log(rows) + 5


def nwj_least_variance(mi_nats: float, negatives: int) -> float:
    """(e^I - 1) / M: the least variance of the NWJ family's partition term at its optimum with M negative pairs."""
    return math.expm1(mi_nats) / negatives if mi_nats < LARGEST_EXPONENT else math.inf


def gaussian_nwj_variance(mi_nats: float, negatives: int) -> float:
    """chi^2 / M of equally correlated Gaussian pairs, which the NWJ partition term has at its optimum.

    chi^2 + 1 = prod 1 / (1 - rho^2) = e^(2 I), whatever the number of pairs.
    """
    return math.expm1(2 * mi_nats) / negatives if 2 * mi_nats < LARGEST_EXPONENT else math.inf


def dv_bias_nats(chi_squared: float, negatives: int) -> float:
    """chi^2 / (2 M): by how much DV reads too high at the optimal critic, to first order."""
    return chi_squared / (2 * negatives)
