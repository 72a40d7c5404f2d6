"""The default: closed-form families, neighbours or a learned critic, by what held-out rows say.

1. Copula families (Gaussian, Student, Gaussian after undoing spirals) are fitted to the training rows and compared by
   the InfoNCE bound their log ratio reaches on the validation rows. A richer family must win clearly.
2. In few dimensions a neighbour estimate tells whether that family misses anything; in more, a residual network
   trained on top of the family does.
3. If nothing is missed, the family's plug-in value of all rows is the answer. Otherwise it is the neighbour estimate,
   or the anchored critic's lower bound on evaluation rows that took no part in any of these choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flatclr.mi.copula import FAMILIES, Copula
from flatclr.mi.critics import anchor_of, anchored
from flatclr.mi.methods import InfoNCE, Reading
from flatclr.mi.runners import (
    Options,
    Outcome,
    outcome_of,
    run_copula,
    run_neighbours,
    to_tensors,
    train_method,
)
from flatclr.mi.splits import Split, splits
from flatclr.mi.tasks import Array

_FEW_DIMENSIONS = 4  # of x and y together: neighbours are hard to beat
_NEIGHBOUR_DIMENSIONS = 10
_CLEAR = 2.0  # standard errors
_LEAST_GAIN = 0.01  # nats


@dataclass(frozen=True)
class Choice:
    """What was run in the end, and why."""

    outcome: Outcome
    method: str
    reason: str


def choose(x: Array, y: Array, *, discrete: bool, options: Options) -> Choice:
    """Run what suits these rows."""
    width = x.shape[1] + y.shape[1]
    if discrete and width <= _NEIGHBOUR_DIMENSIONS:
        reason = "tied values: the estimator for mixed data."
        return Choice(run_neighbours("mixed_ksg", x, y, options), "mixed_ksg", reason)
    split = next(splits(len(x), options.seed))
    family, copula, validation = _best_family(x, y, split)
    reached = f"the {family} copula reaches {validation.nats:.3f} nats on validation"
    plug_in = run_copula(family, x, y)
    trusted = _agree(plug_in, validation, copula)
    neighbours = run_neighbours("ksg", x, y, options) if width <= _NEIGHBOUR_DIMENSIONS else None

    if neighbours is not None and width <= _FEW_DIMENSIONS:
        missed = neighbours.nats - max(validation.nats, plug_in.nats if trusted else -math.inf)
        if missed > _margin(neighbours, validation):
            reason = f"{reached}, neighbours see {neighbours.nats:.3f} in {width} dimensions."
            return Choice(neighbours, "ksg", reason)
        return Choice(plug_in, family, f"{reached} and neighbours see no more.")

    outcome, residual = _learned(copula, x, y, split, options)
    gain = residual.values - validation.values
    clear = _CLEAR * float(gain.std() / math.sqrt(len(gain)))
    if float(gain.mean()) > max(clear, _LEAST_GAIN) or not trusted:
        if neighbours is not None and neighbours.nats - residual.nats > _margin(neighbours, residual):
            reason = f"a residual network reaches {residual.nats:.3f} on validation, neighbours see more."
            return Choice(neighbours, "ksg", reason)
        reason = f"{reached}, a residual network on top {residual.nats:.3f}."
        return Choice(outcome, f"infonce, anchored on {family}", reason)
    return Choice(plug_in, family, f"{reached} and a residual network adds nothing.")


def _best_family(x: Array, y: Array, split: Split) -> tuple[str, Copula, Reading]:
    """The simplest family that no other beats clearly on the validation rows."""
    best: tuple[str, Copula, Reading] | None = None
    for name, fit_family in FAMILIES.items():
        copula = fit_family(x[split.train], y[split.train])
        reading = _read_anchor(copula, x, y, split)
        if best is None:
            best = (name, copula, reading)
            continue
        gain = reading.values - best[2].values
        if float(gain.mean()) > max(_CLEAR * float(gain.std() / math.sqrt(len(gain))), _LEAST_GAIN / 2):
            best = (name, copula, reading)
    assert best is not None
    return best


def _read_anchor(copula: Copula, x: Array, y: Array, split: Split) -> Reading:
    parts = to_tensors(copula, x, y, split)
    return InfoNCE(anchor_of(copula), x.shape[1], y.shape[1], 0).read(*parts.validation)


def _agree(plug_in: Outcome, validation: Reading, copula: Copula) -> bool:
    """Whether the plug-in claims no more than held-out rows confirm, given what fitting so many correlations costs."""
    dim_y = len(copula.correlation) - copula.dim_x
    cost = copula.dim_x * dim_y / (2 * copula.rows)
    return plug_in.nats - validation.nats < 2 * cost + 3 * validation.standard_error + _LEAST_GAIN


def _margin(neighbours: Outcome, reading: Reading) -> float:
    return _CLEAR * math.hypot(neighbours.standard_error, reading.standard_error)


def _learned(copula: Copula, x: Array, y: Array, split: Split, options: Options) -> tuple[Outcome, Reading]:
    """The anchored critic's value on evaluation rows, and its reading on validation."""
    parts = to_tensors(copula, x, y, split)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        critic = anchored(copula, x.shape[1], y.shape[1], hidden=options.settings.hidden)
        method, curve = train_method("infonce", critic, parts, options)
    validation = method.read(*parts.validation)
    return outcome_of(method.read(*parts.evaluation), validation, method.kind, curve), validation
