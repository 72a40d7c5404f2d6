"""The ladder every objective climbs: each case names an objective, its oracle, and what its gradient is the gradient of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr import Objective
from tests.support import field_oracles, oracles
from tests.support.oracles import Array, Row

# for a property that every case is asked for: together they are many examples
IN_TURN = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 4)
PAIRINGS = ("two_view", "cross", "one_way", "within")


@dataclass(frozen=True)
class Batch:
    """Two views and perhaps a queue, in float64."""

    z_a: Array
    z_b: Array
    queue: Array | None
    pairing: str
    in_batch: bool = True

    @classmethod
    def random(
        cls, pairs: int, d: int, *, pairing: str = "two_view", queue: int = 0, in_batch: bool = True, seed: int = 0
    ) -> Batch:
        rng = np.random.default_rng(seed)
        z_a = rng.normal(size=(pairs, d))
        z_b = z_a + 0.5 * rng.normal(size=(pairs, d))
        return cls(z_a, z_b, rng.normal(size=(queue, d)) if queue else None, pairing, in_batch)

    def rows(self, beta: float, *, normalize: bool = True) -> list[Row]:
        return oracles.negative_scores(
            self.z_a,
            self.z_b,
            beta=beta,
            pairing=self.pairing,
            queue=self.queue,
            in_batch=self.in_batch,
            normalize=normalize,
        )

    @property
    def anchor_views(self) -> int:
        return 1 if self.pairing == "one_way" else 2

    def options(self) -> dict[str, Any]:
        return {"pairing": self.pairing, "in_batch_negatives": self.in_batch}

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None]:
        z_a, z_b = (torch.tensor(z, dtype=dtype, requires_grad=True) for z in (self.z_a, self.z_b))
        return z_a, z_b, None if self.queue is None else torch.tensor(self.queue, dtype=dtype)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[..., Objective]
    value: Callable[[Batch], float]  # what the objective reports
    potential: Callable[[Batch], float]  # what its gradient is the gradient of
    pairing: str = "two_view"  # the objective's default
    normalize: bool = True
    draws: bool = True  # it takes negatives_per_anchor
    of_stats: bool = False  # more arithmetic on what other cases have shown on every route and over ranks

    def objective(self, batch: Batch, **more: Any) -> Objective:
        return self.build(**batch.options(), **more).double()


class QuadraticU(nn.Module):
    """A u for FLO that looks at both embeddings of the pair."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.25))

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return self.weight * (z_a + 2 * z_b).square().sum(1)


def quadratic_u(batch: Batch) -> Array:
    a, b = oracles.normalized(batch.z_a), oracles.normalized(batch.z_b)
    per_pair = [0.25 * float((x + 2 * y) @ (x + 2 * y)) for x, y in zip(a, b, strict=True)]
    return np.array(per_pair * batch.anchor_views)


def on_rows(function: Callable[[list[Row]], Any], beta: float, *, normalize: bool = True) -> Callable[[Batch], float]:
    """The mean over anchors of a function of the rows."""
    return lambda batch: float(np.mean(function(batch.rows(beta, normalize=normalize))))


def of_anchors(function: Callable[[Any, Any], float], beta: float, **more: Any) -> Callable[[Batch], float]:
    """The mean over anchors of a function of their positive and their negative scores."""
    return on_rows(lambda rows: [function(np.array([row.positive]), row.negatives) for row in rows], beta, **more)


def align_uniform(batch: Batch, *, alpha: float, t: float, align_weight: float, uniform_weight: float) -> float:
    rows = batch.rows(2 * t)
    per_view = np.split(np.arange(len(rows)), batch.anchor_views)
    potentials = [np.mean([np.exp(rows[i].negatives - 2 * t) for i in view]) for view in per_view]
    uniform = float(np.mean(np.log(potentials)))
    return align_weight * float(np.mean(oracles.alignment(batch.z_a, batch.z_b, alpha))) + uniform_weight * uniform


