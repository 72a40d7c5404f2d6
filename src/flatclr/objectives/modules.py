"""The objectives as modules: `loss = objective(z_a, z_b)`, `loss, stats = objective.with_stats(z_a, z_b)`."""

from __future__ import annotations

import inspect
import math
from typing import Unpack

import torch
from torch import Tensor, nn

from flatclr.checks import require_number, require_one_of
from flatclr.contrast import ContrastOptions, ContrastStats, Options, PairSet, stats_of
from flatclr.objectives.align_uniform import pair_alignment, uniformity
from flatclr.objectives.ess_control import EssControl
from flatclr.objectives.f_divergence import Divergence, f_micl_cosine, f_micl_gaussian, find_divergence
from flatclr.objectives.nce import VALUES, flat_nce, holder_flat_nce, info_nce
from flatclr.objectives.rpc import rpc
from flatclr.objectives.temperature import ControlledScale, scale_source
from flatclr.objectives.variational import dv, flo, nwj


class Objective(nn.Module):
    """A loss on two views. A new one defines `loss`; pairings, queues, ranks, stats and ESS control come with it."""

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__()
        self._require_known(options)
        self._options = Options(shared_loss=True, **options)  # every rank averages over the same global anchors
        self.options = options
        self.scale = scale_source(temperature, learn=learn_temperature)

    @classmethod
    def _require_known(cls, options: ContrastOptions) -> None:
        own = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "options")]
        for name in options:
            require_one_of(f"option of {cls.__name__}", name, [*own, *ContrastOptions.__annotations__])

    @property
    def inverse_temperature(self) -> float | Tensor:
        return self.scale.forward()

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats | None]:
        """The scalar loss of the global batch, and the stats if they were needed for it."""
        raise NotImplementedError

    def forward(self, z_a: Tensor, z_b: Tensor, *, negatives: Tensor | None = None) -> Tensor:
        return self._evaluate(z_a, z_b, negatives, need_stats=False)[0]

    def with_stats(self, z_a: Tensor, z_b: Tensor, *, negatives: Tensor | None = None) -> tuple[Tensor, ContrastStats]:
        """The loss and the detached stats of the batch at the temperature in use."""
        loss, stats = self._evaluate(z_a, z_b, negatives, need_stats=True)
        assert stats is not None
        return loss, stats.detach()

    def _evaluate(
        self, z_a: Tensor, z_b: Tensor, negatives: Tensor | None, *, need_stats: bool
    ) -> tuple[Tensor, ContrastStats | None]:
        pairs = PairSet.made((z_a, z_b), self._options, negatives=negatives)
        scale = self.scale
        control = scale.control if isinstance(scale, ControlledScale) else None
        if control is not None:
            control.require_reachable(pairs.negatives)
        inverse_temperature = scale.forward()
        loss, stats = self.loss(pairs, inverse_temperature)
        if stats is None and (need_stats or (control is not None and self.training)):
            with torch.no_grad():
                stats = stats_of(pairs, inverse_temperature)
        if control is not None and self.training:
            assert stats is not None
            control.observe(stats.ess)
        return loss, stats

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class InfoNCE(Objective):
    """InfoNCE / NT-Xent (van den Oord et al. 2018; Chen et al. 2020), in nats.

    With `negatives_per_anchor=k` it is the k-negative loss of the theory of negatives.

    >>> z = torch.eye(4)
    >>> InfoNCE(temperature=1.0)(z, z)  # softplus(log 6 - 1)
    tensor(1.1654)
    """

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return info_nce(stats).mean(), stats


