"""What a run does: one frozen dataclass, checked before any work starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flatclr.checks import require_count, require_number, require_rising_counts, require_seed
from flatclr.contrast.relation import PAIRINGS
from flatclr.data.halves import HALVES
from flatclr.data.opening import LABELS
from flatclr.objectives import OBJECTIVES, Traits
from flatclr.objectives.critics import COSINE
from flatclr.optim import OPTIMIZERS, SCALING_RULES
from flatclr.training.settings import (
    Setting,
    at_most,
    between_0_and_1,
    count_or_zero,
    named_values,
    not_negative,
    one_of,
    optional,
    optional_count,
    path,
    positive,
    positive_count,
    require_known,
    require_settings,
    setting,
    settings_of,
    share,
    text,
    true_or_false,
)
from flatclr.training.view_groups import (
    FEWEST_VIEWS,
    ViewGroup,
    ViewPlan,
    groups_from,
    plan_from,
    require_groups,
    require_plan,
    views_in,
)

PRECISIONS = ("fp32", "bf16", "fp16")
POSITIVES = ("views", "class")
TOWERS = ("separate", "shared")
OWN = "own"  # an encoder, or an objective, that came from Python
SUPERVISED = "supervised"  # the objective that learns from labels
VIEW_SIZES = ("view_size", "view_sizes", "size_schedule")  # of which one says how large views are


def at_least_two(name: str, value: Any) -> None:
    require_count(name, value, at_least=FEWEST_VIEWS, advice="an anchor needs another view of its image.")


def every_some_steps(name: str, value: Any) -> None:
    kind, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind != "every" or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{name} must be every:N with a whole number N >= 1, got {value!r}; say every:1000.")


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of a run; the defaults train on the embedded images.

    Pass them by name. `describe_settings()` lists each with its type, its default and what it means. One that cannot be
    is refused here, before any work starts.

    Raises:
        ValueError: for a setting out of its range, or two that contradict each other.
        TypeError: for one of the wrong kind.

    >>> TrainConfig(batch_size=64, epochs=3).batch_size
    64
    >>> TrainConfig(batch_size=0)
    Traceback (most recent call last):
    ValueError: batch_size must be a whole number >= 1, got 0; pass a larger whole number.
    """

    data: str | None = setting(
        None,
        "data",
        "A folder, .npz, .npy, .tar shards or a name to train on; None: the embedded Fashion-MNIST subset.",
        path,
    )
    data_dir: str | None = setting(
        None, "data", "The folder of named datasets, looked at before $FLATCLR_DATA and ./data.", path
    )
    labels: str = setting(
        LABELS[0],
        "data",
        "Whether sub-folders of images are classes: folders, none; auto: where there is exactly one level of them.",
        one_of(LABELS),
    )
    image_size: int | None = setting(
        None, "data", "The side in pixels that images are brought to; None: that of the data.", optional_count
    )
    views: Mapping[str, Any] = setting(
        {}, "data", "Fields of ViewConfig to change, which say how views are drawn.", named_values
    )
    views_per_image: int = setting(
        2, "data", "How many views of each image a step compares, where view_sizes does not count them.", at_least_two
    )
    halves: str | None = setting(
        None,
        "data",
        "Two halves of every image as its two views, nothing else done to them: top-bottom or left-right; None: drawn "
        "views.",
        optional(one_of(HALVES)),
    )
    positives: str = setting(
        "views",
        "data",
        "What a positive is: views, of the same image; class, a view of another image of the class.",
        one_of(POSITIVES),
    )
    view_size: int | None = setting(
        None, "data", "The side of a view in pixels, in training; None: that of the images.", optional_count
    )
    view_sizes: Sequence[Sequence[int]] | None = setting(
        None,
        "data",
        "Views of several sizes, as [[views, pixels], ...], the first for the running statistics; None: of one size.",
        optional(require_groups),
    )
    size_schedule: Sequence[Sequence[Any]] | None = setting(
        None,
        "data",
        "Sizes that change, as [[epoch, pixels], ...] from epoch 0 on, or with view_sizes for pixels; None: they stay.",
        optional(require_plan),
    )
    workers: int | None = setting(
        None, "data", "How many workers decode image files; None: one per core, at most 16.", optional_count
    )
    max_bad_images: float = setting(
        0.1,
        "data",
        "The share of image files that may be unreadable before a run stops.",
        share,
    )
    shards_at_once: int | None = setting(
        None,
        "data",
        "How many .tar shards an epoch mixes at a time, so that a disk reads near places; None: all.",
        optional_count,
    )
    resident_gib: float = setting(
        4.0,
        "data",
        "Image files that take no more GiB than this, decoded, are held in memory; others are streamed.",
        not_negative,
    )

    encoder: str = setting(
        "auto",
        "network",
        "The encoder: cnn, mlp, realnvp, bigru, resnet18/34/50, timm:NAME or torchvision:NAME; auto: what suits.",
        text("'resnet18', or pass one of your own to flatclr.train"),
    )
    encoder_options: Mapping[str, Any] = setting(
        {}, "network", "Arguments of the encoder, for example its width.", named_values
    )
    init: str | None = setting(
        None,
        "network",
        "What the encoder starts from: a run, an encoder file, timm:NAME, torchvision:NAME, or a state dict with "
        "encoder; None: random weights.",
        path,
    )
    towers: str | None = setting(
        None,
        "network",
        "Whether the sides of paired data have encoders of their own (separate) or one (shared); None: separate.",
        optional(one_of(TOWERS)),
    )
    head_layers: int = setting(
        2,
        "network",
        "How many linear layers the projection head has, 1 to 3.",
        at_most(3, "1 is a linear head, 2 is SimCLR's."),
    )
    head_width: int | None = setting(
        None,
        "network",
        "The width of the projection head's hidden layers; None: that of the encoder's features.",
        optional_count,
    )
    embedding: int = setting(128, "network", "The dimension of an embedding.", positive_count)

    recalibrate: bool = setting(
        False,
        "network",
        "Whether features are evaluated, and the encoder saved, with batch statistics of whole images, not of views.",
        true_or_false,
    )

    objective: str = setting(
        "flatnce",
        "objective",
        f"The objective: {', '.join(OBJECTIVES)}; supervised uses labels.",
        one_of(OBJECTIVES, SUPERVISED, untold=[OWN]),
    )
    objective_options: Mapping[str, Any] = setting({}, "objective", "Arguments of the objective.", named_values)
    ess_target: float | Sequence[Sequence[float]] | None = setting(
        0.25,
        "objective",
        "The effective sample size of the negatives to hold, or [[epoch, target], ...] to follow; None: no control.",
    )
    ess_per_anchor: bool = setting(
        False,
        "objective",
        "Whether every anchor gets a temperature of its own that brings its ESS to the target.",
        true_or_false,
    )
    temperature: float | None = setting(
        None,
        "objective",
        "A fixed temperature, which takes the place of ESS control whatever ess_target says.",
        optional(positive),
    )
    pairing: str | None = setting(
        None,
        "objective",
        "Which views an anchor is compared with; None: the objective's own choice, for paired data cross.",
        optional(one_of(PAIRINGS)),
    )
    negatives_per_anchor: int | None = setting(
        None, "objective", "How many negatives are drawn for each anchor; None: all of them are used.", optional_count
    )
    prefixes: Sequence[int] | None = setting(
        None,
        "objective",
        "Prefixes of the embedding to train besides the whole (Matryoshka), say [32, 64]; None: the whole alone.",
        optional(require_rising_counts),
    )
    queue: int = setting(0, "objective", "How many past embeddings are kept as extra negatives.", count_or_zero)
    momentum: float | None = setting(
        None,
        "objective",
        "The momentum of an encoder for the keys (MoCo), with pairing one_way; None: the trained one makes them.",
        optional(between_0_and_1),
    )

    batch_size: int = setting(
        32,
        "optimisation",
        "Samples of the global batch, all processes together; an image gives several views.",
        positive_count,
    )
    micro_batch: int | None = setting(
        None,
        "optimisation",
        "Samples a process encodes at once, for the gradient of the whole batch; None: all of its share.",
        optional_count,
    )
    epochs: float = setting(10.0, "optimisation", "How many passes over the data.", positive)
    steps: int | None = setting(None, "optimisation", "How many optimizer steps, instead of epochs.", optional_count)
    optimizer: str = setting("adamw", "optimisation", f"The optimizer: {', '.join(OPTIMIZERS)}.", one_of(OPTIMIZERS))
    learning_rate: float = setting(
        1e-3, "optimisation", "The learning rate after warmup, before it is scaled with the batch.", positive
    )
    lr_scaling: str = setting(
        "none",
        "optimisation",
        f"How the learning rate grows with the batch: {', '.join(SCALING_RULES)}.",
        one_of(SCALING_RULES),
    )
    weight_decay: float = setting(
        1e-4, "optimisation", "The weight decay; biases and normalisation layers have none.", not_negative
    )
    warmup_epochs: float = setting(
        0.5, "optimisation", "Epochs over which the learning rate rises to its full size.", not_negative
    )
    clip_norm: float | None = setting(
        None,
        "optimisation",
        "The norm to which longer gradients are shortened; None: they are left as they are.",
        optional(positive),
    )
    precision: str = setting(
        "fp32", "hardware", f"What the network computes in: {', '.join(PRECISIONS)}.", one_of(PRECISIONS)
    )
    max_bad_steps: int = setting(
        20,
        "optimisation",
        "How many steps in a row may have a loss or gradient that is not finite before the run stops.",
        positive_count,
    )
    graph: bool | None = setting(
        None,
        "hardware",
        "Whether the step is captured in a CUDA graph; None: where that is known to work.",
        optional(true_or_false),
    )
    compile: bool = setting(
        False,
        "hardware",
        "Whether torch.compile compiles the network: faster steps after up to a minute of it.",
        true_or_false,
    )

    seed: int = setting(0, "optimisation", "The seed of everything random.", require_seed)
    device: str = setting(
        "auto",
        "hardware",
        "The device: cpu, cuda or cuda:1; auto: cuda where there is one.",
        text("'cpu', 'cuda' or 'cuda:1'"),
    )
    out: str | None = setting(
        None, "output", "The run directory; None: runs/<data>-<objective>-<seed>, numbered if taken.", path
    )
    log_every: int = setting(50, "output", "Steps between lines of metrics.", positive_count)
    eval_every: int = setting(500, "output", "Steps between evaluations.", positive_count)
    eval_start: bool = setting(True, "output", "Whether the untrained encoder is evaluated too.", true_or_false)
    eval_samples: int | None = setting(
        None,
        "output",
        "How many samples of each split, and of the pool, an evaluation looks at, at most; None: 10000, on a CPU fewer "
        "for a large encoder.",
        optional_count,
    )
    checkpoint_every: int | None = setting(None, "output", "Steps between checkpoints; None: an epoch.", optional_count)
    checkpoint_minutes: float = setting(
        5.0, "output", "Minutes after which a checkpoint is written in any case.", positive
    )
    keep_checkpoints: str | None = setting(
        None,
        "output",
        "Checkpoints that stay besides the last two: every:N for those of every N steps; None: none.",
        optional(every_some_steps),
    )
    probe_every: int | None = setting(
        None,
        "output",
        "Steps between evaluations with a linear probe of the labels, besides the others; None: no probe.",
        optional_count,
    )
    wandb: str | None = setting(
        None,
        "output",
        "The Weights & Biases project to log to, besides TensorBoard.",
        optional(text("the name of a project")),
    )

    def __post_init__(self) -> None:
        require_settings(self)
        self._require_ess_targets()
        self._require_one_way_of_sizes()
        self._require_keys_without_gradient()
        self._require_prefixes_within()
        for name in ("data", "data_dir", "out", "init"):
            if isinstance(getattr(self, name), Path):
                object.__setattr__(self, name, str(getattr(self, name)))  # what config.yaml can hold

    def _require_ess_targets(self) -> None:
        for epoch, target in self.ess_targets:
            require_number("epoch of ess_target", epoch, above=-1e-12, advice="epochs count from 0.")
            require_number("ess_target", target, above=0, below=1)
        if self.ess_per_anchor and not self.ess_targets and self.objective != OWN:  # which has a control of its own
            raise ValueError("ess_per_anchor must go with an ess_target, got None; set one, say 0.25.")

    def _require_one_way_of_sizes(self) -> None:
        given = [name for name in VIEW_SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"only one of {' and '.join(given)} must be given, got both; leave one out.")
        if self.view_sizes is not None:
            counted = views_in(groups_from("view_sizes", self.view_sizes))
            if self.views_per_image not in (FEWEST_VIEWS, counted):
                raise ValueError(
                    f"views_per_image must be the {counted} of view_sizes, got {self.views_per_image}; leave it out."
                )
            object.__setattr__(self, "views_per_image", counted)
        counts = {views_in(groups) for _, groups in self.view_plan}
        if self.size_schedule is not None and self.views_per_image not in (FEWEST_VIEWS, *counts):
            raise ValueError(
                f"views_per_image must be a number of views that size_schedule has, {_either(counts)}, got "
                f"{self.views_per_image}; leave it out, or give a size for all views."
            )

    def _require_keys_without_gradient(self) -> None:
        if self.momentum is not None and self.pairing != "one_way":
            raise ValueError(
                f"pairing must be 'one_way' with a momentum encoder, got {self.pairing!r}; keys get no gradient."
            )
        most = max(views_in(groups) for _, groups in self.view_plan)
        if self.momentum is not None and most > 2:
            raise ValueError(
                f"views_per_image must be 2 with a momentum encoder, got {most}; one view is the query, the other its "
                "key."
            )

    @property
    def view_plan(self) -> ViewPlan:
        """(epoch, groups of views of one size) in order of time: each holds from its epoch on."""
        if self.size_schedule is not None:
            return plan_from("size_schedule", self.size_schedule, self.views_per_image)
        if self.view_sizes is not None:
            return ((0.0, groups_from("view_sizes", self.view_sizes)),)
        return ((0.0, (ViewGroup(self.views_per_image, self.view_size),)),)

    def _require_prefixes_within(self) -> None:
        if self.prefixes is not None and self.prefixes[-1] > self.embedding:
            raise ValueError(
                f"prefixes must be of the {self.embedding} features of an embedding at most, got {self.prefixes[-1]}; "
                "shorten them or widen embedding."
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

    @property
    def keep_every(self) -> int | None:
        """The steps whose checkpoints stay are multiples of this; None: none of them."""
        return None if self.keep_checkpoints is None else int(self.keep_checkpoints.partition(":")[2])

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, as in config.yaml."""
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`.

        Args:
            settings: by name, as in config.yaml.

        Returns:
            The config.

        Raises:
            ValueError: for a name that is no setting, with the nearest ones that are.
        """
        require_known(cls, settings)
        options = dict(settings.get("objective_options") or {})
        if "temperature" in options:  # where earlier runs could have it; ESS control overruled it
            inner = options.pop("temperature")
            settings = {**settings, "objective_options": options}
            if settings.get("ess_target") is None and settings.get("temperature") is None:
                settings["temperature"] = inner
        return cls(**settings)

    def changed(self, **settings: Any) -> TrainConfig:
        """With these settings instead.

        An ESS target takes the place of a temperature, and of view_size, view_sizes and size_schedule one takes that
        of another.

        Args:
            settings: by name.

        Returns:
            Another config.

        Raises:
            ValueError: for a name that is no setting, with the nearest ones that are, or for an ESS target together
                with a temperature or a critic.

        >>> TrainConfig(ess_target=None, temperature=0.1).changed(ess_target=0.3).temperature is None
        True
        """
        require_known(type(self), settings)
        if settings.get("ess_target") is not None and settings.get("temperature") is not None:
            raise ValueError(
                f"only one of ess_target and temperature must be changed, got {settings['ess_target']!r} and "
                f"{settings['temperature']!r}; leave one out."
            )
        if settings.get("ess_target") is not None:
            settings.setdefault("temperature", None)
        if any(settings.get(name) is not None for name in VIEW_SIZES):
            settings = dict.fromkeys(VIEW_SIZES) | settings
        if settings.get("view_sizes") is not None:
            settings.setdefault("views_per_image", FEWEST_VIEWS)
        elif "views_per_image" in settings:
            settings.setdefault("view_sizes", None)
        other = replace(self, **settings)
        if settings.get("ess_target") is not None:
            require_use_of_ess_target(other)
        return other

    @property
    def has_critic(self) -> bool:
        """Whether a network scores the pairs, not their cosine."""
        return bool(self.objective_options.get("critic", COSINE) != COSINE)

    def require_no_critic(self) -> None:
        """An ESS target that is asked for may not be passed over because a critic scores the pairs."""
        if self.has_critic:
            raise ValueError(
                f"ess_target must be left out with a critic, got {self.ess_target!r}; its scores have a scale of their "
                "own, which training sets."
            )


def takes_ess_target(config: TrainConfig) -> bool:
    """Whether ESS control can set the temperature of its objective; one from Python has a control of its own.

    >>> [takes_ess_target(TrainConfig(objective=name)) for name in ("flatnce", "siglip", "vicreg")]
    [True, False, False]
    """
    if config.objective == OWN:
        return True
    return _own_temperature(config) is not None and _traits(config).accepts_control and not config.has_critic


def require_use_of_ess_target(config: TrainConfig) -> None:
    """An ESS target that is asked for may not be passed over because the objective has no use for it."""
    if takes_ess_target(config):
        return
    if config.has_critic:
        config.require_no_critic()
    reason = (
        "it has no temperature that control could set"
        if _own_temperature(config) is None
        else "ESS control cannot set its temperature"
    )
    raise ValueError(
        f"ess_target must be None for {config.objective}, got {config.ess_target!r}; {reason}: leave it out."
    )


def _own_temperature(config: TrainConfig) -> float | None:
    return None if config.objective == SUPERVISED else _traits(config).temperature


def _traits(config: TrainConfig) -> Traits:
    kind = OBJECTIVES[config.objective]
    return kind.traits_with(**{**kind.traits.training_options, **config.objective_options})


def _either(numbers: Collection[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def describe_settings() -> list[Setting]:
    """The settings of `TrainConfig` as a table: name, type, default, group and what each means.

    Returns:
        A row per setting, group by group.

    >>> for row in describe_settings():
    ...     if row.group == "hardware":
    ...         print(row.name, "|", row.type, "|", row.default)
    precision | str | fp32
    graph | bool | None | None
    compile | bool | False
    device | str | auto
    """
    return settings_of(TrainConfig)
