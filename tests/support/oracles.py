"""Reference values in float64, by plain loops over pairs.

Derived from the formulas alone, separately from the implementation: nothing here imports `flatclr`,
and nothing here was copied from it. Clarity over speed.

Legend: N pairs, d features, M queue entries; per anchor, p = positive score, s_j = negative scores.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Member = tuple[str, int]  # (view, sample): ("a", 3) is z_a[3]; ("queue", 5) is queue[5]


@dataclass(frozen=True, eq=False)
class Row:
    """Scores of one anchor: p against its positive, s_j against its negatives."""

    positive: float
    negatives: Array


def normalized(z: Array) -> Array:
    """x / ||x|| row by row."""
    return np.array([row / math.sqrt(float(row @ row)) for row in np.asarray(z, dtype=np.float64)])


def logsumexp(values: Array) -> float:
    """log sum_j exp(v_j)."""
    top = float(np.max(values))
    return top + math.log(sum(math.exp(v - top) for v in values))


def contrasts(
    pairs: int, pairing: str, queue_size: int = 0, in_batch: bool = True
) -> Iterator[tuple[Member, Member, list[Member]]]:
    """(anchor, positive, negatives) of every anchor: view a first, then view b."""
    other = {"a": "b", "b": "a"}
    for view in {"two_view": "ab", "cross": "ab", "within": "ab", "one_way": "a"}[pairing]:
        negative_views = {"two_view": "ab", "within": view}.get(pairing, other[view])
        for i in range(pairs):
            negatives = [(v, j) for v in negative_views for j in range(pairs) if j != i and in_batch]
            negatives += [("queue", m) for m in range(queue_size)]
            yield (view, i), (other[view], i), negatives


def embeddings(z_a: Array, z_b: Array, queue: Array | None, normalize: bool) -> dict[str, Array]:
    """The sets a score can be taken from, by name, on the unit sphere if asked."""
    named = {"a": z_a, "b": z_b, "queue": np.zeros((0, z_a.shape[1])) if queue is None else queue}
    return {name: normalized(z) if normalize and len(z) else z for name, z in named.items()}


def negative_scores(
    z_a: Array,
    z_b: Array,
    *,
    beta: float,
    pairing: str,
    queue: Array | None = None,
    in_batch: bool = True,
    normalize: bool = True,
) -> list[Row]:
    """One row of scores beta <x, y> per anchor."""
    z = embeddings(z_a, z_b, queue, normalize)

    def score(x: Member, y: Member) -> float:
        return beta * float(z[x[0]][x[1]] @ z[y[0]][y[1]])

    return [
        Row(score(anchor, positive), np.array([score(anchor, negative) for negative in negatives]))
        for anchor, positive, negatives in contrasts(len(z_a), pairing, len(z["queue"]), in_batch)
    ]


def gap(rows: list[Row]) -> Array:
    """log sum_j exp(s_j) - p per anchor."""
    return np.array([logsumexp(row.negatives) - row.positive for row in rows])


def info_nce(rows: list[Row]) -> Array:
    """-log(exp(p) / (exp(p) + sum_j exp(s_j))) = log(1 + exp(gap)) per anchor."""
    return np.array([max(g, 0.0) + math.log1p(math.exp(-abs(g))) for g in gap(rows)])


def importance_weights(scores: Array) -> Array:
    """w_j = exp(s_j) / sum_k exp(s_k)."""
    log_partition = logsumexp(scores)
    return np.array([math.exp(s - log_partition) for s in scores])


def ess(rows: list[Row]) -> Array:
    """1 / (K_neg sum_j w_j^2) per anchor."""
    return np.array(
        [1.0 / (len(row.negatives) * sum(w * w for w in importance_weights(row.negatives))) for row in rows]
    )


def holder_log_mean(rows: list[Row], gamma: float) -> Array:
    """(1/gamma) log((1/K_neg) sum_j exp(gamma (s_j - p))) per anchor, limits included."""
    return np.array([_holder_log_mean(row.negatives - row.positive, gamma) for row in rows])


def _holder_log_mean(differences: Array, gamma: float) -> float:
    if gamma == 0:
        return float(sum(differences) / len(differences))
    if math.isinf(gamma):
        return float(max(differences) if gamma > 0 else min(differences))
    return (logsumexp(gamma * differences) - math.log(len(differences))) / gamma


def mi_nats(rows: list[Row]) -> float:
    """log(K_neg + 1) - mean_i InfoNCE_i."""
    return math.log(len(rows[0].negatives) + 1) - float(np.mean(info_nce(rows)))


def mean_positive(rows: list[Row], function: Callable[[float], float] = float) -> float:
    """E_P function(s) over the positives."""
    return sum(function(row.positive) for row in rows) / len(rows)


def mean_negative(rows: list[Row], function: Callable[[float], float] = float) -> float:
    """E_Q function(s) over all anchor-negative pairs pooled."""
    values = [function(float(s)) for row in rows for s in row.negatives]
    return sum(values) / len(values)


def dv_loss(rows: list[Row]) -> float:
    """-(E_P s - log E_Q exp(s)), the expectation over all anchor-negative pairs pooled."""
    pooled = np.concatenate([row.negatives for row in rows])
    return logsumexp(pooled) - math.log(len(pooled)) - mean_positive(rows)


def nwj_loss(rows: list[Row]) -> float:
    """-(E_P s - exp(-1) E_Q exp(s))."""
    return mean_negative(rows, math.exp) / math.e - mean_positive(rows)


def flo_loss(rows: list[Row], u: Array) -> float:
    """-(1 - mean_i[u_i + exp(-u_i) mean_j exp(s_ij - p_i)])."""
    penalties = []
    for row, u_i in zip(rows, u, strict=True):
        contrast = sum(math.exp(s - row.positive) for s in row.negatives) / len(row.negatives)
        penalties.append(u_i + math.exp(-u_i) * contrast)
    return float(sum(penalties) / len(penalties) - 1.0)


def rpc_loss(rows: list[Row], a: float, b: float, g: float) -> float:
    """-(E_P s - a E_Q s - (b/2) E_P s^2 - (g/2) E_Q s^2)."""
    reward = mean_positive(rows) - b / 2 * mean_positive(rows, lambda s: s * s)
    penalty = a * mean_negative(rows) + g / 2 * mean_negative(rows, lambda s: s * s)
    return penalty - reward


def squared_distance(x: Array, y: Array) -> float:
    """||x - y||^2."""
    return float((x - y) @ (x - y))


def alignment(z_a: Array, z_b: Array, alpha: float = 2.0) -> Array:
    """||x_i - y_i||^alpha per pair, on the unit sphere."""
    a, b = normalized(z_a), normalized(z_b)
    return np.array([squared_distance(x, y) ** (alpha / 2) for x, y in zip(a, b, strict=True)])


def mean_within(z: Array, function: Callable[[float], float]) -> float:
    """(1/(N(N-1))) sum_{i != j} function(||x_i - x_j||^2)."""
    pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
    return sum(function(squared_distance(z[i], z[j])) for i, j in pairs) / len(pairs)


def uniformity_within(z_a: Array, z_b: Array, t: float = 2.0) -> float:
    """log mean_{i != j} exp(-t ||x_i - x_j||^2) on the unit sphere, averaged over the two views."""
    views = normalized(z_a), normalized(z_b)
    return sum(math.log(mean_within(z, lambda d2: math.exp(-t * d2))) for z in views) / 2


# name -> (f(u), f'(u)); Tsallis takes its order as a second argument
GENERATORS: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
    "kl": (lambda u: u * math.log(u), lambda u: math.log(u) + 1),
    "js": (
        lambda u: u * math.log(u) - (u + 1) * math.log((1 + u) / 2),
        lambda u: math.log(2 * u / (1 + u)),
    ),
    "pearson": (lambda u: (u - 1) ** 2, lambda u: 2 * (u - 1)),
    "hellinger": (lambda u: (math.sqrt(u) - 1) ** 2, lambda u: 1 - 1 / math.sqrt(u)),
    "tsallis": (
        lambda u, order: (u**order - 1) / (order - 1),
        lambda u, order: order / (order - 1) * u ** (order - 1),
    ),
    "vlc": (lambda u: (u - 1) ** 2 / (u + 1), lambda u: 1 - 4 / (u + 1) ** 2),
}


def fmicl_loss(
    z_a: Array,
    z_b: Array,
    divergence: str,
    mu: float = 1.0,
    inverse_two_sigma_sq: float = 1.0,
    weight: float = 40.0,
    tsallis_alpha: float = 3.0,
) -> float:
    """-(1/N) sum_i f'(G(a_i, b_i)) + weight mean_{i != j} f*(f'(G(x_i, x_j))), x = a and b.

    The second term is averaged over the views x. f* o f' is taken from Fenchel-Young's equality
    f*(f'(u)) = u f'(u) - f(u), which needs no table of conjugates.
    """
    f, derivative = GENERATORS[divergence]
    order = (tsallis_alpha,) if divergence == "tsallis" else ()

    def similarity(d2: float) -> float:
        return mu * math.exp(-inverse_two_sigma_sq * d2)

    def conjugate_of_derivative(d2: float) -> float:
        u = similarity(d2)
        return u * derivative(u, *order) - f(u, *order)

    a, b = normalized(z_a), normalized(z_b)
    rewards = [derivative(similarity(squared_distance(a[i], b[i])), *order) for i in range(len(a))]
    penalties = [mean_within(z, conjugate_of_derivative) for z in (a, b)]
    return -sum(rewards) / len(rewards) + weight * sum(penalties) / 2


def finite_difference_gradient(fn: Callable[..., float], *arrays: Array, step: float = 1e-6) -> tuple[Array, ...]:
    """(fn(z + h e) - fn(z - h e)) / (2 h) for every entry e of every array z."""
    work = [np.array(z, dtype=np.float64) for z in arrays]
    gradients = []
    for z in work:
        gradient = np.zeros_like(z)
        for index in np.ndindex(*z.shape):
            centre = z[index]
            z[index] = centre + step
            above = float(fn(*work))
            z[index] = centre - step
            below = float(fn(*work))
            z[index] = centre
            gradient[index] = (above - below) / (2 * step)
        gradients.append(gradient)
    return tuple(gradients)


def flat_nce_gradient(
    z_a: Array,
    z_b: Array,
    beta: float,
    pairing: str,
    queue: Array | None = None,
    in_batch: bool = True,
) -> tuple[Array, Array]:
    """Gradient of mean_i gap_i: mean_i [sum_j w_ij grad s_ij - grad p_i], queue held constant.

    Taken with respect to the unit embeddings as free variables; inputs are normalised first.
    """
    z = embeddings(z_a, z_b, queue, normalize=True)
    gradient = {name: np.zeros_like(members) for name, members in z.items()}
    anchors = list(contrasts(len(z_a), pairing, len(z["queue"]), in_batch))

    def add_score_gradient(x: Member, y: Member, weight: float) -> None:
        gradient[x[0]][x[1]] += weight * beta * z[y[0]][y[1]]
        gradient[y[0]][y[1]] += weight * beta * z[x[0]][x[1]]

    rows = negative_scores(z_a, z_b, beta=beta, pairing=pairing, queue=queue, in_batch=in_batch)
    for (anchor, positive, negatives), row in zip(anchors, rows, strict=True):
        weights = importance_weights(row.negatives)
        for negative, weight in zip(negatives, weights, strict=True):
            add_score_gradient(anchor, negative, weight / len(anchors))
        add_score_gradient(anchor, positive, -1.0 / len(anchors))
    return gradient["a"], gradient["b"]
