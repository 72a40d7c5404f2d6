"""Problems of every relation as tensors and options, and every objective with what its gradient is the gradient of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import flatclr
from flatclr import Objective
from tests.support import field_oracles, oracles
from tests.support import relation_oracles as ro
from tests.support.harness import COSINE
from tests.support.relation_oracles import Anchor, Problem

PAIRINGS = ("views", "cross", "one_way", "within")
ROUTES = ("dense", "streamed")

# what may be said of six samples; the queue of five has labels and ids where the samples have them
RELATIONS: dict[str, dict[str, Any]] = {
    "views": {},
    "two_labels": {"labels": [0, 1, 1, 0, 1, 1]},
    "some_labels": {"labels": [7, -2, 7, 3, 3, 5]},
    "ids": {"ids": [4, 4, 9, 1, 9, 2]},
    "labels_and_ids": {"labels": [0, 0, 1, 0, 1, 1], "ids": [3, 3, 8, 1, 5, 1]},
    "left_out": {"labels": [0, 0, 0, 0, 0, 1], "ids": [5, 6, 7, 8, 9, 5]},  # sample 0 has no negative of the batch
    "one_hard": {"hard": 1},
    "hard_and_labels": {"hard": 7, "labels": [0, 1, 1, 0, 2, 1]},
    "only_hard": {"hard": 2, "in_batch": False},
    "one_label_but_hard": {"hard": 2, "labels": [4] * 6},
    "margin": {"margin": 0.1},
    "below_the_positive": {"margin": -0.5},
    "queue": {"queue": 5},
    "queue_with_labels": {"queue": 5, "labels": [0, 1, 1, 0, 2, 1]},
    "only_queue": {"queue": 5, "labels": [0, 1, 1, 0, 2, 1], "in_batch": False},
    "queue_with_ids": {"queue": 5, "ids": [0, 1, 1, 2, 2, 5]},
    "everything": {"queue": 5, "hard": 3, "margin": 0.2, "labels": [0, 1, 1, 0, 2, 1], "ids": [0, 1, 2, 0, 4, 1]},
}


def problem_of(
    views: int = 3,
    samples: int = 6,
    d: int = 4,
    *,
    queue: int = 0,
    hard: int = 0,
    seed: int = 0,
    **of: Any,
) -> Problem:
    """Correlated views, a queue and hard negatives, in float64."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(samples, d))
    views_VNd = base + 0.6 * rng.normal(size=(views, samples, d))
    if queue:
        of["queue"] = rng.normal(size=(queue, d))
        of |= {f"queue_{name}": [0, 1, 2, 0, 5][:queue] for name in ("labels", "ids") if of.get(name) is not None}
    if hard:
        of["hard"] = base[:, None] + rng.normal(size=(samples, hard, d))
    return Problem(views_VNd, **of)


@dataclass(frozen=True)
class Tensors:
    """A problem as it is passed to a call."""

    views: tuple[Tensor, ...]
    queue: Tensor | None
    hard: Tensor | None
    problem: Problem

    @classmethod
    def of(cls, problem: Problem, dtype: torch.dtype = torch.float64) -> Tensors:
        def leaf(z: ro.Array | None) -> Tensor | None:
            return None if z is None else torch.tensor(z, dtype=dtype, requires_grad=True)

        views = tuple(torch.tensor(z, dtype=dtype, requires_grad=True) for z in problem.views)
        return cls(views, leaf(problem.queue), leaf(problem.hard), problem)

    @property
    def brought(self) -> dict[str, Any]:
        """The keywords of a call."""
        problem = self.problem
        codes = {
            "labels": problem.labels,
            "ids": problem.ids,
            "negative_labels": problem.queue_labels,
            "negative_ids": problem.queue_ids,
        }
        given: dict[str, Any] = {n: torch.tensor(c) for n, c in codes.items() if c is not None}
        return given | {n: z for n, z in (("negatives", self.queue), ("hard_negatives", self.hard)) if z is not None}

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.views, *(z for z in (self.queue, self.hard) if z is not None)]


