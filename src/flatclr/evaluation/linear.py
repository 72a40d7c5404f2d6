"""Logistic regression on frozen features, to convergence, on the device the features are on.

    minimise  mean_i loss(x_i W + b, y_i) + l2 / 2 ||W||^2        scikit-learn's C is 1 / (l2 N)

Shape suffixes: N samples, d features, D = d + 1 with the constant 1 for the bias, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr.checks import (
    require_class_numbers,
    require_count,
    require_dense,
    require_matrix,
    require_number,
    require_seed,
    unusable_rows,
)
from flatclr.contrast.numerics import accumulation_type
from flatclr.data.arrays import MOST_CLASSES
from flatclr.data.loading import seeded_generator
from flatclr.data.named import Progress
from flatclr.evaluation.logistic import Problem, loss_of

L2_PATH = tuple(10 ** (-half / 2) for half in range(13))  # 1 down to 1e-6, each fit starting from the one before
PATIENCE = 3  # strengths in a row below the best before weaker ones are left untried
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Scaling:
    """Every feature to mean 0 and deviation 1; one that never changes is only centred."""

    mean_d: Tensor
    deviation_d: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Scaling:
        # from the first row: else the mean of many equal numbers is not their value, and rounding is taken for a signal
        mean_d = features[0] + (features - features[0]).mean(0)
        deviation_d = (features - mean_d).square_().mean(0).sqrt()  # a third of std_mean's time
        constant = deviation_d <= 1e-7 * mean_d.abs()
        return cls(mean_d, torch.where(constant, 1.0, deviation_d))

    def scaled(self, features: Tensor) -> Tensor:
        """[N, d], with gradients."""
        return (features - self.mean_d) / self.deviation_d

    def __call__(self, features: Tensor) -> Tensor:
        """[N, D], with a column of ones for the bias; in place, because features are large."""
        out = features.new_ones(len(features), features.shape[1] + 1)
        torch.sub(features, self.mean_d, out=out[:, :-1])
        out[:, :-1] /= self.deviation_d
        return out


@dataclass(frozen=True)
class LinearClassifier:
    """What a fit gives: a classifier, and how it was reached.

    Args:
        weights_DC: [d + 1, C], of scaled features and the constant 1.
        scaling: of the features, to mean 0 and deviation 1.
        l2: the strength of the penalty.
        iterations: of the solver.
        converged: whether the gradient became small enough.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fit_linear(x, torch.tensor([0, 0, 1, 1]), classes=2, l2=0.01).converged
    True
    """

    weights_DC: Tensor
    scaling: Scaling
    l2: float
    iterations: int
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        """Scores of the classes.

        Args:
            features: [N, d], as they were before scaling.

        Returns:
            [N, C].
        """
        return self.scaling(features.to(self.weights_DC.dtype)) @ self.weights_DC


@dataclass(frozen=True)
class LinearProbe:
    """What `fit_probe` gives.

    Args:
        classifier: at the strength that was chosen.
        path: every strength that was tried with its validation score, strongest first.
    """

    classifier: LinearClassifier
    path: tuple[tuple[float, float], ...]


def fit_linear(features: Tensor, labels: Tensor, *, classes: int, l2: float) -> LinearClassifier:
    """Logistic regression at one strength, to convergence.

    minimise  mean_i loss(x_i W + b, y_i) + l2 / 2 ||W||^2,  x scaled to mean 0 and deviation 1

    Args:
        features: [N, d].
        labels: class numbers [N], or bool [N, classes] for samples of several classes.
        classes: how many there are.
        l2: the strength of the penalty; scikit-learn's C is 1 / (l2 N).

    Returns:
        The classifier, on the device of the features.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fit_linear(x, torch.tensor([0, 0, 1, 1]), classes=2, l2=0.01).logits(x).argmax(1)
    tensor([0, 0, 1, 1])
    """
    _require_problem(features, labels, classes)
    require_number("l2", l2, above=0)
    features = features.to(accumulation_type(features))
    scaling, l2 = Scaling.of(features), float(l2)
    problem = Problem.of(scaling(features), loss_of(labels))
    fit = problem.solve(l2, problem.start(classes))
    return LinearClassifier(fit.weights_DC, scaling, l2, fit.iterations, fit.converged)


@dataclass(frozen=True)
class AdamFit:
    """How `fit_by_adam` goes."""

    epochs: int = 100
    batch: int = 256
    rate: float = 1e-3


ADAM = AdamFit()


def fit_by_adam(
    features: Tensor, labels: Tensor, *, classes: int, seed: int = 0, how: AdamFit = ADAM
) -> LinearClassifier:
    """Logistic regression without a penalty, by epochs of Adam instead of to convergence.

    Args:
        features, labels, classes: as for `fit_linear`.
        seed: of the batches.
        how: epochs, batch and learning rate.

    Returns:
        The classifier.

    >>> x, y = torch.linspace(-1, 1, 40)[:, None], (torch.arange(40) >= 20).long()
    >>> (fit_by_adam(x, y, classes=2).logits(x).argmax(1) == y).float().mean() > 0.9
    tensor(True)
    """
    _require_problem(features, labels, classes)
    features = features.to(accumulation_type(features))
    scaling = Scaling.of(features)
    rows = scaling(features)
    weights_DC = rows.new_zeros(rows.shape[1], classes, requires_grad=True)
    optimizer = torch.optim.Adam([weights_DC], lr=how.rate)
    generator = seeded_generator(seed, "linear by adam")
    loss = F.cross_entropy if labels.dim() == 1 else F.binary_cross_entropy_with_logits
    wanted = labels if labels.dim() == 1 else labels.to(rows.dtype)
    for _ in range(how.epochs):
        for index in torch.randperm(len(rows), generator=generator).to(rows.device).split(how.batch):
            optimizer.zero_grad()
            loss(rows[index] @ weights_DC, wanted[index]).backward()
            optimizer.step()
    steps = how.epochs * -(-len(rows) // how.batch)
    return LinearClassifier(weights_DC.detach(), scaling, l2=0.0, iterations=steps, converged=False)


def fit_probe(
    features: Tensor,
    labels: Tensor,
    *,
    classes: int,
    score: Callable[[Tensor, Tensor], float],
    seed: int = 0,
    progress: Progress | None = None,
) -> LinearProbe:
    """Logistic regression whose strength is the best on a held-out tenth of these samples, then fitted to all of them.

    Strengths go down from 1; each fit starts from the one before. The stronger of two equals is taken.

    Args:
        features, labels, classes: as for `fit_linear`.
        score: of (logits, labels) of the held-out samples; the highest is chosen.
        seed: of the samples that are held out, a tenth of every class.
        progress: called with (what, done, total).

    Returns:
        The classifier, and what was tried.

    >>> x, y = torch.linspace(-1, 1, 40)[:, None], (torch.arange(40) >= 20).long()
    >>> accuracy = lambda logits, labels: (logits.argmax(1) == labels).double().mean().item()
    >>> probe = fit_probe(x, y, classes=2, score=accuracy)
    >>> accuracy(probe.classifier.logits(x), y) > 0.9
    True
    """
    _require_problem(features, labels, classes)
    require_seed("seed", seed)
    features = features.to(accumulation_type(features))
    fitted, held_out = stratified_split(labels, VALIDATION_SHARE, seed=seed)
    scaling = Scaling.of(features[fitted])
    problem = Problem.of(scaling(features[fitted]), loss_of(labels[fitted]))
    held_features, held_labels = scaling(features[held_out]), labels[held_out]
    weights_DC, path = problem.start(classes), list[tuple[float, float]]()
    kept: dict[float, Tensor] = {}
    for step, l2 in enumerate(L2_PATH):
        weights_DC = problem.solve(l2, weights_DC).weights_DC
        kept[l2] = weights_DC
        path.append((l2, score(held_features @ weights_DC, held_labels)))
        if progress is not None:
            progress("linear: strengths", step + 1, len(L2_PATH))
        best = max(range(len(path)), key=lambda i: (path[i][1], -i))
        if len(path) - 1 - best >= PATIENCE:
            break
    del problem, held_features
    scaling = Scaling.of(features)
    l2 = path[best][0]
    fit = Problem.of(scaling(features), loss_of(labels)).solve(l2, kept[l2])
    return LinearProbe(LinearClassifier(fit.weights_DC, scaling, l2, fit.iterations, fit.converged), tuple(path))


def stratified_split(labels: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Indices (kept, held out), sorted: `share` of every class is held out, one at least where a class has two.

    Of several classes per sample the rarest one counts.
    """
    strata = labels if labels.dim() == 1 else _rarest_class(labels)
    order = torch.randperm(len(strata), generator=seeded_generator(seed, "validation split"))
    held_out = []
    for stratum in strata.cpu().unique():
        members = order[strata.cpu()[order] == stratum]
        count = max(1, round(share * len(members))) if len(members) > 1 else 0
        held_out.append(members[:count])
    held = torch.cat(held_out).sort().values
    mask = torch.ones(len(strata), dtype=torch.bool)
    mask[held] = False
    return mask.nonzero()[:, 0].to(labels.device), held.to(labels.device)


