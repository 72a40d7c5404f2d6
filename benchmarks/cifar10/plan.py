"""Which runs there are: pure data, from a scale and the learning rates in use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatclr.training.config import TrainConfig
from flatclr.training.recipes import RECIPES

Settings = Mapping[str, Any]
Rates = Mapping[int, float]  # learning rate by batch size

LOGS, EVALUATIONS = 24, 12  # of a run; each evaluation probes eight batches for the noise of the gradient
SHORT_LOGS, SHORT_EVALUATIONS = 8, 2
WARMUP_SHARE, FAST_WARMUP_SHARE = 0.05, 0.02  # of a run
SHARING = 5  # runs on the GPU at once, where their time does not count
CHECKPOINT_SECONDS = 50.0  # between checkpoints, by the estimate
SEEDS = (0, 1)


@dataclass(frozen=True)
class Scale:
    """How large everything is; `small` and `large` are the batch sizes under comparison."""

    name: str
    recipe: str
    fast_recipe: str
    base: Settings  # of every run, over the recipe's
    images: int
    pixels: int  # of an image's side
    held_out: int  # of the training images, to choose the learning rate on
    small: int
    large: int
    between: tuple[int, ...]
    tried_rates: Mapping[int, tuple[float, ...]]
    starting_rates: Rates  # until the learning rates are measured
    epochs: float
    rate_epochs: float
    screened: tuple[Settings, ...]  # tried on held-out images, over the fast recipe
    fast: tuple[Settings, ...]  # candidates, over the fast recipe
    eval_samples: int
    rate_eval_samples: int

    def steps(self, batch: int, epochs: float, images: int | None = None) -> int:
        return max(1, round(epochs * ((images or self.images) // batch)))


FULL = Scale(
    name="full",
    recipe="cifar10",
    fast_recipe="cifar10-two-views",
    base={},
    images=50_000,
    pixels=32,
    held_out=5_000,
    small=32,
    large=256,
    between=(64, 128),
    tried_rates={32: (0.015, 0.03, 0.06, 0.12), 256: (0.06, 0.12, 0.24, 0.48)},
    starting_rates={32: 0.03, 256: 0.12},
    epochs=20.0,
    rate_epochs=4.0,
    screened=(
        {"view_size": None, "epochs": 12.0},
        {"view_size": 24, "epochs": 21.0},
        {"view_size": 20, "epochs": 30.0},
        {"view_size": 16, "epochs": 48.0},
    ),
    fast=({"epochs": 180.0}, {"epochs": 80.0}),
    eval_samples=3_200,  # a pool of 100 small batches, so that it is as large for every batch size
    rate_eval_samples=10_000,
)
TINY = Scale(
    name="tiny",
    recipe="small",
    fast_recipe="small",
    base={
        "encoder_options": {"width": 4},
        "embedding": 8,
        "head_width": 8,
        "optimizer": "sgd",
        "device": "cpu",
        "eval_start": False,
        "eval_samples": 64,
    },
    images=192,
    pixels=28,
    held_out=64,
    small=16,
    large=64,
    between=(32,),
    tried_rates={16: (0.01, 0.03, 0.1), 64: (0.03, 0.1, 0.3)},
    starting_rates={16: 0.03, 64: 0.1},
    epochs=2.0,
    rate_epochs=1.0,
    screened=({"view_size": None, "epochs": 1.0}, {"view_size": 20, "epochs": 2.0}),
    fast=({"epochs": 3.0, "learning_rate": 0.01, "log_every": 6, "eval_every": 6},),
    eval_samples=64,
    rate_eval_samples=64,
)
SCALES = {scale.name: scale for scale in (FULL, TINY)}

NCE: dict[str, Settings] = {
    "InfoNCE, temperature 0.5": {"objective": "infonce", "temperature": 0.5, "ess_target": None},
    "InfoNCE, temperature 0.1": {"objective": "infonce", "temperature": 0.1, "ess_target": None},
    "FlatNCE, temperature 0.1": {"objective": "flatnce", "temperature": 0.1, "ess_target": None},
    "FlatNCE, ESS 0.25": {"objective": "flatnce", "ess_target": 0.25},
}
BETWEEN: dict[str, Settings] = {
    "InfoNCE, temperature 0.2": {"objective": "infonce", "temperature": 0.2, "ess_target": None},
}
SIMCLR, CONTROLLED = "InfoNCE, temperature 0.5", "FlatNCE, ESS 0.25"
DIVERGENCES = {
    "KL": "kl",
    "Jensen-Shannon": "js",
    "Pearson": "pearson",
    "squared Hellinger": "hellinger",
    "Tsallis": "tsallis",
    "Vincze-Le Cam": "vlc",
}
OTHERS: dict[str, Settings] = {
    **{
        name: {"objective": "fmicl", "objective_options": {"divergence": short}, "ess_target": None}
        for name, short in DIVERGENCES.items()
    },
    "alignment + uniformity": {"objective": "align_uniform", "ess_target": None},
    "RPC": {"objective": "rpc", "ess_target": None},
}
NO_LOG_RATIO = ("RPC",)  # trains scores that are no log-ratios, so that a bound of its batches says nothing
LITERATURE_LINEAR = {  # % after long training, as f-MICL states it
    SIMCLR: 89.71,
    "KL": 90.61,
    "Jensen-Shannon": 89.66,
    "Pearson": 89.35,
    "squared Hellinger": 89.52,
    "Tsallis": 89.15,
    "Vincze-Le Cam": 89.13,
    "alignment + uniformity": 90.41,
    "RPC": 90.39,
}
SWEPT: dict[str, Settings] = {  # with 0.25, which is in the grid
    f"FlatNCE, ESS {target:g}": {"objective": "flatnce", "ess_target": target} for target in (0.05, 0.15, 0.4, 0.7)
}


@dataclass(frozen=True)
class PlannedRun:
    """One training run under a name of its own; settings are what differs from its recipe."""

    name: str
    stage: str
    objective: str  # as tables call it
    recipe: str
    settings: Settings
    steps: int
    gpu_seconds: float  # estimated
    held_out: bool = False  # trains without, and is tested on, part of the training images
    protocols: tuple[str, ...] = ("knn", "linear")  # measured at the end
    untrained: bool = False  # measures random weights too
    alone: bool = False  # its time counts, so nothing runs beside it

    @property
    def batch(self) -> int:
        return self.config().batch_size

    def config(self, **places: Any) -> TrainConfig:
        """What the run's config.yaml holds."""
        return RECIPES[self.recipe]().changed(**{**self.settings, **places})

    def arguments(self, **places: Any) -> list[str]:
        """Of `flatclr` for training it."""
        given = {**self.settings, **places}
        pairs = [part for name, value in given.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        return ["train", "--recipe", self.recipe, *pairs]


@dataclass(frozen=True)
class Stage:
    """Some of the runs, and what they are for."""

    title: str
    runs: Callable[[Scale, Rates], list[PlannedRun]]
    uses_rates: bool = True
    optional: bool = field(default=False, kw_only=True)


def scaled_rate(rates: Rates, batch: int) -> float:
    """rate(B) = rate(B0) (B / B0)^p through the smallest and the largest batch measured; p = 1 is linear, 1/2 the root.

    >>> round(scaled_rate({32: 0.03, 128: 0.06}, 64), 4)
    0.0424
    """
    if batch in rates:
        return rates[batch]
    first = min(rates)
    return float(f"{rates[first] * (batch / first) ** rate_exponent(rates):.3g}")


def rate_exponent(rates: Rates) -> float:
    """
    >>> rate_exponent({32: 0.03, 128: 0.06})
    0.5
    """
    first, last = min(rates), max(rates)
    return math.log(rates[last] / rates[first]) / math.log(last / first)


def gpu_seconds(steps: int, batch: int) -> float:
    """Estimated share of an H200 for training, from runs that shared it: 1.44 ms a step at batch 32, 7.7 ms at 256."""
    return steps * max(1.44e-3, 7.7e-3 * batch / 256)


def _run(
    scale: Scale,
    stage: str,
    name: str,
    objective: str,
    settings: Settings,
    *,
    batch: int,
    steps: int,
    rate: float,
    seed: int = 0,
    logs: int = LOGS,
    evaluations: int = EVALUATIONS,
    eval_samples: int | None = None,
    **options: Any,
) -> PlannedRun:
    log_every = math.ceil(steps / logs)
    images = scale.images - (scale.held_out if options.get("held_out") else 0)
    common = {
        **scale.base,
        **settings,
        "batch_size": batch,
        "steps": steps,
        "learning_rate": rate,
        "warmup_epochs": round(WARMUP_SHARE * steps / (images // batch), 6),
        "seed": seed,
        "log_every": log_every,
        "eval_every": logs // evaluations * log_every,
        "eval_start": False,
        "eval_samples": eval_samples or scale.eval_samples,
        "checkpoint_every": math.ceil(CHECKPOINT_SECONDS / SHARING / gpu_seconds(1, batch)),
    }
    seconds = gpu_seconds(steps, batch)
    return PlannedRun(f"{name}-s{seed}", stage, objective, scale.recipe, common, steps, seconds, **options)


def _tried(scale: Scale, stage: str, prefix: str, objective: str, batch: int, rate: float) -> PlannedRun:
    """A short run with this learning rate, measured on held-out images."""
    return _run(
        scale,
        stage,
        f"{prefix}-b{batch}-{rate:g}",
        objective,
        NCE[objective],
        batch=batch,
        steps=scale.steps(batch, scale.rate_epochs, scale.images - scale.held_out),
        rate=rate,
        logs=SHORT_LOGS,
        evaluations=1,
        eval_samples=scale.rate_eval_samples,
        held_out=True,
        protocols=(),
    )


def _rate_runs(scale: Scale, _: Rates) -> list[PlannedRun]:
    return [
        _tried(scale, "lr", "lr", SIMCLR, batch, rate) for batch, tried in scale.tried_rates.items() for rate in tried
    ]


def _flat_rate_runs(scale: Scale, rates: Rates) -> list[PlannedRun]:
    """FlatNCE at the rate tuned on InfoNCE, at half and at double of it."""
    return [
        _tried(scale, "lr-flat", "lr-flat", CONTROLLED, batch, factor * scaled_rate(rates, batch))
        for batch in _both(scale)
        for factor in (0.5, 1.0, 2.0)
    ]


def _crossed(
    stage: str,
    prefix: str,
    objectives: Mapping[str, Settings],
    batches: Callable[[Scale], Sequence[int]],
    *,
    seeds: Sequence[int] = SEEDS,
    updates_of: Callable[[Scale], int] | None = None,
    **options: Any,
) -> Callable[[Scale, Rates], list[PlannedRun]]:
    """Every objective at every batch size with every seed, for the epochs of the scale at this batch or another."""

    def runs(scale: Scale, rates: Rates) -> list[PlannedRun]:
        return [
            _run(
                scale,
                stage,
                f"{prefix}-b{batch}-{slug(objective)}",
                objective,
                settings,
                batch=batch,
                steps=scale.steps(batch if updates_of is None else updates_of(scale), scale.epochs),
                rate=scaled_rate(rates, batch),
                seed=seed,
                untrained=(stage, objective, batch, seed) == ("grid", SIMCLR, scale.small, 0),
                **options,
            )
            for seed in seeds
            for batch in batches(scale)
            for objective, settings in objectives.items()
        ]

    return runs


def _over_fast(scale: Scale, stage: str, name: str, settings: Settings, *, images: int, **options: Any) -> PlannedRun:
    """The fast recipe with what is tried on it changed, and nothing else."""
    settings = {**scale.base, **settings, "seed": 0}
    config = RECIPES[scale.fast_recipe]().changed(**settings)
    steps = scale.steps(config.batch_size, config.epochs, images)
    seconds = gpu_seconds(steps, config.batch_size)
    return PlannedRun(f"{name}-s0", stage, CONTROLLED, scale.fast_recipe, settings, steps, seconds, **options)


def _screen(scale: Scale, _: Rates) -> list[PlannedRun]:
    images, batch = scale.images - scale.held_out, RECIPES[scale.fast_recipe]().batch_size

    def tried(number: int, settings: Settings) -> PlannedRun:
        epochs = settings["epochs"]
        once = {
            "warmup_epochs": round(FAST_WARMUP_SHARE * epochs, 6),
            "eval_every": scale.steps(batch, epochs, images),
        }
        name, changed = f"screen-{number}", {**settings, **once}
        return _over_fast(scale, "screen", name, changed, images=images, held_out=True, protocols=())

    return [tried(number, settings) for number, settings in enumerate(scale.screened)]


def _fast(scale: Scale, _: Rates) -> list[PlannedRun]:
    return [
        _over_fast(scale, "fast", f"fast-e{settings['epochs']:g}", settings, images=scale.images, alone=True)
        for settings in scale.fast
    ]


def _small(scale: Scale) -> tuple[int]:
    return (scale.small,)


def _large(scale: Scale) -> tuple[int]:
    return (scale.large,)


def _both(scale: Scale) -> tuple[int, int]:
    return (scale.small, scale.large)


STAGES: dict[str, Stage] = {
    "lr": Stage("Learning rate by batch size", _rate_runs, uses_rates=False),
    "grid": Stage("Batch size and objective", _crossed("grid", "grid", NCE, _both)),
    "equal-updates": Stage(
        "The small batch at the updates of the large one",
        _crossed(
            "equal-updates",
            "equal",
            NCE,
            _small,
            updates_of=lambda scale: scale.large,
            logs=SHORT_LOGS,
            evaluations=SHORT_EVALUATIONS,
        ),
    ),
    "ess": Stage("ESS targets", _crossed("ess", "ess", SWEPT, _small)),
    "fdiv": Stage("f-divergences and others", _crossed("fdiv", "fdiv", OTHERS, _large, seeds=SEEDS[:1])),
    "screen": Stage("What to change for the least time to accuracy", _screen),
    "fast": Stage("Time to accuracy", _fast),
    "tau": Stage("A temperature between those of the grid", _crossed("tau", "grid", BETWEEN, _both), optional=True),
    "lr-flat": Stage("FlatNCE around the learning rate tuned on InfoNCE", _flat_rate_runs, optional=True),
    "grid-more": Stage(
        "Batch sizes between", _crossed("grid-more", "grid", NCE, lambda scale: scale.between), optional=True
    ),
    "fdiv-more": Stage(
        "A second seed of the f-divergences",
        _crossed("fdiv-more", "fdiv", OTHERS, _large, seeds=SEEDS[1:]),
        optional=True,
    ),
}


def planned(stages: Sequence[str], scale: Scale, rates: Rates) -> list[PlannedRun]:
    """All runs of these stages, in this order."""
    return [run for stage in stages for run in STAGES[stage].runs(scale, rates)]


def family(objective: str) -> str:
    """What objectives have in common that are too many to be told apart in a picture.

    >>> family("Pearson"), family("FlatNCE, ESS 0.7"), family("FlatNCE, ESS 0.25"), family("RPC")
    ('f-MICL', 'FlatNCE, other ESS', 'FlatNCE, ESS 0.25', 'RPC')
    """
    if objective in DIVERGENCES:
        return "f-MICL"
    return "FlatNCE, other ESS" if objective in SWEPT else objective


def slug(objective: str) -> str:
    """
    >>> slug("InfoNCE, temperature 0.5")
    'infonce-temperature-0.5'
    """
    return objective.lower().replace(" + ", "-").replace(",", "").replace(" ", "-")
