"""Reference values for any number of views, labels, ids, hard negatives and a margin, by plain loops over pairs.

Derived from the definition of the relation alone: nothing here imports `flatclr`, nothing was copied from it.

Legend: V views, N samples, d features, M queue entries, H hard negatives per sample; per anchor, s_p are the scores of
its positives and s_j those of its negatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tests.support.oracles import GENERATORS, Array, importance_weights, logsumexp

Member = tuple[int | str, int]  # (view, sample), ("queue", m), or ("hard", sample * H + h)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything a contrast is made of, in float64."""

    views: Array  # [V, N, d]
    pairing: str = "views"
    labels: list[int] | None = None
    ids: list[int] | None = None
    queue: Array | None = None
    queue_labels: list[int] | None = None
    queue_ids: list[int] | None = None
    hard: Array | None = None  # [N, H, d]
    margin: float | None = None
    in_batch: bool = True
    normalize: bool = True

    def moved(self, views: Array, hard: Array | None = None, queue: Array | None = None) -> Problem:
        """The same question asked of other embeddings."""
        hard, queue = self.hard if hard is None else hard, self.queue if queue is None else queue
        return replace(self, views=views, hard=hard, queue=queue)


@dataclass(frozen=True, eq=False)
class Anchor:
    """One anchor with the scores of its positives and negatives."""

    group: int
    member: Member
    positive_members: list[Member]
    negative_members: list[Member]
    positives: Array = field(repr=False)
    negatives: Array = field(repr=False)

    @property
    def counts(self) -> bool:
        return len(self.negatives) > 0


def groups(pairing: str, views: int) -> list[tuple[int, list[int], list[int]]]:
    """(view of the anchors, views of their candidates, views of their samples' positives), in order."""
    every = list(range(views))

    def others(view: int) -> list[int]:
        return [v for v in every if v != view]

    if pairing in ("views", "two_view"):
        return [(v, every, others(v)) for v in every]
    if pairing == "cross":
        return [(v, [w], [w]) for v in every for w in every if v != w]
    if pairing == "one_way":
        return [(0, others(0), others(0))]
    if pairing == "within":
        return [(v, [v], others(v)) for v in every]
    raise KeyError(pairing)


def anchors_of(
    problem: Problem,
    beta: float | Array,
    plan: list[tuple[int, list[int], list[int]]] | None = None,
) -> list[Anchor]:
    """Every anchor, group by group, in each group in the order of the samples; beta may be one value per anchor."""
    plan = groups(problem.pairing, len(problem.views)) if plan is None else plan
    rows, found = _embeddings(problem), []
    for g, (view, candidate_views, positive_views) in enumerate(plan):
        for n in range(problem.views.shape[1]):
            scale = float(beta) if np.ndim(beta) == 0 else float(beta[len(found)])
            anchor: Member = (view, n)

            def cosine(other: Member, anchor: Member = anchor) -> float:
                return float(rows[anchor] @ rows[other])

            positives = list(_positives(problem, n, candidate_views, positive_views))
            mean_cosine = sum(cosine(p) for p in positives) / len(positives)
            negatives = [
                m
                for m in _negatives(problem, n, candidate_views)
                if problem.margin is None or not cosine(m) > mean_cosine + problem.margin
            ]
            scores = [np.array([scale * cosine(m) for m in members]) for members in (positives, negatives)]
            found.append(Anchor(g, anchor, positives, negatives, *scores))
    return found


def _embeddings(problem: Problem) -> dict[Member, Array]:
    def ready(row: Array) -> Array:
        return row / math.sqrt(float(row @ row)) if problem.normalize else row

    rows: dict[Member, Array] = {}
    for v, view in enumerate(problem.views):
        rows |= {(v, n): ready(row) for n, row in enumerate(view)}
    if problem.queue is not None:
        rows |= {("queue", m): ready(row) for m, row in enumerate(problem.queue)}
    if problem.hard is not None:
        flat = problem.hard.reshape(-1, problem.hard.shape[-1])
        rows |= {("hard", h): ready(row) for h, row in enumerate(flat)}
    return rows


