"""One run of one method on checked rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from flatclr.mi import ksg
from flatclr.mi.copula import FAMILIES, Copula, fit_gaussian
from flatclr.mi.critics import Critic, anchor_of, make_critic
from flatclr.mi.density import Conditional, gaussian_entropy_nats
from flatclr.mi.fit import Curve, FitSettings, as_tensor, fit
from flatclr.mi.inputs import is_tied
from flatclr.mi.limits import all_pairs
from flatclr.mi.margins import RankNormal
from flatclr.mi.methods import VARIATIONAL, InfoNCE, Method, Reading
from flatclr.mi.splits import Rows, Split, splits
from flatclr.mi.tasks import Array

DENSITY = ("ba", "club", "l1out")
NEIGHBOUR_COLUMNS = 10  # of both variables together; in more, neighbours are too far to tell anything
NEIGHBOURS: dict[str, Callable[[Array, Array, int], Array]] = {
    "ksg": ksg.ksg_1,
    "ksg2": ksg.ksg_2,
    "mixed_ksg": ksg.mixed_ksg,
}


@dataclass(frozen=True)
class Options:
    """What a user may choose besides the method."""

    critic: str | None = None  # None: the method's own
    folds: int = 1
    k: int = 3
    seed: int = 0
    settings: FitSettings = field(default_factory=FitSettings)


@dataclass(frozen=True)
class Outcome:
    """A value in nats and how it came about."""

    nats: float
    kind: str
    rows: int
    influence: Array  # of each row (or group of rows) on the value; none where the value is certain
    negative_pairs: int
    second_order: float = 0.0  # a deviation that `influence` does not show
    rows_interact: bool = False  # a row's term depends on its neighbours', so that differences of terms say too little
    ceiling_nats: float = math.inf
    ceiling_hides: bool = True  # False: the information itself cannot be larger
    curve: Curve = ()
    warnings: tuple[str, ...] = ()

    @property
    def standard_error(self) -> float:
        if len(self.influence) == 0:
            return 0.0
        return math.hypot(float(self.influence.std(ddof=1)) / math.sqrt(len(self.influence)), self.second_order)


def difference_error(whole: Outcome, part: Outcome) -> float:
    """Standard error of whole - part, both of the same rows, one's variables among the other's.

    Row by row, as what two terms share cancels. The second orders belong to chi-squares of which the part's is
    contained in the whole's: their difference is again one. Where rows interact, the error is that of independent
    terms, which is on the safe side.
    """
    if whole.rows_interact:
        return math.hypot(whole.standard_error, part.standard_error)
    remaining = max(whole.second_order**2 - part.second_order**2, 0.0)
    influence = whole.influence - part.influence if len(part.influence) else whole.influence
    return replace(whole, influence=influence, second_order=math.sqrt(remaining)).standard_error


def run_neighbours(name: str, x: Array, y: Array, options: Options) -> Outcome:
    """A nearest-neighbour estimator on normal scores."""
    terms = NEIGHBOURS[name](RankNormal.fit(x)(x), RankNormal.fit(y)(y), options.k)
    nats = max(float(terms.mean()), 0.0)
    ceiling = ksg.ceiling_nats(name, len(x), options.k)
    return Outcome(nats, "neither", len(x), terms, all_pairs(len(x)), rows_interact=True, ceiling_nats=ceiling)


def run_copula(name: str, x: Array, y: Array) -> Outcome:
    """The plug-in value of a copula family fitted to all rows."""
    return plug_in(FAMILIES[name](x, y), x, y)


def plug_in(copula: Copula, x: Array, y: Array) -> Outcome:
    """The plug-in value of a copula that was fitted to these rows, with the error it has where the family is right.

    First order: the spread of the log ratio over sqrt(N). Second order, all there is where x and y share nothing: N
    times the plug-in is then half a chi-square of d_x d_y degrees, whose deviation is sqrt(d_x d_y / 2).
    """
    ratio = replace(copula, correlation=copula.plain_correlation).log_ratio(*copula.scores(x, y))
    second_order = math.sqrt(x.shape[1] * y.shape[1] / 2) / len(ratio)
    return Outcome(copula.plug_in_nats, "neither", len(x), ratio, all_pairs(len(x)), second_order)


def run_held_out(name: str, x: Array, y: Array, options: Options) -> Outcome:
    """A learned method, on one split or cross-fitted."""
    if name in DENSITY and x.shape[1] < y.shape[1]:
        x, y = y, x  # the density of the narrower variable is easier to learn, and one normal score's entropy is known
    once = _run_density if name in DENSITY else _run_critic
    outcomes = [once(name, x, y, split, options) for split in splits(len(x), options.seed, options.folds)]
    if len(outcomes) == 1:
        return outcomes[0]
    return Outcome(
        nats=float(np.mean([o.nats for o in outcomes])),
        kind=outcomes[0].kind,
        rows=len(x),
        influence=np.concatenate([o.influence - o.influence.mean() for o in outcomes]),
        negative_pairs=sum(o.negative_pairs for o in outcomes),
        ceiling_nats=min(o.ceiling_nats for o in outcomes),
        curve=outcomes[0].curve,
        warnings=tuple(dict.fromkeys(w for o in outcomes for w in o.warnings)),
    )


@dataclass(frozen=True)
class Tensors:
    """The three parts of both variables, in the coordinates a network is given."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    evaluation: tuple[Tensor, Tensor]


