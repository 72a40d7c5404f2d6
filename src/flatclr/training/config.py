"""What a run does: one frozen dataclass, checked before any work starts; recipes are functions that return one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flatclr.checks import require_count, require_number, require_one_of
from flatclr.contrast.relation import PAIRINGS
from flatclr.objectives import OBJECTIVES
from flatclr.optim import OPTIMIZERS, SCALING_RULES

PRECISIONS = ("fp32", "bf16", "fp16")


OWN = "own"  # an encoder, or an objective, that came from Python


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of a run. `batch_size` counts images of the global batch; each gives two views."""

    data: str | None = None  # None: the embedded Fashion-MNIST subset
    data_dir: str | None = None
    image_size: int | None = None
    views: Mapping[str, Any] = field(default_factory=dict)  # fields of ViewConfig to change
    view_size: int | None = None  # pixels of a view's side in training; None: those of the images

    workers: int | None = None  # that decode image files; None: one per core, at most 16
    resident_gib: float = 4.0  # image files that need no more than this, decoded, are held in memory; 0: streamed

    encoder: str = "auto"  # cnn up to 32 pixels and one channel, else resnet18; mlp for rows of numbers
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    head_layers: int = 2
    head_width: int | None = None
    embedding: int = 128

    objective: str = "flatnce"
    objective_options: Mapping[str, Any] = field(default_factory=dict)
    ess_target: float | Sequence[Sequence[float]] | None = 0.25  # or [[epoch, target], ...]; None: no control
    temperature: float | None = None
    pairing: str | None = None  # None: the objective's own, for paired data "cross"
    negatives_per_anchor: int | None = None
    queue: int = 0
    momentum: float | None = None  # of a momentum encoder for the keys; needs pairing one_way

    batch_size: int = 32
    micro_batch: int | None = None  # samples of a process encoded at once; None: all of its batch
    epochs: float = 10.0
    steps: int | None = None  # instead of epochs
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    lr_scaling: str = "none"
    weight_decay: float = 1e-4
    warmup_epochs: float = 0.5
    clip_norm: float | None = None
    precision: str = "fp32"
    max_bad_steps: int = 20  # non-finite steps in a row before the run stops
    graph: bool | None = None  # capture the step in a CUDA graph; None: where it is known to work
    compile: bool = False  # the network with torch.compile: faster steps after up to a minute of compiling

    seed: int = 0
    device: str = "auto"
    out: str | None = None  # None: runs/<data>-<objective>-<seed>, numbered if taken
    log_every: int = 50
    eval_every: int = 500
    eval_start: bool = True  # evaluate the untrained encoder too
    eval_samples: int = 10_000  # of each split, and of the pool, at most
    checkpoint_every: int | None = None  # steps; None: every epoch
    checkpoint_minutes: float = 5.0
    wandb: str | None = None  # project to log to with Weights & Biases, besides TensorBoard

    def __post_init__(self) -> None:
        if self.objective != OWN:
            require_one_of("objective", self.objective, OBJECTIVES)
        require_one_of("optimizer", self.optimizer, OPTIMIZERS)
        require_one_of("lr_scaling", self.lr_scaling, SCALING_RULES)
        require_one_of("precision", self.precision, PRECISIONS)
        if self.pairing is not None:
            require_one_of("pairing", self.pairing, PAIRINGS)
        for name in (
            "batch_size",
            "log_every",
            "eval_every",
            "head_layers",
            "embedding",
            "max_bad_steps",
            "eval_samples",
        ):
            require_count(name, getattr(self, name), advice="pass a larger whole number.")
        optional = ("steps", "negatives_per_anchor", "checkpoint_every", "image_size", "head_width", "micro_batch")
        for name in (*optional, "view_size", "workers"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), advice="pass a larger whole number, or leave it out.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be a whole number, got {self.seed!r}; pass one, say 0.")
        for name in ("data", "data_dir", "out"):
            value = getattr(self, name)
            if isinstance(value, Path):
                object.__setattr__(self, name, str(value))  # what config.yaml can hold
            elif value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a path, got {value!r}; put it in quotes.")
        for name in ("epochs", "learning_rate", "checkpoint_minutes"):
            require_number(name, getattr(self, name), above=0)
        for name in ("views", "encoder_options", "objective_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} must be named values, got {getattr(self, name)!r}; for example {{width: 64}}.")
        for name in ("eval_start", "compile", *(() if self.graph is None else ("graph",))):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, got {getattr(self, name)!r}; pass one of these.")
        for name in ("weight_decay", "warmup_epochs", "queue", "resident_gib"):
            require_number(name, getattr(self, name), above=-1e-12, advice="pass 0 or more.")
        if self.temperature is not None:
            require_number("temperature", self.temperature, above=0)
        for epoch, target in self.ess_targets:
            require_number("epoch of ess_target", epoch, above=-1e-12, advice="epochs count from 0.")
            require_number("ess_target", target, above=0, below=1)
        if self.clip_norm is not None:
            require_number("clip_norm", self.clip_norm, above=0)
        if self.momentum is not None:
            require_number("momentum", self.momentum, above=0, below=1)
            if self.pairing != "one_way":
                raise ValueError(
                    f"pairing must be 'one_way' with a momentum encoder, got {self.pairing!r}; keys get no gradient."
                )

    @property
    def ess_targets(self) -> list[tuple[float, float]]:
        """(epoch, target) in order of time; one alone holds for the whole run, none is no control."""
        given = self.ess_target
        if given is None:
            return []
        if not isinstance(given, Sequence):
            return [(0.0, given)]
        if not given or any(not isinstance(point, Sequence) or len(point) != 2 for point in given):
            raise ValueError(
                f"ess_target must be a number or [[epoch, target], ...], got {given!r}; say [[0, 0.5], [20, 0.2]]."
            )
        return sorted((epoch, target) for epoch, target in given)

    def to_dict(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; an unknown field is refused with the nearest known one."""
        for name in settings:
            require_one_of("setting", name, [f.name for f in fields(cls)])
        options = dict(settings.get("objective_options") or {})
        if "temperature" in options:  # where earlier runs could have it; ESS control overruled it
            inner = options.pop("temperature")
            settings = {**settings, "objective_options": options}
            if settings.get("ess_target") is None and settings.get("temperature") is None:
                settings["temperature"] = inner
        return cls(**settings)

    def changed(self, **settings: Any) -> TrainConfig:
        """With these settings instead; an ESS target takes the place of a temperature."""
        for name in settings:
            require_one_of("setting", name, [f.name for f in fields(self)])
        if settings.get("ess_target") is not None:
            settings.setdefault("temperature", None)
        return replace(self, **settings)


def small() -> TrainConfig:
    """A few minutes on two CPU cores with the embedded images."""
    return TrainConfig(epochs=5.0)


def cifar10() -> TrainConfig:
    """SimCLR's setting for CIFAR-10 with FlatNCE under ESS control at batch 32, for one GPU."""
    return TrainConfig(
        data="cifar10",
        encoder="resnet18",
        batch_size=32,
        epochs=100.0,
        optimizer="sgd",
        learning_rate=0.06,
        weight_decay=5e-4,
        warmup_epochs=1.0,
        precision="bf16",
        eval_every=5000,
    )


def cifar10_infonce() -> TrainConfig:
    """SimCLR itself in that setting: InfoNCE at temperature 0.5."""
    return replace(cifar10(), objective="infonce", ess_target=None, temperature=0.5)


def cifar10_fast() -> TrainConfig:
    """As cifar10 at batch 256 with views of 20 pixels: for the least time to a given accuracy."""
    return replace(
        cifar10(),
        view_size=20,
        batch_size=256,
        epochs=180.0,
        learning_rate=0.24,
        warmup_epochs=2.0,
        log_every=195,
        eval_every=3900,
        eval_start=False,
        eval_samples=50_000,
        checkpoint_every=3900,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "small": small,
    "cifar10": cifar10,
    "cifar10-infonce": cifar10_infonce,
    "cifar10-fast": cifar10_fast,
}
