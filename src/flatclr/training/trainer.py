"""The run: build the parts, loop over steps, measure, save, and resume from wherever it stopped."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatclr.data.loading import BatchPlan, Loader, seeded_generator
from flatclr.data.sources import Dataset, FileImages, ImageSource, PairedArrays, open_dataset
from flatclr.data.views import ViewConfig, apply_views, draw_views, grayscale_views, no_augmentation, simclr_cifar_views
from flatclr.distributed import Ranks, ranks_sharing_a_batch
from flatclr.models.encoders import Normalisation, build_encoder
from flatclr.models.heads import build_head
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.saving import save_encoder
from flatclr.objectives import OBJECTIVES, EssControl, Objective
from flatclr.optim import build_optimizer, scaled_learning_rate, set_learning_rate, warmup_cosine
from flatclr.runs import RunDirectory, unused_path
from flatclr.training.checkpoint import load_checkpoint, save_checkpoint
from flatclr.training.config import TrainConfig
from flatclr.training.instruments import GradientSignal, encode, pool_mi_nats, quality, step_metrics
from flatclr.training.queue import EmbeddingQueue
from flatclr.training.step import Network, TrainStep

RESIDENT_BYTES = 4 * 2**30
EVALUATION_IMAGES = 10_000
Event = Callable[["Trainer", dict[str, Any]], None]


class TrainingStoppedError(RuntimeError):
    """The run cannot go on; its last good checkpoint is intact."""


@dataclass(frozen=True)
class RunResult:
    path: Path
    steps: int
    metrics: dict[str, Any]  # of the last evaluation


class Trainer:
    """One run on one process or, under torchrun, on all of them. `train` is the short way to use it."""

    def __init__(self, config: TrainConfig, run: RunDirectory | None, *, on_event: Sequence[Event] = ()) -> None:
        self.config, self.run, self.on_event = config, run, on_event
        self.ranks = ranks_sharing_a_batch(gather=True)
        self.device = _device(config.device)
        self.data = open_dataset(config.data, data_dir=config.data_dir, image_size=config.image_size)
        self.source = _images(self.data)
        self.views = _views(config, self.source)
        if config.batch_size % self.ranks.size:
            raise ValueError(
                f"batch_size must be a multiple of the {self.ranks.size} processes, got {config.batch_size}; "
                "it counts the global batch."
            )
        own = self.ranks.own_rows(config.batch_size // self.ranks.size)
        self.plan = BatchPlan(len(self.source), config.batch_size, config.seed)
        self.loader = Loader(self.source, self.plan, own=own, device=self.device)
        self.total_steps = config.steps or max(1, round(config.epochs * self.plan.steps_per_epoch))
        self.base_rate = scaled_learning_rate(config.learning_rate, config.batch_size, config.lr_scaling)
        torch.manual_seed(config.seed)
        self.train_step = self._build_step()
        self.signal = GradientSignal(list(self.train_step.bare_network.head.parameters())[-2])
        self.step, self.bad_steps, self.bad_in_a_row = 0, 0, 0
        self.last_evaluation: dict[str, Any] = {}

    def _build_step(self) -> TrainStep:
        config, source = self.config, self.source
        encoder = build_encoder(
            _encoder_name(config, source),
            channels=source.channels,
            image_size=source.image_size,
            **config.encoder_options,
        )
        norm = str(config.encoder_options.get("norm", "batch"))
        head = build_head(
            encoder.features, d_hidden=config.head_width, d_out=config.embedding, layers=config.head_layers, norm=norm
        )
        network: nn.Module = Network(encoder, head).to(self.device)
        keys = None if config.momentum is None else MomentumEncoder(network, config.momentum)
        if self.ranks.size > 1:
            if self.device.type == "cuda":
                network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
            network = nn.parallel.DistributedDataParallel(network)
        objective = build_objective(config).to(self.device)
        optimizer = build_optimizer(
            config.optimizer, [network, objective], learning_rate=self.base_rate, weight_decay=config.weight_decay
        )
        return TrainStep(
            network=network,
            objective=objective,
            optimizer=optimizer,
            views=self.views,
            image_size=source.image_size,
            batch_size=config.batch_size,
            seed=config.seed,
            ranks=self.ranks,
            keys=None if keys is None else keys.to(self.device),
            queue=EmbeddingQueue(config.queue, config.embedding, seed=config.seed).to(self.device)
            if config.queue
            else None,
            precision=config.precision,
            clip_norm=config.clip_norm,
        )

    def fit(self) -> RunResult:
        """Go on from the current step to the end."""
        self._emit("start", {"step": self.step, "total_steps": self.total_steps})
        saved_at, since_log, last_log_step = time.monotonic(), time.monotonic(), self.step
        for step, images in self.loader.steps(self.step, self.total_steps):
            warmup = min(round(self.config.warmup_epochs * self.plan.steps_per_epoch), self.total_steps)
            rate = warmup_cosine(step, total_steps=self.total_steps, warmup_steps=warmup)
            set_learning_rate(self.train_step.optimizer, self.base_rate, rate)
            result = self.train_step(images, step)
            self.signal.observe()
            self.step = step + 1
            self._count_bad(result.finite, result.loss)
            if self.step % self.config.log_every == 0 or self.step == self.total_steps:
                seconds = time.monotonic() - since_log
                row = step_metrics(result, self.train_step.objective.inverse_temperature)
                row |= {
                    "gradient_snr": self.signal.ratio(),
                    "learning_rate": self.base_rate * rate,
                    "images_per_second": (self.step - last_log_step) * self.config.batch_size / seconds,
                    "bad_steps": self.bad_steps,
                    **self._alarms(),
                }
                since_log, last_log_step = time.monotonic(), self.step
                self._record("log", row)
            if self.step % self.config.eval_every == 0 or self.step == self.total_steps:
                self.last_evaluation = self.evaluate()
                self._record("evaluation", self.last_evaluation)
                since_log, last_log_step = time.monotonic(), self.step
            every = self.config.checkpoint_every or self.plan.steps_per_epoch
            due = self.step % every == 0 or self.step == self.total_steps
            if due or time.monotonic() - saved_at > 60 * self.config.checkpoint_minutes:
                self.save()
                saved_at = time.monotonic()
        if not self.last_evaluation:
            self.last_evaluation = self.evaluate()
        self._finish()
        return RunResult(self.run.path if self.run else Path(), self.step, self.last_evaluation)

    def evaluate(self) -> dict[str, Any]:
        """Nearest-neighbour accuracy where labels exist, effective rank, and MI against a large pool."""
        network = self.train_step.bare_network
        features, labels = self._features(network.encoder, self.data.labelled or self.source)
        test = None if self.data.test is None else self._features(network.encoder, self.data.test)
        measured = quality(features, labels, *(test or (None, None)))
        pool = min(len(self.source), 100 * self.config.batch_size, EVALUATION_IMAGES)
        images = self.source.batch(self._sample(self.source, pool, "pool")).to(self.device)
        z_a, z_b = (encode(network, images, self._drawn_view(name)) for name in ("a", "b"))
        beta = float(self.train_step.objective.inverse_temperature)
        return measured | pool_mi_nats(z_a, z_b, beta)

    def _features(self, encoder: nn.Module, source: ImageSource) -> tuple[Tensor, Tensor | None]:
        chosen = self._sample(source, EVALUATION_IMAGES, "features")
        images = source.batch(chosen).to(self.device)
        labels = None if source.labels is None else source.labels[chosen].to(self.device)
        return encode(encoder, images, self._plain_view), labels

    def _sample(self, source: ImageSource, at_most: int, name: str) -> Tensor:
        """The same images at every evaluation, drawn from all: folders are sorted by class."""
        return torch.randperm(len(source), generator=seeded_generator(self.config.seed, name))[:at_most]

    def _plain_view(self, images: Tensor) -> Tensor:
        return self._view(images, no_augmentation(mean=self.views.mean, std=self.views.std), torch.Generator())

    def _drawn_view(self, name: str) -> Callable[[Tensor], Tensor]:
        generator = seeded_generator(self.config.seed, "pool", name)
        return lambda images: self._view(images, self.views, generator)

    def _view(self, images: Tensor, views: ViewConfig, generator: torch.Generator) -> Tensor:
        height, width = images.shape[-2:]
        drawn = draw_views(views, len(images), height=height, width=width, generator=generator, device=images.device)
        return apply_views(images, drawn, views, size=self.source.image_size)

    def save(self) -> None:
        """A checkpoint of everything resuming needs; written by the first rank."""
        if self.run is None or self.ranks.rank != 0:
            return
        state = {
            "train_step": self.train_step.state_dict(),
            "step": self.step,
            "bad_steps": self.bad_steps,
            "bad_in_a_row": self.bad_in_a_row,
            "signal": list(self.signal.seen),
            "cpu_random_state": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_random_state"] = torch.cuda.get_rng_state(self.device)
        try:
            save_checkpoint(self.run.checkpoints, self.step, state)
        except OSError as error:
            raise TrainingStoppedError(
                f"the checkpoint must be writable, got {error.strerror or error}; the last one is intact: free space "
                f"or restore permission, then --resume {self.run.path}."
            ) from error
        self._emit("checkpoint", {"step": self.step})

    def restore(self) -> tuple[str, ...]:
        """Load the newest whole checkpoint; returns what was passed over to find it."""
        assert self.run is not None
        loaded = load_checkpoint(self.run.checkpoints, map_location=self.device)
        state = loaded.state
        self.train_step.load_state_dict(state["train_step"])
        self.step, self.bad_steps, self.bad_in_a_row = state["step"], state["bad_steps"], state["bad_in_a_row"]
        self.signal.seen.extend(state["signal"])
        torch.set_rng_state(state["cpu_random_state"].cpu())
        if "cuda_random_state" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_random_state"].cpu(), self.device)
        if self.ranks.rank == 0:
            self.run.drop_metrics_after(self.step)
        return loaded.passed_over

    def _alarms(self) -> dict[str, bool]:
        control = getattr(self.train_step.objective.scale, "control", None)
        return {} if control is None else {"beta_clamped": control.clamped, "collapsed": control.collapsed}

    def _count_bad(self, finite: bool, loss: Tensor) -> None:
        self.bad_in_a_row = 0 if finite else self.bad_in_a_row + 1
        self.bad_steps += not finite
        if self.bad_in_a_row >= self.config.max_bad_steps:
            raise TrainingStoppedError(
                f"losses and gradients must be finite, got {self.bad_in_a_row} bad steps in a row at step {self.step} "
                f"(loss {loss.item():g}); lower the learning rate, set clip_norm, or use precision fp32 or bf16."
            )

    def _record(self, kind: str, row: dict[str, Any]) -> None:
        row = {"step": self.step, "epoch": self.step / self.plan.steps_per_epoch, "kind": kind, **row}
        if self.run is not None and self.ranks.rank == 0:
            self.run.append_metrics({k: _finite_or_text(v) for k, v in row.items()})
        self._emit(kind, row)

    def _emit(self, kind: str, row: dict[str, Any]) -> None:
        for event in self.on_event if self.ranks.rank == 0 else ():
            event(self, {"kind": kind, **row})

    def _finish(self) -> None:
        if self.run is None or self.ranks.rank != 0:
            return
        network = self.train_step.bare_network
        normalisation = None if self.views.mean is None else Normalisation(self.views.mean, self.views.std or ())
        description = {
            "data": self.data.name,
            "objective": self.config.objective,
            "ess_target": self.config.ess_target if self.config.temperature is None else None,
            "temperature": self.config.temperature,
            "batch_size": self.config.batch_size,
            "steps": self.step,
            "seed": self.config.seed,
            "measured": self.last_evaluation,
        }
        save_encoder(self.run.path, network.encoder, description=description, normalisation=normalisation)
        self._emit("end", {"step": self.step, **self.last_evaluation})


def build_objective(config: TrainConfig) -> Objective:
    """The objective a config names; ESS control unless a temperature is given or the objective has none."""
    kind = OBJECTIVES[config.objective]
    options: dict[str, Any] = {"gather": True, **config.objective_options}
    if config.pairing is not None:
        options["pairing"] = config.pairing
    if config.negatives_per_anchor is not None:
        options["negatives_per_anchor"] = config.negatives_per_anchor
    if "temperature" in inspect.signature(kind.__init__).parameters and options.get("kernel") != "cosine":
        if config.temperature is not None:
            options["temperature"] = config.temperature
        elif config.ess_target is not None:
            options["temperature"] = EssControl(target=config.ess_target)
    elif config.temperature is not None:
        raise ValueError(f"temperature must be None for {config.objective}, got {config.temperature}; it has none.")
    return kind(**options)


def train(config: TrainConfig, *, resume: str | Path | None = None, on_event: Sequence[Event] = ()) -> RunResult:
    """Run a config from its start, or go on with the run in `resume` (whose own config then counts)."""
    if resume is not None:
        run = RunDirectory.open(Path(resume))
        trainer = Trainer(TrainConfig.from_dict(run.config()), run, on_event=on_event)
        for problem in trainer.restore():
            trainer._emit("warning", {"message": f"passed over a damaged checkpoint, {problem}"})
        return trainer.fit()
    trainer = Trainer(config, None, on_event=on_event)  # everything is checked before a directory is made
    if trainer.ranks.rank == 0:
        trainer.run = RunDirectory.create(_output(config, trainer.data), config.to_dict())
    return trainer.fit()


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Under torchrun: join the group for the time of a run. Alone: nothing."""
    if "RANK" not in os.environ or dist.is_initialized():
        yield ranks_sharing_a_batch(gather=True)
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield ranks_sharing_a_batch(gather=True)
    finally:
        dist.destroy_process_group()