def _positives(problem: Problem, n: int, candidate_views: list[int], positive_views: list[int]) -> Iterator[Member]:
    for w in positive_views:
        yield (w, n)
    if problem.labels is not None:
        for w in candidate_views:
            for m in range(problem.views.shape[1]):
                duplicate = problem.ids is not None and problem.ids[m] == problem.ids[n]
                if m != n and problem.labels[m] == problem.labels[n] and not duplicate:
                    yield (w, m)


def _negatives(problem: Problem, n: int, candidate_views: list[int]) -> Iterator[Member]:
    def other(labels: list[int] | None, theirs: list[int] | None, m: int) -> bool:
        return labels is None or theirs is None or theirs[m] != labels[n]

    if problem.in_batch:
        for w in candidate_views:
            for m in range(problem.views.shape[1]):
                if m != n and other(problem.labels, problem.labels, m) and other(problem.ids, problem.ids, m):
                    yield (w, m)
    for m in range(0 if problem.queue is None else len(problem.queue)):
        if other(problem.labels, problem.queue_labels, m) and other(problem.ids, problem.queue_ids, m):
            yield ("queue", m)
    if problem.hard is not None:
        hard = problem.hard.shape[1]
        for h in range(hard):
            yield ("hard", n * hard + h)


def counted(anchors: list[Anchor]) -> list[Anchor]:
    """Those that have a negative."""
    return [anchor for anchor in anchors if anchor.counts]


def per_anchor(anchors: list[Anchor], function: Callable[[Anchor], float]) -> Array:
    """A number of each anchor, NaN where it has no negative."""
    return np.array([function(anchor) if anchor.counts else math.nan for anchor in anchors])


def mean(anchors: list[Anchor], function: Callable[[Anchor], float]) -> float:
    """Its mean over the anchors that have negatives."""
    values = [function(anchor) for anchor in counted(anchors)]
    return sum(values) / len(values)


def average(values: Array, function: Callable[[float], float] = float) -> float:
    return sum(function(float(v)) for v in values) / len(values)


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def gap(anchor: Anchor) -> float:
    """l - m: log-sum-exp of the negatives less the mean positive."""
    return logsumexp(anchor.negatives) - average(anchor.positives)


def info_nce(anchor: Anchor) -> float:
    """mean_p softplus(l - s_p): each positive alone against the negatives."""
    negatives = logsumexp(anchor.negatives)
    return average(anchor.positives, lambda s: softplus(negatives - s))


def ess(anchor: Anchor) -> float:
    """1 / (K sum_j w_j^2)"""
    return 1.0 / (len(anchor.negatives) * sum(w * w for w in importance_weights(anchor.negatives)))


def holder(gamma: float) -> Callable[[Anchor], float]:
    """log of the mean of order gamma of exp(s_j - s_p), averaged over the positives."""

    def log_mean(differences: Array) -> float:
        if gamma == 0:
            return average(differences)
        if math.isinf(gamma):
            return float(max(differences) if gamma > 0 else min(differences))
        return (logsumexp(gamma * differences) - math.log(len(differences))) / gamma

    return lambda anchor: average(anchor.positives, lambda s: log_mean(anchor.negatives - s))


def sup_con_outside(anchor: Anchor) -> float:
    everything = logsumexp(np.concatenate([anchor.positives, anchor.negatives]))
    return average(anchor.positives, lambda s: everything - s)


def sup_con_inside(anchor: Anchor) -> float:
    everything = sum(math.exp(s) for s in np.concatenate([anchor.positives, anchor.negatives]))
    return -math.log(average(anchor.positives, lambda s: math.exp(s) / everything))


def dv(anchors: list[Anchor]) -> float:
    """log of the mean of exp(s) over all negative pairs of the batch, less the mean over anchors of m."""
    pairs = np.concatenate([anchor.negatives for anchor in counted(anchors)])
    return logsumexp(pairs) - math.log(len(pairs)) - mean(anchors, lambda anchor: average(anchor.positives))