def options_of(problem: Problem) -> dict[str, Any]:
    """The options a problem asks for."""
    options: dict[str, Any] = {"pairing": problem.pairing, "in_batch_negatives": problem.in_batch}
    if not problem.normalize:
        options["normalize"] = False
    return options if problem.margin is None else options | {"false_negative_margin": problem.margin}


def stats_of(problem: Problem, beta: float | Tensor, **more: Any) -> flatclr.ContrastStats:
    tensors = Tensors.of(problem)
    return flatclr.contrast_stats(
        *tensors.views, inverse_temperature=beta, **options_of(problem), **tensors.brought, **more
    )


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[..., Objective]
    value: Callable[[Problem], float]  # what the objective reports
    potential: Callable[[Problem], float]  # what its gradient is the gradient of
    normalize: bool = True
    takes_labels: bool = True

    def asked_of(self, problem: Problem) -> Problem:
        """The problem in this objective's geometry; a margin is measured in cosines."""
        return replace(problem, normalize=self.normalize or problem.margin is not None)

    def objective(self, problem: Problem, **more: Any) -> Objective:
        options = options_of(problem) | {"normalize": problem.normalize}
        return self.build(**options, **more).double()

    def fits(self, problem: Problem) -> bool:
        return self.takes_labels or problem.labels is None