def fmicl_gaussian(
    name: str, *, temperature: float, mu: float, weight: float, order: float = 3.0
) -> Callable[[Batch], float]:
    f, derivative = oracles.GENERATORS[name]
    more = (order,) if name == "tsallis" else ()

    def conjugate_of_derivative(u: float) -> float:
        return u * derivative(u, *more) - f(u, *more)

    def loss(batch: Batch) -> float:
        rows = batch.rows(1 / temperature)
        return weight * oracles.mean_negative(
            rows, lambda s: conjugate_of_derivative(mu * math.exp(s - 1 / temperature))
        ) - oracles.mean_positive(rows, lambda s: derivative(mu * math.exp(s - 1 / temperature), *more))

    return loss


# f* of the table, and the map of the cosine into its domain
COSINE: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "kl": (lambda t: math.exp(t - 1), lambda c: c),
    "js": (lambda t: -math.log(2 - math.exp(t)), lambda c: c / 2),
    "pearson": (lambda t: t * t / 4 + t, lambda c: c),
    "hellinger": (lambda t: t / (1 - t), lambda c: c / 2),
    "tsallis": (lambda t: (2 * t / 3) ** 1.5 + 0.5, lambda c: c + 1),
    "vlc": (lambda t: 4 - t - 4 * math.sqrt(1 - t), lambda c: c / 2),
}


def fmicl_cosine(name: str, *, weight: float) -> Callable[[Batch], float]:
    conjugate, critic = COSINE[name]

    def loss(batch: Batch) -> float:
        rows = batch.rows(1.0)
        penalty = oracles.mean_negative(rows, lambda c: conjugate(critic(c)))
        return weight * penalty - oracles.mean_positive(rows, critic)

    return loss


def _case(
    name: str,
    build: Callable[..., Objective],
    value: Callable[[Batch], float],
    potential: Callable[[Batch], float] | None = None,
    pairing: str = "two_view",
    **more: Any,
) -> Case:
    return Case(name, build, value, potential or value, pairing, **more)


def _field_cases() -> list[Case]:
    beta, gap = 3.0, on_rows(oracles.gap, 3.0)

    def dclw(batch: Batch) -> float:
        rows = [(np.array([row.positive]), row.negatives) for row in batch.rows(beta)]
        return field_oracles.dclw(rows, beta, 0.4)

    of_stats = [
        _case("dcl", lambda temperature=1 / beta, **o: flatclr.DCL(temperature, **o), of_anchors(field_oracles.dcl, 3)),
        _case("dclw", lambda temperature=1 / beta, **o: flatclr.DCLW(temperature, sigma=0.4, **o), dclw),
        _case(
            "dhel",
            lambda temperature=1 / beta, **o: flatclr.DHEL(temperature, **o),
            of_anchors(field_oracles.dhel, beta),
            pairing="within",
        ),
        _case(
            "macl",
            lambda temperature=1 / beta, **o: flatclr.MACL(temperature, alpha=0.0, **o),
            of_anchors(field_oracles.macl, beta),
            gap,
        ),
        _case(
            "debiased",
            lambda temperature=1 / beta, **o: flatclr.Debiased(temperature, prior=0.07, **o),
            of_anchors(field_oracles.debiased(beta, 0.07), beta),
        ),
        _case(
            "spectral",
            lambda temperature=1 / beta, **o: flatclr.Spectral(temperature, **o),
            of_anchors(field_oracles.spectral, beta),
        ),
        _case(
            "sogclr",
            lambda temperature=1 / beta, **o: flatclr.SogCLR(temperature, gamma=1.0, **o),
            of_anchors(field_oracles.sog_clr(beta), beta),
            draws=False,
        ),
    ]
    siglip = _case(
        "siglip",
        lambda temperature=1 / beta, **o: flatclr.SigLIP(temperature, bias=-1.25, learn_temperature=False, **o),
        of_anchors(field_oracles.sig_lip(-1.25), beta),
        pairing="cross",
    )
    return [*(replace(case, of_stats=True) for case in of_stats), siglip]