class FlatNCE(Objective):
    """FlatNCE (Chen et al. 2021): small batches learn like large ones.

    The gradient is FlatNCE's; the value reads as the InfoNCE loss in nats, or is the paper's constant 1 with
    value="paper". `keep_positive=True` keeps the positive in the denominator, which gives InfoNCE's gradient.

    >>> z = torch.eye(4, requires_grad=True)
    >>> FlatNCE(temperature=1.0)(z, z)
    tensor(1.1654, grad_fn=<MeanBackward0>)
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        value: str = "nats",
        keep_positive: bool = False,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, learn_temperature=learn_temperature and keep_positive, **options)
        require_one_of("value", value, VALUES)
        if not keep_positive:
            _require_bounded_scores("FlatNCE", options, learn_temperature)
        self.value, self.keep_positive = value, keep_positive

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return flat_nce(stats, value=self.value, keep_positive=self.keep_positive).mean(), stats


class HolderFlatNCE(Objective):
    """FlatNCE with a Hölder mean of order gamma over the negatives: 1 is FlatNCE, 0 the plain mean, +-inf the extremes.

    The gradient is that of log m_gamma; value as in `FlatNCE`. Stats and ESS control are those of gamma = 1.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        gamma: float = 1.0,
        value: str = "nats",
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, **options)
        require_one_of("value", value, VALUES)
        _require_bounded_scores("HolderFlatNCE", options, learn_temperature)
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or math.isnan(gamma):
            raise ValueError(f"gamma must be a number, 0, inf or -inf, got {gamma!r}; 1 is FlatNCE.")
        self.gamma, self.value = float(gamma), value

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        losses, stats = holder_flat_nce(pairs, inverse_temperature, self.gamma, value=self.value)
        return losses.mean(), stats


class AlignUniform(Objective):
    """align_weight * E ||x - y||^alpha + uniform_weight * log E exp(-t ||x - x'||^2) (Wang & Isola 2020).

    >>> z = torch.eye(2)
    >>> AlignUniform()(z, z)  # uniformity of orthogonal points is -2 t
    tensor(-4.)
    """

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        t: float = 2.0,
        align_weight: float = 1.0,
        uniform_weight: float = 1.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        require_number("alpha", alpha, above=0)
        require_number("t", t, above=0)
        require_number("align_weight", align_weight)
        require_number("uniform_weight", uniform_weight)
        self._require_known(options)
        _require_sphere("AlignUniform", options)
        options.setdefault("pairing", "within")
        super().__init__(1 / (2 * t), **options)
        self.alpha, self.t, self.align_weight, self.uniform_weight = alpha, t, align_weight, uniform_weight

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        aligned = pair_alignment(pairs, self.alpha).mean()
        uniform = uniformity(stats, self.t, len(pairs.layout.groups))
        return self.align_weight * aligned + self.uniform_weight * uniform, stats


class FMICL(Objective):
    """f-MICL (Lu et al. 2023) for six f-divergences, Gaussian or cosine similarity; negatives within each view.

    Gaussian: u = mu exp((cos - 1) / temperature), so temperature is sigma^2; 0.5 is the published 1 / (2 sigma^2) = 1.
    Cosine: the critic is a monotone map of the cosine into the conjugate's domain (`Divergence.critic`), without
    temperature.
    """

    def __init__(
        self,
        divergence: str = "kl",
        *,
        kernel: str = "gaussian",
        temperature: float | EssControl | None = None,
        mu: float = 1.0,
        weight: float = 40.0,
        tsallis_alpha: float = 3.0,
        **options: Unpack[ContrastOptions],
    ) -> None:
        require_one_of("kernel", kernel, ("gaussian", "cosine"))
        require_number("mu", mu, above=0)
        require_number("weight", weight, above=0)
        self._require_known(options)
        _require_sphere("FMICL", options)
        if kernel == "cosine" and temperature is not None:
            raise ValueError(
                f"temperature must be None with kernel='cosine', got {temperature!r}; the cosine itself is the critic."
            )
        default = 0.5 if kernel == "gaussian" else 1.0
        options.setdefault("pairing", "within")
        super().__init__(default if temperature is None else temperature, **options)
        find_divergence(divergence, tsallis_alpha)  # refuses what it does not know
        self.divergence_name, self.tsallis_alpha = divergence, tsallis_alpha
        self.kernel, self.mu, self.weight = kernel, mu, weight

    @property
    def divergence(self) -> Divergence:
        return find_divergence(self.divergence_name, self.tsallis_alpha)

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        if self.kernel == "cosine":
            losses = f_micl_cosine(pairs, self.divergence, weight=self.weight)
        else:
            losses = f_micl_gaussian(pairs, inverse_temperature, self.divergence, mu=self.mu, weight=self.weight)
        return losses.mean(), None