class OrderedU(nn.Module):
    """A u for FLO that can tell its two embeddings apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.25))

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return self.weight * (z_a[:, 0] + 2 * z_b[:, 0]).square()


def _flo_ordered(problem: Problem) -> float:
    """One value of u per pair of views, called in the order of the views."""

    def loss(anchor: Anchor) -> float:
        view, n = anchor.member

        def u(_: float, positive: ro.Member) -> float:
            first, second = sorted([int(view), int(positive[0])])
            x, y = (oracles.normalized(problem.views[v][n : n + 1])[0] for v in (first, second))
            return 0.25 * float(x[0] + 2 * y[0]) ** 2

        return ro.flo(anchor, u)

    return ro.mean(ro.anchors_of(problem, 3.0), loss)


def _over(function: Callable[[Anchor], float], beta: float) -> Callable[[Problem], float]:
    return lambda problem: ro.mean(ro.anchors_of(problem, beta), function)


def _cases() -> list[Case]:
    beta = 3.0
    nce, gap = _over(ro.info_nce, beta), _over(ro.gap, beta)

    def case(
        name: str,
        build: Callable[..., Objective],
        value: Callable[[Problem], float],
        potential: Callable[[Problem], float] | None = None,
        **more: Any,
    ) -> Case:
        return Case(name, build, value, potential or value, **more)

    made = [
        case("info_nce", lambda **o: flatclr.InfoNCE(1 / beta, **o), nce),
        case("flat_nce", lambda **o: flatclr.FlatNCE(1 / beta, **o), nce, gap),
        case("flat_nce_paper", lambda **o: flatclr.FlatNCE(1 / beta, value="paper", **o), lambda _: 1.0, gap),
        case("flat_nce_kept", lambda **o: flatclr.FlatNCE(1 / beta, keep_positive=True, **o), nce),
        case("sup_con_outside", lambda **o: flatclr.SupCon(1 / beta, **o), _over(ro.sup_con_outside, beta)),
        case(
            "sup_con_inside",
            lambda **o: flatclr.SupCon(1 / beta, position="inside", **o),
            _over(ro.sup_con_inside, beta),
        ),
        case("dv", lambda **o: flatclr.DV(1 / beta, **o), lambda p: ro.dv(ro.anchors_of(p, beta))),
        case("nwj", lambda **o: flatclr.NWJ(1 / beta, **o), _over(ro.nwj, beta)),
        case(
            "flo",
            lambda **o: flatclr.FLO(1 / beta, running_offset=False, **o),
            _over(lambda anchor: ro.flo(anchor, lambda s, _: -s), beta),
            takes_labels=False,
        ),
        case("flo_module", lambda **o: flatclr.FLO(1 / beta, u=OrderedU(), **o), _flo_ordered, takes_labels=False),
        case(
            "rpc",
            lambda **o: flatclr.RPC(2.0, a=0.3, b=0.2, g=0.7, **o),
            _over(ro.rpc(a=0.3, b=0.2, g=0.7), 0.5),
            normalize=False,
        ),
        *_field_cases(),
    ]
    for alpha in (2.0, 1.5):
        weights = {"alpha": alpha, "t": 1.2, "align_weight": 0.7, "uniform_weight": 1.3}
        made.append(
            case(
                f"align_uniform_{alpha:g}",
                lambda w=weights, **o: flatclr.AlignUniform(**w, **o),
                lambda p, w=weights: ro.align_uniform(ro.anchors_of(p, 1.0), **w),  # type: ignore[misc]
            )
        )
    for gamma in (0.0, 0.5, 2.0, -1.0, math.inf, -math.inf):
        made.append(
            case(
                f"holder_{gamma:g}",
                lambda g=gamma, **o: flatclr.HolderFlatNCE(1 / beta, gamma=g, **o),
                nce,
                _over(ro.holder(gamma), beta),
            )
        )
    for name, (conjugate, critic) in COSINE.items():
        gaussian = _over(ro.f_micl_gaussian(name, beta=1.25, mu=1.3, weight=7.0), 1.25)
        cosine = _over(ro.f_micl_cosine(conjugate, critic, weight=7.0), 1.0)
        made += [
            case(
                f"fmicl_{name}",
                lambda n=name, **o: flatclr.FMICL(n, temperature=0.8, mu=1.3, weight=7.0, **o),
                gaussian,
            ),
            case(
                f"fmicl_{name}_cosine", lambda n=name, **o: flatclr.FMICL(n, kernel="cosine", weight=7.0, **o), cosine
            ),
        ]
    return made


def _field_cases() -> list[Case]:
    beta = 3.0

    def of(function: Callable[[Any, Any], float]) -> Callable[[Problem], float]:
        return _over(lambda anchor: function(anchor.positives, anchor.negatives), beta)

    def dclw(problem: Problem) -> float:
        scores = [(a.positives, a.negatives) for a in ro.counted(ro.anchors_of(problem, beta))]
        return field_oracles.dclw(scores, beta, 0.4)

    values: dict[str, tuple[Callable[..., Objective], Callable[[Problem], float]]] = {
        "dcl": (flatclr.DCL, of(field_oracles.dcl)),
        "dclw": (partial(flatclr.DCLW, sigma=0.4), dclw),
        "dhel": (flatclr.DHEL, of(field_oracles.dhel)),
        "debiased": (partial(flatclr.Debiased, prior=0.07), of(field_oracles.debiased(beta, 0.07))),
        "spectral": (flatclr.Spectral, of(field_oracles.spectral)),
        "siglip": (partial(flatclr.SigLIP, bias=-1.25, learn_temperature=False), of(field_oracles.sig_lip(-1.25))),
    }
    made = [Case(n, partial(build, temperature=1 / beta), value, value) for n, (build, value) in values.items()]
    macl = partial(flatclr.MACL, temperature=1 / beta, alpha=0.0)
    return [*made, Case("macl", macl, of(field_oracles.macl), _over(ro.gap, beta))]


CASES = _cases()
NAMED = {case.name: case for case in CASES}
# one of every kind, for claims that do not depend on the formula
KINDS = [
    NAMED[name]
    for name in (
        *("info_nce", "flat_nce", "sup_con_outside", "sup_con_inside", "dv", "nwj", "flo", "flo_module", "rpc"),
        *("align_uniform_1.5", "holder_0", "holder_2", "holder_-inf", "fmicl_js", "fmicl_tsallis_cosine"),
    )
]