def nwj(anchor: Anchor) -> float:
    return average(anchor.negatives, lambda s: math.exp(s - 1)) - average(anchor.positives)


def flo(anchor: Anchor, u: Callable[[float, Member], float]) -> float:
    """mean_p of u + exp(-u) mean_j exp(s_j - s_p) - 1, u of each positive pair."""
    values = []
    for s, member in zip(anchor.positives, anchor.positive_members, strict=True):
        contrast = average(anchor.negatives, lambda j, s=s: math.exp(j - s))  # type: ignore[misc]
        values.append(u(float(s), member) + math.exp(-u(float(s), member)) * contrast - 1)
    return sum(values) / len(values)


def rpc(a: float, b: float, g: float) -> Callable[[Anchor], float]:
    """-(f - (b/2) f^2) averaged over positives, plus a f + (g/2) f^2 averaged over negatives."""
    return lambda anchor: (
        average(anchor.negatives, lambda f: a * f + g / 2 * f * f)
        - average(anchor.positives, lambda f: f - b / 2 * f * f)
    )


def align_uniform(
    anchors: list[Anchor], *, alpha: float, t: float, align_weight: float, uniform_weight: float
) -> float:
    """Of anchors at beta = 1, whose scores are cosines; on the sphere ||x - y||^2 = 2 - 2 cos."""
    align = mean(anchors, lambda anchor: average(anchor.positives, lambda c: (2 - 2 * c) ** (alpha / 2)))
    uniform = []
    for g in sorted({anchor.group for anchor in anchors}):
        potentials = [math.exp(-t * (2 - 2 * c)) for anchor in anchors if anchor.group == g for c in anchor.negatives]
        if potentials:
            uniform.append(math.log(sum(potentials) / len(potentials)))
    return align_weight * align + uniform_weight * sum(uniform) / len(uniform)


def f_micl_gaussian(
    name: str, *, beta: float, mu: float, weight: float, order: float = 3.0
) -> Callable[[Anchor], float]:
    """weight mean_j f*(f'(u_j)) - mean_p f'(u_p), u = mu exp(s - beta), f*(f'(u)) = u f'(u) - f(u)."""
    f, derivative = GENERATORS[name]
    more = (order,) if name == "tsallis" else ()

    def reward(s: float) -> float:
        return derivative(mu * math.exp(s - beta), *more)

    def penalty(s: float) -> float:
        u = mu * math.exp(s - beta)
        return u * derivative(u, *more) - f(u, *more)

    return lambda anchor: weight * average(anchor.negatives, penalty) - average(anchor.positives, reward)


def f_micl_cosine(
    conjugate: Callable[[float], float], critic: Callable[[float], float], *, weight: float
) -> Callable[[Anchor], float]:
    """weight mean_j f*(T_j) - mean_p T_p, T a map of the cosine into the domain of f*."""
    return lambda anchor: (
        weight * average(anchor.negatives, lambda c: conjugate(critic(c))) - average(anchor.positives, critic)
    )


def ceiling_nats(anchors: list[Anchor]) -> float:
    return mean(anchors, lambda anchor: math.log(len(anchor.negatives) + 1))


def score_weights_gradient(
    problem: Problem, beta: float, weights: Callable[[Anchor], tuple[Array, Array]]
) -> dict[Member, Array]:
    """mean_i of sum over positives and negatives of weight * grad s, with respect to the unit rows as free variables.

    `weights` gives d loss_i / d s_p of every positive and d loss_i / d s_j of every negative.
    """
    rows, found = _embeddings(problem), counted(anchors_of(problem, beta))
    gradient = {member: np.zeros_like(row) for member, row in rows.items()}
    for anchor in found:
        members = anchor.positive_members + anchor.negative_members
        for member, weight in zip(members, np.concatenate(weights(anchor)), strict=True):
            gradient[anchor.member] += weight * beta * rows[member] / len(found)
            gradient[member] += weight * beta * rows[anchor.member] / len(found)
    return gradient
