"""The latent-class model of contrastive learning: a sampler, and its expectations without sampling error.

A class c is drawn from a prior rho, anchor and positive from that class, and k negatives from all classes by the same
prior, so that some collide with the anchor's. Everything is float64, and losses are differentiable.

Shapes: n points, C classes, d dimensions, P pairs of anchor and positive, T nodes of an integral.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import require_count, require_dense, require_matrix, require_number, require_one_of, shown
from flatclr.studies.multinomial import counts_of, probabilities_of

METHODS = ("integral", "counts")
MOST_OUTCOMES = 2_000_000  # of counts, which memory has to hold
LOG_TIMES = torch.arange(-60.0, 4.0, 0.2, dtype=torch.float64)  # the trapezoidal rule is exact here to rounding
AT_MINIMUM = 1e-10  # the largest slope there
NEAR_MINIMUM = 1e-7  # from where Newton's steps go on
AGREE = 1e-9  # between starts, in the loss
NEWTON_CLASSES = 12  # more make the matrix of second derivatives dear
MOST_ROUNDS, MOST_STEPS = 30, 50
FLAT = 1e-14  # no step makes it flatter


@dataclass(frozen=True)
class Draws:
    """Classes of a sample.

    Args:
        anchors: of anchor and positive [N].
        negatives: of each anchor's negatives [N, k].
    """

    anchors: Tensor
    negatives: Tensor


@dataclass(frozen=True)
class Minimum:
    """What minimises the k-negative loss over unit vectors, one for each class.

    Args:
        points: the best of all starts [C, d].
        loss: there.
        slope: the largest entry of the gradient there.
        spread: of the loss over starts, the worst less the best.

    >>> minimise(class_prior([1, 1, 1]), negatives=4).gram[0, 1].item().__round__(6)
    -0.5
    """

    points: Tensor
    loss: float
    slope: float
    spread: float

    @property
    def gram(self) -> Tensor:
        """Cosines between classes [C, C]."""
        return self.points @ self.points.T

    @property
    def converged(self) -> bool:
        """Whether the gradient is zero and every start found the same loss."""
        return self.slope < AT_MINIMUM and self.spread < AGREE


def class_prior(frequencies: Sequence[float] | Tensor) -> Tensor:
    """Frequencies of classes, which need not sum to 1, as probabilities in float64.

    >>> class_prior([3, 1])
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    if isinstance(frequencies, Tensor):
        require_dense("a prior", frequencies)
        frequencies = frequencies.tolist()
    if not isinstance(frequencies, Sequence) or isinstance(frequencies, str | bytes):
        raise TypeError(f"a prior must be a list of frequencies, got {shown(frequencies)}; say [0.7, 0.2, 0.1].")
    values = list(frequencies)
    if len(values) < 2:
        raise ValueError(f"a prior must have at least 2 classes, got {len(values)}; pass a frequency for each class.")
    for value in values:
        require_number("a frequency of a class", value, above=0, advice="leave out classes that never occur.")
    weights = torch.tensor(values, dtype=torch.float64)
    prior = weights / weights.sum()
    if not bool((prior > 0).all()):
        raise ValueError(
            f"frequencies must leave every class a probability > 0, got {shown(values)}; give shares of 1."
        )
    return prior


def _require_prior(prior: Tensor) -> None:
    fits = isinstance(prior, Tensor) and prior.layout == torch.strided and prior.dim() == 1 and len(prior) > 1
    if not fits or not prior.is_floating_point() or not bool(((prior > 0) & (prior <= 1)).all()):
        raise ValueError(f"a prior must be a tensor of probabilities [C], got {shown(prior)}; make it by class_prior.")


