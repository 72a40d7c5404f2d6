"""Learned methods: trained on some rows, stopped by others, read on the rest; once, or cross-fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flatclr.mi.arrays import Array, Integers, as_tensor
from flatclr.mi.copula import Copula, fit_gaussian
from flatclr.mi.critics import Critic, make_critic
from flatclr.mi.fit import Curve, fit
from flatclr.mi.outcome import MethodOptions, Outcome, outcome_of
from flatclr.mi.splits import Split, splits
from flatclr.mi.variational import Variational

_CAPPED_BATCH = 64  # rows of a critic that pays for every pair

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Tensors:
    """The three parts of both variables, in the coordinates a network is given."""

    train: Pair
    validation: Pair
    evaluation: Pair


def to_tensors(copula: Copula, x: Array, y: Array, split: Split) -> Tensors:
    """Normal scores by maps that were fitted to the training rows."""

    def part(rows: Integers) -> Pair:
        z_x, z_y = copula.scores(x[rows], y[rows])
        return as_tensor(z_x), as_tensor(z_y)

    return Tensors(part(split.train), part(split.validation), part(split.evaluation))


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Weights drawn inside are this seed's, and the caller's random state stays; the generator is for batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


def cross_fitted(once: Callable[[Split], Outcome], rows: int, options: MethodOptions) -> Outcome:
    """The outcome of one split, or of `options.folds` whose evaluation rows together are all rows."""
    outcomes = [once(split) for split in splits(rows, options.seed, options.folds)]
    if len(outcomes) == 1:
        return outcomes[0]
    return Outcome(
        nats=float(np.mean([o.nats for o in outcomes])),
        rows=rows,
        influence=np.concatenate([o.influence - o.influence.mean() for o in outcomes]),
        negative_pairs=sum(o.negative_pairs for o in outcomes),
        kind=outcomes[0].kind,
        second_order=float(np.mean([o.second_order for o in outcomes])),
        ceiling_nats=min(o.ceiling_nats for o in outcomes),
        ceiling_hides=outcomes[0].ceiling_hides,
        curve=outcomes[0].curve,
        warnings=tuple(dict.fromkeys(w for o in outcomes for w in o.warnings)),
    )


def run_critic(estimator: type[Variational], x: Array, y: Array, options: MethodOptions) -> Outcome:
    """Train a critic in the estimator's way and read it in its way."""
    return cross_fitted(partial(_run_critic_once, estimator, x, y, options), len(x), options)


def _run_critic_once(estimator: type[Variational], x: Array, y: Array, options: MethodOptions, split: Split) -> Outcome:
    copula = fit_gaussian(x[split.train], y[split.train])
    parts = to_tensors(copula, x, y, split)
    with seeded(options.seed) as generator:
        name = options.critic or estimator.default_critic
        critic = make_critic(name, x.shape[1], y.shape[1], hidden=options.settings.hidden, copula=copula)
        learner, curve = train_critic(estimator, critic, parts, options, generator)
    return outcome_of(learner.read(*parts.evaluation), learner.read(*parts.validation), curve)


def train_critic(
    estimator: type[Variational], critic: Critic, parts: Tensors, options: MethodOptions, generator: torch.Generator
) -> tuple[Variational, Curve]:
    """The estimator after training, and its validation curve."""
    dim_x, dim_y = (v.shape[1] for v in parts.train)
    learner = estimator(critic, dim_x, dim_y, options.settings.hidden)
    if critic.caps_negatives:
        learner.batch_size = min(learner.batch_size, _CAPPED_BATCH)
    return learner, fit(learner, parts.train, parts.validation, options.settings, generator, options.budget)
