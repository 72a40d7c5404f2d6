"""Reference values of the field's other objectives in float64, by plain loops, each from its paper.

Nothing here imports `flatclr`. An anchor is its positive scores and its negative scores; with one positive and the
pairing the paper has, the mean over anchors is the published loss. Scores are beta <x, y>.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.support.oracles import Array, logsumexp

Scores = tuple[Array, Array]  # of an anchor: positives, negatives


def _average(values: Sequence[float] | Array) -> float:
    return float(sum(values)) / len(values)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def dcl(positives: Array, negatives: Array) -> float:
    """-p + log sum_j exp(s_j). Yeh et al. 2022, L_DC: its two terms are two anchors here."""
    return logsumexp(negatives) - _average(positives)


def dclw(anchors: list[Scores], beta: float, sigma: float) -> float:
    """Mean of -w p + log sum_j exp(s_j), w = 2 - exp(cos / sigma) / E[exp(cos / sigma)]. Yeh et al. 2022, L_DCW."""
    likelihoods = [math.exp(_average(positives) / beta / sigma) for positives, _ in anchors]
    expected = _average(likelihoods)
    losses = [
        logsumexp(negatives) - (2 - likelihood / expected) * _average(positives)
        for (positives, negatives), likelihood in zip(anchors, likelihoods, strict=True)
    ]
    return _average(losses)


def dhel(positives: Array, negatives: Array) -> float:
    """2 log sum_j exp(s_j) - p: the two energies of a sample belong to its two anchors. Koromilas et al. 2024."""
    return 2 * logsumexp(negatives) - _average(positives)


def dhel_of_views(z_a: Array, z_b: Array, beta: float) -> float:
    """-(1/M) sum_i log[exp(a_i.b_i / t) / (sum_{j != i} exp(a_i.a_j / t) sum_{j != i} exp(b_i.b_j / t))]; unit rows."""
    losses = []
    for i in range(len(z_a)):
        others = [j for j in range(len(z_a)) if j != i]
        energy_a = sum(math.exp(beta * float(z_a[i] @ z_a[j])) for j in others)
        energy_b = sum(math.exp(beta * float(z_b[i] @ z_b[j])) for j in others)
        losses.append(-math.log(math.exp(beta * float(z_a[i] @ z_b[i])) / (energy_a * energy_b)))
    return _average(losses)


def macl(positives: Array, negatives: Array) -> float:
    """-log(P) / (1 - P), P the probability of the (mean) positive. Huang et al. 2023."""
    gap = logsumexp(negatives) - _average(positives)
    probability = 1 / (1 + math.exp(gap))
    return _softplus(gap) / (1 - probability)


def macl_temperature(initial: float, alpha: float, initial_alignment: float, cosines: Sequence[float]) -> float:
    """tau_0 [1 + alpha (A - A_0)], A the mean cosine of positive pairs. Huang et al. 2023."""
    return initial * (1 + alpha * (_average(cosines) - initial_alignment))


def debiased(beta: float, prior: float) -> Callable[[Array, Array], float]:
    """-log(e^p / (e^p + N g)), g = max(1/(1 - tau+) (mean_j e^s_j - tau+ mean_v e^p_v), e^(-1/t)).

    Chuang et al. 2020, equations 7 and 8.
    """

    def loss(positives: Array, negatives: Array) -> float:
        of_negatives = _average([math.exp(s) for s in negatives])
        of_positives = _average([math.exp(p) for p in positives])
        g = max((of_negatives - prior * of_positives) / (1 - prior), math.exp(-beta))
        return _average([-math.log(math.exp(p) / (math.exp(p) + len(negatives) * g)) for p in positives])

    return loss


def sig_lip(bias: float) -> Callable[[Array, Array], float]:
    """-sum_j log(1 / (1 + exp(-y_j (s_j + b)))), y = 1 on positives, -1 on negatives. Zhai et al. 2023, section 3."""
    return lambda positives, negatives: (
        sum(_softplus(-(p + bias)) for p in positives) + sum(_softplus(s + bias) for s in negatives)
    )


def sig_lip_of_views(z_a: Array, z_b: Array, t: float, bias: float) -> float:
    """-(1/|B|) sum_i sum_j log sigmoid(y_ij (t a_i.b_j + b)) of unit rows: the published double sum."""
    total = 0.0
    for i in range(len(z_a)):
        for j in range(len(z_b)):
            y = 1 if i == j else -1
            total += math.log(1 / (1 + math.exp(-y * (t * float(z_a[i] @ z_b[j]) + bias))))
    return -total / len(z_a)


def spectral(positives: Array, negatives: Array) -> float:
    """-2 E[x.x+] + E[(x.x')^2]. HaoChen et al. 2021, L(f)."""
    return -2 * _average(positives) + _average([s * s for s in negatives])


def sog_clr(beta: float, u: float | None = None) -> Callable[[Array, Array], float]:
    """(1/beta) ((g / u) log sum_j exp(s_j) - p), g = mean_j exp(s_j); without u, u = g. Yuan et al. 2022, algorithm 1."""

    def loss(positives: Array, negatives: Array) -> float:
        g = _average([math.exp(s) for s in negatives])
        return ((1.0 if u is None else g / u) * logsumexp(negatives) - _average(positives)) / beta

    return loss


def negatives_kl(negatives: Array) -> float:
    """sum_j w_j log(K w_j), w = softmax of the scores: log K less the entropy of the weights."""
    top = logsumexp(negatives)
    weights = [math.exp(s - top) for s in negatives]
    return math.log(len(negatives)) + sum(w * math.log(w) for w in weights if w > 0)


def vic_reg(views: list[Array], invariance: float, variance: float, covariance: float) -> float:
    """Bardes et al. 2022, algorithm 1, averaged over pairs of views."""
    losses = []
    for v, z in enumerate(views):
        for y in views[v + 1 :]:
            n, d = z.shape
            apart = sum((z[i, k] - y[i, k]) ** 2 for i in range(n) for k in range(d)) / (n * d)
            spread = _hinge(z) + _hinge(y)
            redundant = _off_diagonal(z) + _off_diagonal(y)
            losses.append(invariance * apart + variance * spread + covariance * redundant)
    return _average(losses)


def _covariance(z: Array, k: int, m: int) -> float:
    n = len(z)
    mean_k, mean_m = sum(z[:, k]) / n, sum(z[:, m]) / n
    return sum((z[i, k] - mean_k) * (z[i, m] - mean_m) for i in range(n)) / (n - 1)


def _hinge(z: Array) -> float:
    """(1/d) sum_k max(0, 1 - sqrt(var_k + 1e-4)); equations 1 and 2."""
    d = z.shape[1]
    return sum(max(0.0, 1 - math.sqrt(_covariance(z, k, k) + 1e-4)) for k in range(d)) / d


def _off_diagonal(z: Array) -> float:
    """(1/d) sum_{k != m} C_km^2; equations 3 and 4."""
    d = z.shape[1]
    return sum(_covariance(z, k, m) ** 2 for k in range(d) for m in range(d) if k != m) / d


def barlow_twins(views: list[Array], weight: float) -> float:
    """sum_k (1 - c_kk)^2 + weight sum_{k != m} c_km^2, averaged over pairs of views. Zbontar et al. 2021, equation 1.

    Features are standardised along the batch with the 1e-5 of batch normalisation.
    """
    scaled = [(z - z.mean(0)) / np.sqrt(((z - z.mean(0)) ** 2).mean(0) + 1e-5) for z in views]
    losses = []
    for v, z in enumerate(scaled):
        for y in scaled[v + 1 :]:
            n, d = z.shape
            c = [[sum(z[i, k] * y[i, m] for i in range(n)) / n for m in range(d)] for k in range(d)]
            diagonal = sum((1 - c[k][k]) ** 2 for k in range(d))
            rest = sum(c[k][m] ** 2 for k in range(d) for m in range(d) if k != m)
            losses.append(diagonal + weight * rest)
    return _average(losses)