def to_tensors(copula: Copula, x: Array, y: Array, split: Split) -> Tensors:
    """Normal scores by maps that were fitted to the training rows."""

    def part(rows: Rows) -> tuple[Tensor, Tensor]:
        z_x, z_y = copula.scores(x[rows], y[rows])
        return as_tensor(z_x), as_tensor(z_y)

    return Tensors(part(split.train), part(split.validation), part(split.evaluation))


def train_method(name: str, critic: Critic, parts: Tensors, options: Options) -> tuple[Method, Curve]:
    """The method after training, and its validation curve."""
    dim_x, dim_y = (v.shape[1] for v in parts.train)
    method = VARIATIONAL[name](critic, dim_x, dim_y, options.settings.hidden)
    if critic.caps_negatives:
        method.batch_size = min(method.batch_size, 64)
    generator = torch.Generator().manual_seed(options.seed)
    return method, fit(method, parts.train, parts.validation, options.settings, generator)


def _run_critic(name: str, x: Array, y: Array, split: Split, options: Options) -> Outcome:
    copula = fit_gaussian(x[split.train], y[split.train])
    parts = to_tensors(copula, x, y, split)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        critic_name = options.critic or ("cosine" if name == "flatnce" else "anchored")
        critic = make_critic(critic_name, x.shape[1], y.shape[1], hidden=options.settings.hidden, copula=copula)
        method, curve = train_method(name, critic, parts, options)
    return outcome_of(method.read(*parts.evaluation), method.read(*parts.validation), method.kind, curve)


def _run_density(name: str, x: Array, y: Array, split: Split, options: Options) -> Outcome:
    copula = fit_gaussian(x[split.train], y[split.train])
    parts = to_tensors(copula, x, y, split)
    entropy = gaussian_entropy_nats(parts.train[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        learner = Conditional(*parts.train, hidden=options.settings.hidden)
        generator = torch.Generator().manual_seed(options.seed)
        curve = fit(learner, parts.train, parts.validation, options.settings, generator)
    evaluation, validation = (learner.read(name, *part, entropy) for part in (parts.evaluation, parts.validation))
    if name == "ba":  # H(y) is known of one continuous column's normal scores; else only an upper limit of it is
        known = y.shape[1] == 1 and not is_tied(y[:, 0])
        return outcome_of(evaluation, validation, "lower" if known else "neither", curve)
    if name == "l1out":
        # its mean over other rows falls with a q that has learned too little: on the benchmark it is below the truth
        # on a third of the tasks
        outcome = outcome_of(evaluation, validation, "neither", curve)
        warning = "it would be an upper bound if the learned q(y | x) were the true one; a wrong q reads low."
        return replace(outcome, warnings=(*outcome.warnings, warning))
    denied_by = _who_sees_more(evaluation, x, y, split, options)
    outcome = outcome_of(evaluation, validation, "upper" if denied_by is None else "neither", curve)
    warning = (
        "an upper bound only if the learned q(y | x) is the true one; a wrong q can read low."
        if denied_by is None
        else f"no upper bound: {denied_by} clearly more on the same rows, so the learned q(y | x) is wrong."
    )
    return replace(outcome, warnings=(*outcome.warnings, warning))


def _who_sees_more(upper: Reading, x: Array, y: Array, split: Split, options: Options) -> str | None:
    """What denies an upper bound on the evaluation rows: a copula family's lower bound, or neighbours, who read low."""
    for family, fit_family in FAMILIES.items():
        reading = family_bound(fit_family(x[split.train], y[split.train]), x, y, split.evaluation)
        if reading.nats - upper.nats > 3 * math.hypot(reading.standard_error, upper.standard_error):
            return f"the {family} copula's lower bound is"
    if x.shape[1] + y.shape[1] <= NEIGHBOUR_COLUMNS:
        rows = split.evaluation
        near = run_neighbours("ksg", x[rows], y[rows], replace(options, k=min(options.k, len(rows) - 1)))
        if near.nats - upper.nats > 3 * math.hypot(near.standard_error, upper.standard_error):
            return "nearest neighbours find"
    return None


def family_bound(copula: Copula, x: Array, y: Array, rows: Rows) -> Reading:
    """InfoNCE of a fitted copula's log ratio on rows it has not seen: a lower bound whatever the family."""
    z_x, z_y = (as_tensor(z) for z in copula.scores(x[rows], y[rows]))
    return InfoNCE(anchor_of(copula), x.shape[1], y.shape[1], 0).read(z_x, z_y)


def outcome_of(
    evaluation: Reading, validation: Reading, kind: str, curve: Curve, *, ceiling_hides: bool = True
) -> Outcome:
    """The evaluation's value; the validation's only says whether they agree."""
    spread = math.hypot(evaluation.standard_error, validation.standard_error)
    warnings = []
    if abs(evaluation.nats - validation.nats) > 3 * spread:
        warnings.append(
            f"validation ({validation.nats:.3f}) and evaluation ({evaluation.nats:.3f}) disagree by more than three "
            "standard errors; get more rows."
        )
    return Outcome(
        nats=evaluation.nats,
        kind=kind,
        rows=len(evaluation.values),
        influence=evaluation.influence.double().numpy(),
        negative_pairs=evaluation.negative_pairs,
        ceiling_nats=evaluation.ceiling_nats,
        ceiling_hides=ceiling_hides,
        curve=curve,
        warnings=tuple(warnings),
    )