def _rarest_class(targets_NC: Tensor) -> Tensor:
    counts_C = targets_NC.sum(0)
    rarity_NC = torch.where(targets_NC, -counts_C, -len(targets_NC) - 1)
    none = ~targets_NC.any(1)
    return torch.where(none, targets_NC.shape[1], rarity_NC.argmax(1))


def _require_problem(features: Tensor, labels: Tensor, classes: int) -> None:
    require_matrix("features", features)
    if (problem := unusable_rows("features", features, directions=False)) is not None:
        raise ValueError(problem)
    require_count("classes", classes, at_least=0, at_most=MOST_CLASSES, advice="pass how many the labels have.")
    if isinstance(labels, Tensor) and labels.dim() == 2:
        _require_table(labels, len(features), classes)
    else:
        require_class_numbers("labels", labels, len(features))
        if int(labels.max()) >= max(classes, 2):
            raise ValueError(f"labels must be below classes = {classes}, got {int(labels.max())}; count all classes.")
    if classes < 2 and labels.dim() == 1:
        raise ValueError(f"a linear classifier must have at least 2 classes, got {classes}; label the data.")


def _require_table(labels: Tensor, rows: int, classes: int) -> None:
    require_dense("labels", labels)
    if labels.dtype != torch.bool or labels.shape != (rows, classes):
        raise ValueError(
            f"labels of several classes must be bool [{rows}, {classes}], got {labels.dtype} {list(labels.shape)}; "
            "give every row a yes or no for each class."
        )