def _output(config: TrainConfig, data: Dataset) -> Path:
    if config.out is not None:
        return Path(config.out)
    return unused_path(Path("runs") / f"{Path(data.name).stem}-{config.objective}-{config.seed}")


def _images(data: Dataset) -> ImageSource:
    if isinstance(data.train, PairedArrays):
        raise ValueError(
            f"the data must be images, got paired arrays ({data.name}); use the objectives from Python for these."
        )
    if isinstance(data.train, FileImages):
        return data.train.resident(RESIDENT_BYTES) or data.train
    return data.train


def _views(config: TrainConfig, source: ImageSource) -> ViewConfig:
    base = grayscale_views() if source.channels == 1 else simclr_cifar_views()
    unknown = set(config.views) - set(ViewConfig.__dataclass_fields__)
    if unknown:
        raise ValueError(
            f"views must name fields of ViewConfig, got {sorted(unknown)}; see flatclr.data.views.ViewConfig."
        )
    return ViewConfig(**{name: getattr(base, name) for name in ViewConfig.__dataclass_fields__} | dict(config.views))


def _encoder_name(config: TrainConfig, source: ImageSource) -> str:
    if config.encoder != "auto":
        return config.encoder
    return "cnn" if source.image_size <= 32 and source.channels == 1 else "resnet18"


def _device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _finite_or_text(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