def _cases() -> list[Case]:
    beta = 3.0
    info_nce, gap = on_rows(oracles.info_nce, beta), on_rows(oracles.gap, beta)
    cases = [
        _case("info_nce", lambda temperature=1 / beta, **o: flatclr.InfoNCE(temperature, **o), info_nce),
        _case("flat_nce", lambda temperature=1 / beta, **o: flatclr.FlatNCE(temperature, **o), info_nce, gap),
        _case(
            "flat_nce_paper",
            lambda temperature=1 / beta, **o: flatclr.FlatNCE(temperature, value="paper", **o),
            lambda _: 1.0,
            gap,
        ),
        _case(
            "flat_nce_kept",
            lambda temperature=1 / beta, **o: flatclr.FlatNCE(temperature, keep_positive=True, **o),
            info_nce,
        ),
        _case("dv", lambda temperature=1 / beta, **o: flatclr.DV(temperature, **o), on_rows(oracles.dv_loss, beta)),
        _case("nwj", lambda temperature=1 / beta, **o: flatclr.NWJ(temperature, **o), on_rows(oracles.nwj_loss, beta)),
        _case(
            "flo",
            lambda temperature=1 / beta, **o: flatclr.FLO(temperature, running_offset=False, **o),
            on_rows(lambda rows: oracles.flo_loss(rows, np.array([-row.positive for row in rows])), beta),
        ),
        _case(
            "flo_module",
            lambda temperature=1 / beta, **o: flatclr.FLO(temperature, u=QuadraticU(), **o),
            lambda batch: oracles.flo_loss(batch.rows(beta), quadratic_u(batch)),
        ),
        _case(
            "rpc",
            lambda temperature=2.0, **o: flatclr.RPC(temperature, a=0.3, b=0.2, g=0.7, **o),
            on_rows(lambda rows: oracles.rpc_loss(rows, a=0.3, b=0.2, g=0.7), 0.5, normalize=False),
            normalize=False,
        ),
        _case(
            "align_uniform",
            lambda **o: flatclr.AlignUniform(alpha=1.5, t=1.2, align_weight=0.7, uniform_weight=1.3, **o),
            lambda batch: align_uniform(batch, alpha=1.5, t=1.2, align_weight=0.7, uniform_weight=1.3),
            pairing="within",
        ),
    ]
    for gamma in (0.0, 0.5, 1.0, 2.0, -1.0, math.inf, -math.inf):
        log_mean = on_rows(lambda rows, g=gamma: oracles.holder_log_mean(rows, g), beta)  # type: ignore[misc]
        cases.append(
            _case(
                f"holder_{gamma:g}",
                lambda g=gamma, temperature=1 / beta, **o: flatclr.HolderFlatNCE(temperature, gamma=g, **o),
                info_nce,
                log_mean,
            )
        )
    for name in oracles.GENERATORS:
        settings = {"temperature": 0.8, "mu": 1.3, "weight": 7.0}
        cases.append(
            _case(
                f"fmicl_{name}",
                lambda n=name, s=settings, **o: flatclr.FMICL(n, **(s | o)),
                fmicl_gaussian(name, **settings),
                pairing="within",
            )
        )
        cases.append(
            _case(
                f"fmicl_{name}_cosine",
                lambda n=name, **o: flatclr.FMICL(n, kernel="cosine", weight=7.0, **o),
                fmicl_cosine(name, weight=7.0),
                pairing="within",
            )
        )
    return cases


CASES = _cases() + _field_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_pairing = pytest.mark.parametrize("pairing", PAIRINGS)


def loss_and_gradients(
    case: Case, batch: Batch, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    z_a, z_b, queue = batch.tensors(dtype)
    loss = case.objective(batch, **options)(z_a, z_b, negatives=queue)
    g_a, g_b = torch.autograd.grad(loss, (z_a, z_b))
    return loss.detach(), g_a, g_b