class RPC(Objective):
    """Relative predictive coding (Tsai et al. 2021), minus J; defaults are those of its CIFAR script."""

    def __init__(
        self,
        temperature: float | EssControl = 128.0,
        *,
        a: float = 0.0,
        b: float = 0.001,
        g: float = 1.0,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        for name, value in (("a", a), ("b", b), ("g", g)):
            require_number(name, value)
            if value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}; a negative weight makes J unbounded.")
        options.setdefault("normalize", False)
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        self.a, self.b, self.g = a, b, g

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, None]:
        return rpc(pairs, inverse_temperature, a=self.a, b=self.b, g=self.g).mean(), None


class DV(Objective):
    """Minus the Donsker-Varadhan bound in nats."""

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return dv(stats).mean(), stats


class NWJ(Objective):
    """Minus the Nguyen-Wainwright-Jordan bound in nats."""

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return nwj(stats).mean(), stats


class AffineU(nn.Module):
    """FLO's default u: minus an affine function of the positive score, two learnable scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, positive: Tensor) -> Tensor:
        return -(self.scale * positive + self.offset)


class FLO(Objective):
    """Minus the Fenchel-Legendre bound in nats (Guo et al. 2022).

    u models minus the log density ratio of a positive pair: by default two learnable scalars on its score; or a module
    called as u(z_a, z_b) on the global batch (normalised if the objective normalises) that returns one value per pair
    [N]. Its parameters are parameters of this module.
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        u: nn.Module | None = None,
        learn_temperature: bool = False,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__(temperature, learn_temperature=learn_temperature, **options)
        if u is not None and not isinstance(u, nn.Module):
            raise TypeError(
                f"u must be an nn.Module called as u(z_a, z_b), got {type(u).__name__}; wrap the function in one."
            )
        self.u = AffineU() if u is None else u

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
        stats = stats_of(pairs, inverse_temperature)
        return flo(stats, self._u(pairs, stats)).mean(), stats

    def _u(self, pairs: PairSet, stats: ContrastStats) -> Tensor:
        if isinstance(self.u, AffineU):
            affine: Tensor = self.u(stats.positive)
            return affine
        per_pair: Tensor = self.u(*pairs.everyone_VNd)
        if per_pair.shape != (pairs.layout.samples,):
            raise ValueError(
                f"u(z_a, z_b) must return one value per pair, shape {[pairs.layout.samples]}, "
                f"got {list(per_pair.shape)}; squeeze it."
            )
        return per_pair.repeat(len(pairs.layout.groups))


def _require_bounded_scores(name: str, options: ContrastOptions, learn_temperature: bool) -> None:
    if not options.get("normalize", True):
        raise ValueError(
            f"{name} must have bounded scores, got normalize=False; its gap has no lower bound "
            "when scores can grow and training diverges: keep normalize=True, or use InfoNCE."
        )
    if learn_temperature:
        raise ValueError(
            f"{name} must not learn its temperature, got learn_temperature=True; its gap has no lower bound "
            "in the scale of the scores: fix it, pass an EssControl, or use InfoNCE."
        )


def _require_sphere(name: str, options: ContrastOptions) -> None:
    if not options.get("normalize", True):
        raise ValueError(f"{name} must work on the unit sphere, got normalize=False; leave it out.")