def sample_classes(prior: Tensor, *, anchors: int, negatives: int, generator: torch.Generator) -> Draws:
    """Draw classes of anchors and of their negatives.

    >>> draws = sample_classes(class_prior([1, 1]), anchors=5, negatives=3, generator=torch.Generator())
    >>> draws.anchors.shape, draws.negatives.shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    require_count("anchors", anchors, advice="pass how many to draw.")
    require_count("negatives", negatives, advice="pass how many each anchor has.")
    _require_prior(prior)
    drawn = torch.multinomial(prior, anchors * (negatives + 1), replacement=True, generator=generator)
    drawn = drawn.view(anchors, negatives + 1)
    return Draws(drawn[:, 0], drawn[:, 1:])


def contrastive_loss(
    points: Tensor,
    prior: Tensor,
    *,
    negatives: int,
    classes: Tensor | None = None,
    method: str = "integral",
) -> Tensor:
    """The expected k-negative loss of a representation with finitely many points.

        E log(1 + sum_{i<=k} exp(f(x) . (f(x_i) - f(x+))))

    Args:
        points: unit vectors f(x) [n, d].
        prior: of the classes [C].
        negatives: k.
        classes: of the points [n], whose points are equally probable; None: one point for each class in turn.
        method: "integral" takes log(1 + S) = int (e^-t - e^(-t (1 + S))) / t dt, under which the k draws separate;
            "counts" adds up every outcome of how many negatives are at each point, which only few can be.

    Returns:
        A scalar in nats.

    >>> contrastive_loss(torch.eye(2).double(), class_prior([1, 1]), negatives=1).item().__round__(4)
    0.5032
    """
    require_count("negatives", negatives, advice="pass how many each anchor has.")
    require_one_of("method", method, METHODS)
    weights_P, scores_Pn, mass_n = _pairs(points, prior, classes)
    expected = _by_integral if method == "integral" else _by_counts
    return weights_P @ expected(scores_Pn, mass_n, negatives)


def contrastive_limit(points: Tensor, prior: Tensor) -> Tensor:
    """The k-negative loss less log k as k grows: E[log E exp(f(x) . f(x')) - f(x) . f(x+)].

    >>> contrastive_limit(torch.eye(2).double(), class_prior([1, 1])).item().__round__(4)  # log((1 + 1/e) / 2)
    -0.3799
    """
    weights_P, scores_Pn, mass_n = _pairs(points, prior, None)
    return weights_P @ torch.logsumexp(scores_Pn + mass_n.log(), 1)


def _pairs(points: Tensor, prior: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Probability of each pair of anchor and positive, scores of all points less the positive's, mass of points."""
    require_matrix("points", points, "[n, d]")
    _require_prior(prior)
    count = len(prior)
    classes = torch.arange(count) if classes is None else classes
    sizes_C = torch.bincount(classes, minlength=count)
    if len(classes) != len(points) or len(sizes_C) != count or int(sizes_C.min()) == 0:
        raise ValueError(
            f"points must be of all {count} classes of the prior, got {len(points)} points of {len(classes)} labels; "
            "pass a class from 0 on for every point."
        )
    mass_n = (prior / sizes_C)[classes]
    anchor_P, positive_P = (classes.unsqueeze(1) == classes).nonzero(as_tuple=True)
    scores_nn = points @ points.T
    scores_Pn = scores_nn[anchor_P] - scores_nn[anchor_P, positive_P].unsqueeze(1)
    return mass_n[anchor_P] / sizes_C[classes[anchor_P]], scores_Pn, mass_n


def _by_integral(scores_Pn: Tensor, mass_n: Tensor, negatives: int) -> Tensor:
    """int e^-t (1 - (E e^(-t w))^k) dt / t at w = exp(score), over log t."""
    times_T = LOG_TIMES.exp()
    less_one = torch.expm1(-times_T[:, None, None] * scores_Pn.exp()) @ mass_n  # [T, P]: keeps small t exact
    parts = -torch.expm1(negatives * torch.log1p(less_one))
    return (torch.exp(-times_T) @ parts) * (LOG_TIMES[1] - LOG_TIMES[0])


def _by_counts(scores_Pn: Tensor, mass_n: Tensor, negatives: int) -> Tensor:
    points = len(mass_n)
    outcomes = math.comb(negatives + points - 1, points - 1)
    if outcomes > MOST_OUTCOMES:
        raise ValueError(
            f"outcomes of the counts must be at most {MOST_OUTCOMES}, got {outcomes} for {negatives} negatives at "
            f"{points} points; take method='integral'."
        )
    counts = counts_of(points, negatives)
    return torch.log1p(scores_Pn.exp() @ counts.T) @ probabilities_of(counts, mass_n)


def classification_loss(points: Tensor, classifiers: Tensor, prior: Tensor) -> Tensor:
    """Cross-entropy of linear classifiers without a bias, on one point for each class.

        sum_c rho_c log(1 + sum_{c' != c} exp(f_c . (W_c' - W_c)))

    >>> classification_loss(torch.eye(2).double(), torch.eye(2).double(), class_prior([1, 1])).item().__round__(4)
    0.3133
    """
    scores_CC = points @ classifiers.T
    return prior @ (torch.logsumexp(scores_CC, 1) - scores_CC.diagonal())


def supervised_loss(points: Tensor, prior: Tensor) -> Tensor:
    """The least `classification_loss` of classifiers of unit norm; its gradient is that at the best of them.

    Classifiers have one dimension more than the points, in which they can hide what is left of their norm: the problem
    is then one over the ball, which is convex and has one least value.

    >>> supervised_loss(torch.eye(2).double(), class_prior([1, 1])).item().__round__(4)  # W along f_c - f_c'
    0.2176
    """
    padded = F.pad(points, (0, 1))
    start = F.pad(points.detach(), (0, 1), value=0.3)

    def loss(free: Tensor) -> Tensor:
        return classification_loss(padded.detach(), F.normalize(free, dim=1), prior)

    best = F.normalize(_descend(loss, start), dim=1)
    return classification_loss(padded, best, prior)


def minimise(
    prior: Tensor, *, negatives: int | None, dimension: int | None = None, starts: int = 3, seed: int = 0
) -> Minimum:
    """The unit vectors of classes that minimise the k-negative loss.

    Points of a class coincide at the minimum, so that there is one for each. The loss is convex in their cosines, and
    C dimensions leave these free: every start should end at the same cosines.

    Args:
        prior: of the classes [C].
        negatives: k; None: as many as can be, `contrastive_limit`.
        dimension: of the sphere's space; None: C.
        starts: from random points.
        seed: of these.

    Returns:
        The best minimum and how far starts differ.

    >>> minimise(class_prior([1, 1]), negatives=None).converged
    True
    """
    count = len(prior)
    require_count("dimension", dimension or count, advice="C - 1 is the least that holds a simplex.")
    require_count("starts", starts, advice="several show that it converged.")
    generator = torch.Generator().manual_seed(seed)

    def loss(free: Tensor) -> Tensor:
        points = F.normalize(free, dim=1)
        if negatives is None:
            return contrastive_limit(points, prior)
        return contrastive_loss(points, prior, negatives=negatives)

    ends = []
    for _ in range(starts):
        start = F.normalize(torch.randn(count, dimension or count, generator=generator, dtype=torch.float64), dim=1)
        ends.append(_minimum_from(loss, start, newton=count <= NEWTON_CLASSES))
    losses = [loss(end).item() for end in ends]
    best = ends[min(range(starts), key=losses.__getitem__)]
    return Minimum(best, min(losses), _slope(loss, best), max(losses) - min(losses))


def _minimum_from(loss: Callable[[Tensor], Tensor], start: Tensor, *, newton: bool) -> Tensor:
    if not newton:
        return F.normalize(_descend(loss, start, AT_MINIMUM), dim=1)
    end = _polish(loss, F.normalize(_descend(loss, start), dim=1))
    if _slope(loss, end) < AT_MINIMUM:
        return end
    return _polish(loss, F.normalize(_descend(loss, end, AT_MINIMUM), dim=1))  # it was not near enough for Newton


def _descend(loss: Callable[[Tensor], Tensor], start: Tensor, slope: float = NEAR_MINIMUM) -> Tensor:
    """L-BFGS until the loss is as flat as that, or it moves no more; the best point where its line search overflows."""
    free = start.clone().requires_grad_()
    least, best = math.inf, start
    optimizer = torch.optim.LBFGS(
        [free], max_iter=50, history_size=20, tolerance_grad=slope, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        nonlocal least, best
        optimizer.zero_grad()
        value = loss(free)
        value.backward()
        if value.item() < least:
            least, best = value.item(), free.detach().clone()
        return value

    for _ in range(MOST_ROUNDS):
        before = free.detach().clone()
        optimizer.step(closure)
        if not free.isfinite().all():
            return best
        if torch.equal(before, free.detach()) or _slope(loss, free.detach()) < slope:
            break
    return free.detach()


def _polish(loss: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """Newton's steps, which go on where differences of the loss are lost to rounding; rotations are left alone.

    Many of them where classes are about to separate: the loss is of fourth order there, and each step goes a third.
    None where second derivatives are too near to 0 for their eigenvalues to be found, as with classes all but absent.
    """
    for _ in range(MOST_STEPS):
        slope = _gradient(loss, points)
        if slope.abs().max() < FLAT:
            break
        hessian: Any = torch.autograd.functional.hessian(loss, points, vectorize=True)
        try:
            inverse = torch.linalg.pinv(hessian.view(points.numel(), -1), rtol=1e-9, hermitian=True)
        except RuntimeError:  # LinAlgError, which torch does not export
            break
        moved = F.normalize(points - (inverse @ slope.flatten()).view_as(points), dim=1)
        if not _slope(loss, moved) < slope.abs().max():
            break
        points = moved
    return points


def _gradient(loss: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    free = points.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(free), free)[0]


def _slope(loss: Callable[[Tensor], Tensor], points: Tensor) -> float:
    return _gradient(loss, points).abs().max().item()


def collision_probability(prior: Tensor, negatives: int) -> float:
    """That at least one of k negatives is of the anchor's class.

    >>> collision_probability(class_prior([1, 1]), 2)
    0.75
    """
    _require_prior(prior)
    require_count("negatives", negatives, advice="pass how many each anchor has.")
    return (prior @ (1 - (1 - prior) ** negatives)).item()


def coverage_draws(prior: Tensor) -> Tensor:
    """How many draws from the other classes cover all of them, in expectation, for each class of the anchor [C].

        int 1 - prod_{c'} (1 - e^(-p_c' t)) dt

    >>> coverage_draws(class_prior([1, 1, 1]))  # 2 (1 + 1/2)
    tensor([3.0000, 3.0000, 3.0000], dtype=torch.float64)
    """
    _require_prior(prior)
    times_T = LOG_TIMES.exp() / prior.min()
    draws = []
    for c in range(len(prior)):
        others = torch.cat([prior[:c], prior[c + 1 :]])
        chances = -torch.expm1(-times_T.unsqueeze(1) * others / others.sum())
        draws.append(((1 - chances.prod(1)) * times_T).sum() * (LOG_TIMES[1] - LOG_TIMES[0]))
    return torch.stack(draws)


def collision_coverage_factor(prior: Tensor, negatives: int) -> float:
    """What older bounds multiply the contrastive loss by: L_sup <= factor L_k, for points that coincide in classes.

        max_c 2 ceil(2 T_c / k) / (1 - rho_c)^k

    T_c draws cover the classes other than c in expectation. So many blocks of k negatives cover them with probability
    1/2 at least, and the loss of all is at most the sum over blocks; a block is free of collisions with probability
    (1 - rho_c)^k. Balanced: falls as 1/k, then grows as eta^k with eta = 1 + 1/(C - 1).

    After Ash et al. 2022; the constants are those of this argument.

    >>> round(collision_coverage_factor(class_prior([1, 1, 1]), 6), 4)  # 2 (3/2)^6
    22.7812
    """
    _require_prior(prior)
    require_count("negatives", negatives, advice="pass how many each anchor has.")
    blocks = torch.ceil(2 * coverage_draws(prior) / negatives - 1e-9)
    return (2 * blocks / (1 - prior) ** negatives).max().item()


def interval_widths(prior: Tensor, negatives: int) -> tuple[float, float]:
    """D_L and D_U of  L_k - D_L <= L_mean <= L_k + D_U,  for points that coincide in classes.

    L_mean is the `classification_loss` of the points themselves as classifiers; `supervised_loss` is at most that.

        D_L = log(1 + k max rho),    D_U = log S - log((k + 1) min rho)

    The first is Jensen's inequality. The second is its reverse: S is Specht's ratio, the largest that an arithmetic
    mean can be over the geometric one where scores are within [-1, 1]. Balanced, D_L + D_U falls to log S = 0.4745.

    After Bao et al. 2022; the constants are those of this argument.

    >>> [round(width, 4) for width in interval_widths(class_prior([1, 1]), 1)]
    [0.4055, 0.4745]
    """
    _require_prior(prior)
    require_count("negatives", negatives, advice="pass how many each anchor has.")
    ratio = math.exp(2.0)
    power = math.log(ratio) / (ratio - 1)
    log_specht = power - 1 - math.log(power)
    lower = math.log1p(negatives * prior.max().item())
    return lower, log_specht - math.log((negatives + 1) * prior.min().item())
