"""From a config to the parts of a run. Nothing is written, and everything that can be refused is refused here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from flatclr.capture import is_out_of_memory
from flatclr.checks import checked_device
from flatclr.data.halves import halved
from flatclr.data.loading import BatchPlan, Loader
from flatclr.data.opening import open_dataset
from flatclr.data.positives import ClassPositives
from flatclr.data.progress import Progress
from flatclr.data.sources import AnySource, Dataset, ItemImages, PairedArrays, ReadyViews
from flatclr.data.unpacking import memory_bytes
from flatclr.distributed import Ranks, ranks_sharing_a_batch
from flatclr.evaluation.features import frozen
from flatclr.models.cost import multiply_adds
from flatclr.models.encoders import KEEPS_IMAGES
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.network import Normalisation, unwrapped
from flatclr.models.statistics import mixes_samples
from flatclr.objectives import Objective
from flatclr.optim import build_optimizer
from flatclr.training.build_data import build_views, trainable
from flatclr.training.build_network import build_network
from flatclr.training.build_objective import build_objective
from flatclr.training.build_start import Start, image_size_of_start, open_start
from flatclr.training.config import VIEW_SIZES, TrainConfig
from flatclr.training.inputs import ClassPairViews, GivenViews, ImageViews, Inputs, PairedInputs
from flatclr.training.launch import local_rank
from flatclr.training.queue import EmbeddingQueue
from flatclr.training.schedule import Schedule
from flatclr.training.step import AUTOCAST_TYPES, TrainStep
from flatclr.training.supervised import class_labels
from flatclr.training.validation import GivenValidation, ImageValidation, PairValidation, Validation
from flatclr.training.view_groups import FEWEST_VIEWS, ViewPlan, sized, views_in

FEWEST_EVAL_SAMPLES, MOST_EVAL_SAMPLES = 500, 10_000
EVALUATION_COST = 3e11  # multiply-adds of an evaluation's images of one kind, of four: a minute at 20 G a second


@dataclass(frozen=True)
class TrainingData:
    """The data of a run.

    Args:
        dataset: as it is trained on and evaluated: image files decoded where they fit into memory.
        original: the training samples as they were opened.
        skipped: unreadable files that are left out, each with the reason.
        transparent: how many images are known to have an alpha channel.
    """

    dataset: Dataset
    original: AnySource
    skipped: tuple[tuple[str, str], ...] = ()
    transparent: int = 0

    @property
    def source(self) -> AnySource:
        return self.dataset.train

    def count_bad_images(self) -> tuple[int, int]:
        """How many unreadable images of the training and of the test part are known; streamed ones become more."""
        train, test = map(len, self._skipped_lists())
        return train, test

    def bad_images(self, after: tuple[int, int], until: tuple[int, int]) -> list[tuple[str, str]]:
        """Those that were found between two such counts, each with the reason."""
        parts = zip(self._skipped_lists(), after, until, strict=True)
        return [skip for skipped, first, end in parts for skip in skipped[first:end]]

    def _skipped_lists(self) -> list[Sequence[tuple[str, str]]]:
        return [getattr(part, "skipped", ()) for part in (self.dataset.train, self.dataset.test)]

    @cached_property
    def fingerprint(self) -> str:
        """So that a resumed run sees the same samples."""
        return self.original.fingerprint()


@dataclass(frozen=True)
class Parts:
    """What a run is made of, ready for its first step.

    Args:
        config: the settings all of it was built from.
        ranks: this process among those that share the batch.
        device: where the steps are taken.
        data, loader: the samples, and this process's part of every batch.
        train_step: network, objective and optimizer, and how one step changes them.
        validation: what an evaluation measures.
        schedule: the length of the run and its learning rates.
        notes: what a person should know, a sentence each.
    """

    config: TrainConfig
    ranks: Ranks
    device: torch.device
    data: TrainingData
    loader: Loader
    train_step: TrainStep
    validation: Validation
    schedule: Schedule
    notes: tuple[str, ...] = ()

    @property
    def embedding(self) -> int:
        """The dimension of an embedding; that of the logits where classes are learned."""
        return self.train_step.bare_network.last_layer.out_features

    @property
    def normalisation(self) -> Normalisation | None:
        """What the encoder expects of images."""
        inputs = self.train_step.inputs
        if not isinstance(inputs, ImageViews) or inputs.views.mean is None:
            return None
        return Normalisation(inputs.views.mean, inputs.views.std or ())


def build(
    config: TrainConfig,
    *,
    data: Dataset | None = None,
    encoder: nn.Module | None = None,
    objective: Objective | None = None,
    progress: Progress | None = None,
) -> Parts:
    """The parts a config describes, with the first weights drawn from its seed.

    Args:
        config: what to build.
        data, encoder, objective: of the user's own, instead of those the config names.
        progress: called with (what, done, total) while data is downloaded and decoded.

    Raises:
        ValueError: for settings that do not fit the data, the device, the processes or each other.
    """
    ranks, device = ranks_sharing_a_batch(gather=True), find_device(config.device)
    opened = _open_data(config, data, progress)
    loader = _build_loader(config, opened.source, ranks, device)
    start = None if encoder is not None else open_start(config, opened.source)
    view_plan = _view_plan(config, opened.source)
    inputs = _build_inputs(config, opened.source, view_plan, ranks, start, own_encoder=encoder is not None)
    schedule = Schedule.of(config, loader.plan.steps_per_epoch, view_plan)
    torch.manual_seed(config.seed)
    with _refusing_what_is_too_large(config):
        network, keys = _build_networks(
            config, opened.source, encoder if start is None else start.encoder, ranks, device
        )
    validation = _build_validation(config, opened.dataset, inputs, network, device)
    own_or_named = _build_objective(config, opened.source, objective, ranks).to(device)
    with _refusing_what_is_too_large(config):
        train_step = _build_step(config, inputs, network, keys, own_or_named, schedule, ranks, device)
    if own_or_named.keeps_samples:
        train_step.samples_of = loader.own_indices
    notes = () if start is None or not start.note else (start.note,)
    parts = Parts(config, ranks, device, opened, loader, train_step, validation, schedule, notes)
    _require_reachable_targets(parts)
    _require_taken_embeddings(parts)
    return parts


@contextmanager
def _refusing_what_is_too_large(config: TrainConfig) -> Iterator[None]:
    """Before any work starts: a queue or a layer that memory cannot hold."""
    need = 4 * config.embedding * max(config.queue, config.head_width or 1)
    try:
        if need > memory_bytes():
            raise MemoryError
        yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        if not (is_out_of_memory(error) or isinstance(error, OverflowError) or "overflow" in str(error).lower()):
            raise
        raise ValueError(
            f"network and queue must fit into memory, got embedding {config.embedding}, queue {config.queue}, "
            f"head_width {config.head_width} and encoder_options {dict(config.encoder_options)}; make them smaller."
        ) from None


def _open_data(config: TrainConfig, data: Dataset | None, progress: Progress | None) -> TrainingData:
    opened = data or open_dataset(
        config.data,
        data_dir=config.data_dir,
        image_size=config.image_size or image_size_of_start(config),
        labels=config.labels,
        progress=progress,
    )
    train = trainable(opened.train, config, progress)
    test = None if opened.test is None else trainable(opened.test, config, progress)
    ready = replace(opened, train=train, test=test)
    if config.halves is not None:
        pairs = halved(ready, config.halves)
        sides = [part and trainable(part, config) for part in (pairs.train, pairs.test)]
        assert sides[0] is not None
        ready = replace(pairs, train=sides[0], test=sides[1])
    skipped = tuple(skip for part in (opened.train, opened.test) for skip in getattr(part, "skipped", ()))
    transparent = sum(getattr(part, "transparent", 0) for part in (opened.train, opened.test))
    return TrainingData(ready, opened.train, skipped, transparent)


def _build_loader(config: TrainConfig, source: AnySource, ranks: Ranks, device: torch.device) -> Loader:
    if config.batch_size % ranks.size:
        raise ValueError(
            f"batch_size must be a multiple of the {ranks.size} processes, got {config.batch_size}; "
            "it counts the global batch."
        )
    shards = getattr(source, "shard_sizes", ()) if config.shards_at_once is not None else ()
    plan = BatchPlan(len(source), config.batch_size, config.seed, shards, config.shards_at_once)
    own = ranks.own_rows(config.batch_size // ranks.size)
    return Loader(source, plan, own=own, device=device, positives=_class_positives(config, source))


def _class_positives(config: TrainConfig, source: AnySource) -> ClassPositives | None:
    if config.positives != "class":
        return None
    if config.halves is not None:
        raise ValueError("positives must be 'views' for halves of images, got 'class'; a half's positive is the other.")
    if isinstance(source, PairedArrays | ReadyViews) or source.labels is None:
        raise ValueError(
            f"positives must be 'views' for data without labels, got 'class' for {source.name}; pass labelled images."
        )
    return ClassPositives(source.labels, name=source.name)


def _view_plan(config: TrainConfig, source: AnySource) -> ViewPlan:
    if not isinstance(source, PairedArrays | ReadyViews):
        return sized(config.view_plan, source.image_size)
    kind = "paired data, got {}; it has no views" if isinstance(source, PairedArrays) else "your own views, got {}"
    for name in VIEW_SIZES:
        if (given := getattr(config, name)) is not None:
            raise ValueError(f"{name} must be None for {kind.format(given)}; leave it out.")
    if isinstance(source, ReadyViews):
        if config.recalibrate or config.views:
            raise ValueError("recalibrate and views must be left out for your own views, got them; make views so.")
        return ()
    if config.views_per_image != 2:
        raise ValueError(f"views_per_image must be 2 for paired data, got {config.views_per_image}; it has two sides.")
    if config.recalibrate:
        raise ValueError("recalibrate must be false for paired data, got true; it has no whole images.")
    if config.views:
        raise ValueError(f"views must be left out for paired data, got {sorted(config.views)}; nothing is drawn of it.")
    return ()


def _build_inputs(
    config: TrainConfig,
    source: AnySource,
    view_plan: ViewPlan,
    ranks: Ranks,
    start: Start | None,
    *,
    own_encoder: bool,
) -> Inputs:
    if isinstance(source, PairedArrays):
        return PairedInputs()
    if isinstance(source, ReadyViews):
        return GivenViews(source.views_per_sample)
    # every other encoder of ours begins with a layer to which autocast would round the views
    is_ours = not own_encoder and ":" not in (config.init or "") and ":" not in config.encoder
    is_ours = is_ours and config.encoder not in KEEPS_IMAGES
    dtype = (AUTOCAST_TYPES[config.precision] if is_ours else None) or torch.float32
    (_, groups), *_ = view_plan
    views = build_views(config, source, None if start is None else start.normalisation)
    kind = ClassPairViews if config.positives == "class" else ImageViews
    return kind(views, groups, config.batch_size, config.seed, ranks, dtype)


def _build_validation(
    config: TrainConfig, dataset: Dataset, inputs: Inputs, network: nn.Module, device: torch.device
) -> Validation:
    samples = config.eval_samples or _affordable_samples(network, dataset.train, device)
    common = (config.batch_size, samples, config.seed, device)
    if config.probe_every is not None and not _has_labels(dataset):
        raise ValueError(
            f"probe_every must go with training and test images of known classes, got {dataset.name} without; leave it "
            "out."
        )
    if isinstance(dataset.train, PairedArrays):
        held_out = dataset.test if isinstance(dataset.test, PairedArrays) else dataset.train
        return PairValidation(held_out, *common)
    if isinstance(dataset.train, ReadyViews):
        return GivenValidation(dataset.train, *common)
    assert isinstance(inputs, ImageViews)
    size = inputs.groups[0].size
    assert size is not None
    return ImageValidation(dataset, dataset.train, inputs.views, size, *common, recalibrate=config.recalibrate)


def _has_labels(dataset: Dataset) -> bool:
    parts = (dataset.labelled or dataset.train, dataset.test)
    return all(part is not None and not isinstance(part, PairedArrays) and part.labels is not None for part in parts)


def _affordable_samples(network: nn.Module, source: AnySource, device: torch.device) -> int:
    """So many that an evaluation on a CPU takes about a minute at most; the same on every machine."""
    if device.type != "cpu" or isinstance(source, PairedArrays):
        return MOST_EVAL_SAMPLES
    image = torch.zeros(1, source.channels, source.image_size, source.image_size)
    encoder = next(iter(unwrapped(network).encoders.values()))  # type: ignore[operator]
    with frozen(encoder):
        cost = multiply_adds(encoder, image)
    affordable = int(EVALUATION_COST / max(cost, 1))
    return max(FEWEST_EVAL_SAMPLES, min(MOST_EVAL_SAMPLES, affordable))


def _build_networks(
    config: TrainConfig,
    source: AnySource,
    encoder: nn.Module | None,
    ranks: Ranks,
    device: torch.device,
) -> tuple[nn.Module, MomentumEncoder | None]:
    """The network that is trained and, where one is asked for, the momentum encoder that follows it."""
    if config.momentum is not None and isinstance(source, PairedArrays):
        raise ValueError(
            f"momentum must be None for paired data, got {config.momentum}; each side has an encoder of its own."
        )
    network: nn.Module = build_network(config, source, encoder).to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    keys = None if config.momentum is None else MomentumEncoder(network, config.momentum).to(device)
    if ranks.size > 1:
        if device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        network = nn.parallel.DistributedDataParallel(network)
    return network, keys


def _build_objective(config: TrainConfig, source: AnySource, own: Objective | None, ranks: Ranks) -> Objective:
    labels = class_labels(config, source) if own is None else None
    objective = build_objective(config, paired=isinstance(source, PairedArrays), own=own, labels=labels)
    objective.make_room(len(source))
    if ranks.size > 1 and not objective.options.get("gather"):
        raise ValueError(
            f"objective must gather the batches of {ranks.size} processes, got one that does not; make it "
            "with gather=True."
        )
    return objective


def _build_step(
    config: TrainConfig,
    inputs: Inputs,
    network: nn.Module,
    keys: MomentumEncoder | None,
    objective: Objective,
    schedule: Schedule,
    ranks: Ranks,
    device: torch.device,
) -> TrainStep:
    optimizer = build_optimizer(
        config.optimizer,
        [network, objective],
        learning_rate=schedule.base_rate,
        weight_decay=config.weight_decay,
        capturable=device.type == "cuda",
    )
    queue = None
    if config.queue:
        queue = EmbeddingQueue(config.queue, config.embedding, seed=config.seed).to(device)
    return TrainStep(
        network=network,
        # views of another size are compiled for themselves: kernels for any size are slower
        compiled=torch.compile(network, dynamic=False) if config.compile else None,
        objective=objective,
        optimizer=optimizer,
        inputs=inputs,
        ranks=ranks,
        keys=keys,
        queue=queue,
        precision=config.precision,
        clip_norm=config.clip_norm,
        micro_batch=config.micro_batch,
    )


def _numbers_of_views(parts: Parts) -> set[int]:
    return {views_in(groups) for _, groups in parts.schedule.view_plan} or {parts.train_step.inputs.views_per_sample}


def _require_taken_embeddings(parts: Parts) -> None:
    """What an objective has against the embeddings of a run, asked before any work starts: say, more than two views."""
    config = parts.config
    for views in _numbers_of_views(parts):
        try:
            parts.train_step.try_loss(views, config.batch_size // parts.ranks.size, parts.embedding)
        except (ValueError, TypeError) as error:
            if views == FEWEST_VIEWS:
                raise
            raise ValueError(
                f"views_per_image must be a number that the objective {config.objective} takes, got {views} "
                f"({str(error).rstrip('.')}); leave it out, or choose another objective."
            ) from error


def _require_reachable_targets(parts: Parts) -> None:
    """Every target of the schedule, before any work starts."""
    for control in parts.train_step.objective.controls:
        config = parts.config
        samples, d = config.batch_size // parts.ranks.size, config.embedding
        for views in _numbers_of_views(parts):
            negatives = parts.train_step.negatives(views, samples, d)
            for _, target in parts.schedule.ess_targets:
                control.require_reachable(negatives, target)


def what_to_know(parts: Parts) -> Iterator[str]:
    """What a person should hear before the first step, a sentence each."""
    yield from parts.notes
    if skipped := parts.data.skipped:
        path, reason = skipped[0]
        many = "1 image is" if len(skipped) == 1 else f"{len(skipped)} images are"
        yield f"{many} unreadable and left out, the first {path}: {reason}."
    if bad := getattr(parts.data.original, "bad_shards", ()):
        path, reason = bad[0]
        shards = f"{len(bad)} of {getattr(parts.data.original, 'shards', 0)} shards"
        yield f"{shards} cannot be read and are left out, the first {path}: {reason}."
    if count := parts.data.transparent:
        some = "at least " if isinstance(parts.data.original, ItemImages) else ""  # not all items were looked at
        has, are = ("1 image has", "is") if count == 1 else (f"{count} images have", "are")
        yield f"{some}{has} an alpha channel and {are} put on white."
    if cropped := getattr(parts.data.original, "cropped_from", None):
        side = min(cropped)
        yield f"images of {cropped[0]} x {cropped[1]} are cropped to their middle, {side} x {side}."
    if isinstance(source := parts.data.source, ReadyViews):
        yield (
            f"your views are made on the CPU by {source.workers} worker processes, about {source.views_a_second:,.0f} "
            "a second by a first look; flatclr's own are made on the device, many thousands a second."
        )
    pairing = parts.train_step.objective.options.get("pairing", "two_view")
    if isinstance(parts.data.source, PairedArrays) and pairing in ("views", "two_view", "within"):
        yield f"pairing {pairing!r} compares rows of one side with each other too; for paired data 'cross' is usual."
    config, schedule = parts.config, parts.schedule
    for epoch in schedule.never_reached:
        end = schedule.total_steps / schedule.steps_per_epoch
        yield f"the run ends at epoch {end:g}, before the change of size_schedule at {epoch:g}."
    cut = config.micro_batch is not None and config.micro_batch < config.batch_size // parts.ranks.size
    if cut and mixes_samples(parts.train_step.network):
        yield (
            "batch normalisation goes by micro-batches, so the gradient is not exactly that of the whole batch; "
            "use an encoder with norm 'group' or 'none' for that."
        )


def find_device(name: str) -> torch.device:
    """The device of this process: under torchrun each has a GPU of its own."""
    device = checked_device(name)
    if device.type != "cuda":
        return device
    if name in ("auto", "cuda"):
        device = torch.device("cuda", local_rank(os.environ) % torch.cuda.device_count())  # some see only their own
    torch.cuda.set_device(device)
    return device
