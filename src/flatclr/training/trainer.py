"""The run: build the parts, loop over steps, measure, save, and resume from wherever it stopped."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatclr.checkpoint import has_checkpoints, load_checkpoint, save_checkpoint
from flatclr.data.loading import Batch, BatchPlan, Loader
from flatclr.data.opening import from_anywhere, open_dataset
from flatclr.data.sources import Dataset, PairedArrays, SkippedImagesWarning
from flatclr.distributed import Ranks, ranks_sharing_a_batch
from flatclr.files import json_ready
from flatclr.models.encoders import AdaptedEncoder, Encoder
from flatclr.models.momentum import MomentumEncoder
from flatclr.models.network import Normalisation
from flatclr.models.saving import save_encoder
from flatclr.objectives import Objective
from flatclr.optim import build_optimizer, scaled_learning_rate, set_learning_rate, warmup_cosine
from flatclr.runs import RunDirectory
from flatclr.training.config import OWN, TrainConfig
from flatclr.training.graph import CaptureError, GraphedStep, WaitsForDeviceError, why_not_graphed
from flatclr.training.inputs import ImageViews, Inputs, PairedInputs
from flatclr.training.instruments import gradient_snr, step_metrics
from flatclr.training.loggers import Logger, TensorBoardLog, WandbLog, require_wandb
from flatclr.training.memory import is_out_of_memory, micro_batch_that_fits
from flatclr.training.networks import mixes_samples
from flatclr.training.pace import Pace
from flatclr.training.parts import (
    build_network,
    build_objective,
    build_views,
    find_device,
    output_path,
    scheduled_target,
    trainable,
)
from flatclr.training.quality import ImageQuality, PairQuality, Quality
from flatclr.training.queue import EmbeddingQueue
from flatclr.training.step import AUTOCAST_TYPES, StepResult, TrainStep

Event = Callable[["Trainer", dict[str, Any]], None]
T = TypeVar("T")


class TrainingStoppedError(RuntimeError):
    """The run cannot go on; its last good checkpoint is intact."""


@dataclass(frozen=True)
class RunResult:
    path: Path
    steps: int
    metrics: dict[str, Any]  # of the last evaluation


class Trainer:
    """One run on one process or, under torchrun, on all of them. `train` is the short way to use it."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory | None,
        *,
        data: Dataset | None = None,
        encoder: nn.Module | None = None,
        objective: Objective | None = None,
        on_event: Sequence[Event] = (),
    ) -> None:
        self.config, self.run, self.on_event = config, run, on_event
        self.loggers: list[Logger] = []
        if config.wandb is not None:
            require_wandb()
        self.ranks = ranks_sharing_a_batch(gather=True)
        self.device = find_device(config.device)
        with warnings.catch_warnings():
            if on_event:  # they hear it from `_say_what_to_know`
                warnings.simplefilter("ignore", SkippedImagesWarning)
            opened = data or open_dataset(config.data, data_dir=config.data_dir, image_size=config.image_size)
            self.source = trainable(opened.train, config)
            test = None if opened.test is None else trainable(opened.test, config)
        self.original = opened.train
        self.skipped = [skip for part in (opened.train, opened.test) for skip in getattr(part, "skipped", ())]
        self.data = replace(opened, train=self.source, test=test)
        if config.batch_size % self.ranks.size:
            raise ValueError(
                f"batch_size must be a multiple of the {self.ranks.size} processes, got {config.batch_size}; "
                "it counts the global batch."
            )
        own = self.ranks.own_rows(config.batch_size // self.ranks.size)
        plan = BatchPlan(len(self.source), config.batch_size, config.seed)
        self.loader = Loader(self.source, plan, own=own, device=self.device)
        self.pace = Pace(config.batch_size, self.device)
        self.steps_per_epoch = plan.steps_per_epoch
        self.total_steps = config.steps or max(1, round(config.epochs * plan.steps_per_epoch))
        self.base_rate = scaled_learning_rate(config.learning_rate, config.batch_size, config.lr_scaling)
        self.normalisation: Normalisation | None = None
        inputs, self.quality = self._build_inputs(encoder)
        torch.manual_seed(config.seed)
        self.train_step = self._build_step(inputs, encoder, objective)
        self._require_reachable_targets()
        self.step, self.alarms_seen = 0, {"beta_clamped": 0, "collapsed": 0}
        self.last_evaluation: dict[str, Any] = {}

    @cached_property
    def fingerprint(self) -> str:
        """Of the data, so that a resumed run sees the same."""
        return self.original.fingerprint()

    def _require_reachable_targets(self) -> None:
        """Every target of the schedule, before any work starts."""
        control = getattr(self.train_step.objective.scale, "control", None)
        if control is not None:
            negatives = self.train_step.negatives(self.config.batch_size // self.ranks.size, self.config.embedding)
            for _, target in self.config.ess_targets:
                control.require_reachable(negatives, target)

    @property
    def is_own_network(self) -> bool:
        """Whether every encoder is one that `build_encoder` makes itself."""
        encoders = self.train_step.bare_network.encoders.values()
        return all(isinstance(e, Encoder) and not isinstance(e, AdaptedEncoder) for e in encoders)

    def _build_inputs(self, encoder: nn.Module | None) -> tuple[Inputs, Quality]:
        config = self.config
        common = (config.batch_size, config.eval_samples, config.seed, self.device)
        if isinstance(self.source, PairedArrays):
            held_out = self.data.test if isinstance(self.data.test, PairedArrays) else self.source
            return PairedInputs(), PairQuality(held_out, *common)
        views = build_views(config, self.source)
        if views.mean is not None:
            self.normalisation = Normalisation(views.mean, views.std or ())
        # every encoder of ours begins with a layer to which autocast would round the views
        is_own = encoder is None and ":" not in config.encoder
        dtype = (AUTOCAST_TYPES[config.precision] if is_own else None) or torch.float32
        size = config.view_size or self.source.image_size
        inputs = ImageViews(views, size, config.batch_size, config.seed, self.ranks, dtype)
        return inputs, ImageQuality(self.data, self.source, views, size, *common)

    def _build_step(self, inputs: Inputs, encoder: nn.Module | None, own: Objective | None) -> TrainStep:
        config = self.config
        if config.momentum is not None and isinstance(self.source, PairedArrays):
            raise ValueError(
                f"momentum must be None for paired data, got {config.momentum}; each side has an encoder of its own."
            )
        network: nn.Module = build_network(config, self.source, encoder).to(self.device)
        if self.device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
        keys = None if config.momentum is None else MomentumEncoder(network, config.momentum)
        if self.ranks.size > 1:
            if self.device.type == "cuda":
                network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
            network = nn.parallel.DistributedDataParallel(network)
        paired = isinstance(self.source, PairedArrays)
        objective = build_objective(config, paired=paired, own=own).to(self.device)
        if self.ranks.size > 1 and not objective.options.get("gather"):
            raise ValueError(
                f"objective must gather the batches of {self.ranks.size} processes, got one that does not; make it "
                "with gather=True."
            )
        optimizer = build_optimizer(
            config.optimizer,
            [network, objective],
            learning_rate=self.base_rate,
            weight_decay=config.weight_decay,
            capturable=self.device.type == "cuda",
        )
        queue = None
        if config.queue:
            queue = EmbeddingQueue(config.queue, config.embedding, seed=config.seed).to(self.device)
        return TrainStep(
            network=network,
            compiled=torch.compile(network) if config.compile else None,
            objective=objective,
            optimizer=optimizer,
            inputs=inputs,
            ranks=self.ranks,
            keys=None if keys is None else keys.to(self.device),
            queue=queue,
            precision=config.precision,
            clip_norm=config.clip_norm,
            micro_batch=config.micro_batch,
        )

    def fit(self) -> RunResult:
        """Go on from the current step to the end."""
        self._emit("start", {"step": self.step, "total_steps": self.total_steps})
        self._say_what_to_know()
        if self.step == 0 and self.config.eval_start:
            self._evaluate()
        take_step = self._stepper()
        saved_at = time.monotonic()
        self.pace.restart(self.step)
        for step in range(self.step, self.total_steps):
            rate = self._prepare(step)
            result = take_step(step)
            self.step = step + 1
            logging = self.step % self.config.log_every == 0 or self.step == self.total_steps
            if logging or self.device.type == "cpu":  # elsewhere a look waits for the device
                self._stop_if_bad(result.loss)
            if logging:
                row = step_metrics(result, self.train_step.objective.inverse_temperature, self.ranks)
                row |= {
                    "learning_rate": self.base_rate * rate,
                    **self.pace.row(self.step),
                    "bad_steps": int(self.train_step.bad_steps),
                    **self._alarms(),
                }
                self._record("log", row)
                self.pace.restart(self.step)
            if self.step % self.config.eval_every == 0 or self.step == self.total_steps:
                self._evaluate()
                self.pace.restart(self.step)
            every = self.config.checkpoint_every or self.steps_per_epoch
            due = self.step % every == 0 or self.step == self.total_steps
            if due or time.monotonic() - saved_at > 60 * self.config.checkpoint_minutes:
                self.save()
                saved_at = time.monotonic()
        if not self.last_evaluation:
            self.last_evaluation = self.evaluate()
        self._finish()
        return RunResult(self.run.path if self.run else Path(), self.step, self.last_evaluation)

    def _prepare(self, step: int) -> float:
        """Set what is scheduled; returns the share of the learning rate."""
        warmup = min(round(self.config.warmup_epochs * self.steps_per_epoch), self.total_steps)
        rate = warmup_cosine(step, total_steps=self.total_steps, warmup_steps=warmup)
        set_learning_rate(self.train_step.optimizer, self.base_rate, rate)
        control = getattr(self.train_step.objective.scale, "control", None)
        if control is not None and len(self.config.ess_targets) > 1:
            control.target = scheduled_target(self.config.ess_targets, step / self.steps_per_epoch)
        return rate

    def _stepper(self) -> Callable[[int], StepResult]:
        """The captured step where there can be one, else the eager one."""
        batches: Iterator[Batch] = (batch for _, batch in self.loader.steps(self.step, self.total_steps))
        if self.loader.resident is None:
            batches = self.pace.timed(batches)
        if self.device.type == "cuda" and self.config.graph is not False:
            reason = why_not_graphed(self.train_step, self.loader)
            if reason is None and self.config.graph is None and not self.is_own_network:
                reason = "the encoder is not one of this package; --graph tries it nevertheless"
            if reason is None:
                try:
                    return self._fitting(lambda: self._graphed(batches), lambda: next(batches))
                except WaitsForDeviceError as error:
                    reason = str(error)
                except CaptureError as error:
                    raise TrainingStoppedError(
                        f"a CUDA graph must be able to hold the step, got a broken capture ({error}); pass --no-graph."
                    ) from error
            self._emit("warning", {"step": self.step, "message": f"steps are not captured in a CUDA graph: {reason}."})
        return lambda step: self._take_step(next(batches), step)

    def _graphed(self, batches: Iterator[Batch]) -> GraphedStep:
        return GraphedStep(self.train_step, self.loader, batches, fewer_launches=self.is_own_network)

    def _take_step(self, batch: Batch, step: int) -> StepResult:
        return self._fitting(lambda: self.train_step(batch, step), lambda: batch)

    def _fitting(self, work: Callable[[], T], a_batch: Callable[[], Batch]) -> T:
        """Do it, or say which micro-batch would fit into memory."""
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # outside the handler: a traceback keeps the tensors of the failed step alive
        batch = a_batch()
        if self.ranks.size > 1:
            # to try would need all ranks, and only this one is out of memory
            advice = f"try --micro-batch {max(1, (self.train_step.micro_batch or len(batch[0])) // 2)}"
        else:
            fits = micro_batch_that_fits(self.train_step, batch, self.step)
            advice = f"--micro-batch {fits} fits" if fits else "not even a micro-batch of 1 fits; use a smaller encoder"
        raise TrainingStoppedError(
            f"a batch of {len(batch[0])} samples must fit into the memory of {self.device}, got too little; {advice}."
        )

    def _say_what_to_know(self) -> None:
        if self.skipped:
            path, reason = self.skipped[0]
            message = f"{len(self.skipped)} images are unreadable and left out, the first {path}: {reason}."
            self._emit("warning", {"step": self.step, "message": message})
        own_samples = self.config.batch_size // self.ranks.size
        cut = self.config.micro_batch is not None and self.config.micro_batch < own_samples
        if cut and mixes_samples(self.train_step.network):
            message = (
                "batch normalisation goes by micro-batches, so the gradient is not exactly that of the whole batch; "
                "use an encoder with norm 'group' or 'none' for that."
            )
            self._emit("warning", {"step": self.step, "message": message})

    def evaluate(self) -> dict[str, Any]:
        """What `flatclr.training.quality` measures, and the gradient's signal-to-noise."""
        beta = float(self.train_step.objective.inverse_temperature)
        measured = self.quality.measure(self.train_step.bare_network, beta)
        return measured | {"gradient_snr": gradient_snr(self.train_step, self.loader, self.step)}

    def _evaluate(self) -> None:
        self.last_evaluation = self.evaluate()
        self._record("evaluation", self.last_evaluation)

    def save(self) -> None:
        """A checkpoint of everything resuming needs; written by the first rank."""
        if self.run is None or self.ranks.rank != 0:
            return
        state = {
            "train_step": self.train_step.state_dict(),
            "step": self.step,
            "data": self.fingerprint,
            "cpu_random_state": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_random_state"] = torch.cuda.get_rng_state(self.device)
        with self._writing("checkpoint"):
            save_checkpoint(self.run.checkpoints, self.step, state)
        self._emit("checkpoint", {"step": self.step})

    def restore(self) -> tuple[str, ...]:
        """Load the newest whole checkpoint; returns what was passed over to find it.

        A run that was killed before its first one starts again from its seed.
        """
        assert self.run is not None
        if not has_checkpoints(self.run.checkpoints):
            if self.ranks.rank == 0:
                self.run.drop_metrics_after(-1)
            return ()
        loaded = load_checkpoint(self.run.checkpoints, map_location=self.device)
        state = loaded.state
        if state["data"] != self.fingerprint:
            raise ValueError(
                f"the data must be those the run began with, got others from {self.data.name}; restore them or start "
                "a new run."
            )
        self.train_step.load_state_dict(state["train_step"])
        self.step = state["step"]
        torch.set_rng_state(state["cpu_random_state"].cpu())
        if "cuda_random_state" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_random_state"].cpu(), self.device)
        if self.ranks.rank == 0:
            self.run.drop_metrics_after(self.step)
        return loaded.passed_over

    def _alarms(self) -> dict[str, bool]:
        """Whether the controller met a clamp, or a collapse, since the last look."""
        control = getattr(self.train_step.objective.scale, "control", None)
        if control is None:
            return {}
        seen = {"beta_clamped": int(control.clamped_steps), "collapsed": int(control.collapsed_steps)}
        rung = {name: count > self.alarms_seen[name] for name, count in seen.items()}
        self.alarms_seen = seen
        return rung

    def _stop_if_bad(self, loss: Tensor) -> None:
        longest_bad = int(self.train_step.longest_bad)
        if longest_bad >= self.config.max_bad_steps:
            raise TrainingStoppedError(
                f"losses and gradients must be finite, got {longest_bad} bad steps in a row at step {self.step} "
                f"(loss {loss.item():g}); lower the learning rate, set clip_norm, or use precision fp32 or bf16."
            )

    def _record(self, kind: str, row: dict[str, Any]) -> None:
        row = {"step": self.step, "epoch": self.step / self.steps_per_epoch, "kind": kind, **row}
        with self._writing("metrics"):
            if self.run is not None and self.ranks.rank == 0:
                self.run.append_metrics(json_ready(row))
            for logger in self.loggers:
                logger.write(row)
        self._emit(kind, row)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            assert self.run is not None
            raise TrainingStoppedError(
                f"the {what} must be writable, got {error.strerror or error}; the last checkpoint is intact: free "
                f"space or restore permission, then --resume {self.run.path}."
            ) from error

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Loggers for the time of a run, on the first rank."""
        try:
            if self.run is not None and self.ranks.rank == 0:
                self.loggers.append(TensorBoardLog(self.run.path, step=self.step))
                if self.config.wandb is not None:
                    self.loggers.append(WandbLog(self.config.wandb, self.run.path, self.config.to_dict()))
            yield
        finally:
            while self.loggers:
                self.loggers.pop().close()

    def _emit(self, kind: str, row: dict[str, Any]) -> None:
        for event in self.on_event if self.ranks.rank == 0 else ():
            event(self, {"kind": kind, **row})

    def _finish(self) -> None:
        if self.run is None or self.ranks.rank != 0:
            return
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
        encoders, saved = self.train_step.bare_network.encoders, []
        for name, encoder in encoders.items():
            folder = self.run.path if len(encoders) == 1 else self.run.path / name
            with self._writing("encoder"):
                path = save_encoder(folder, encoder, description=description, normalisation=self.normalisation)
            saved.append(str(path))
        self._emit("end", {"step": self.step, "encoders": saved, **self.last_evaluation})


def train(
    config: TrainConfig,
    *,
    resume: str | Path | None = None,
    data: Dataset | None = None,
    encoder: nn.Module | None = None,
    objective: Objective | None = None,
    on_event: Sequence[Event] = (),
) -> RunResult:
    """Run a config from its start, or go on with the run in `resume` (whose own config then counts).

    Args:
        data: a dataset of your own instead of the one `config.data` names.
        encoder: a module of your own from images [N, C, S, S] to features [N, d] instead of `config.encoder`.
        objective: one of your own instead of `config.objective`, with its own temperature or ESS control; for several
            processes it must have been made with gather=True.
        on_event: called as f(trainer, row) with every row of metrics and every other event; row["kind"] is "start",
            "log", "evaluation", "checkpoint", "warning" or "end".
    """
    _require_arguments(config, data, encoder, objective, on_event)
    own: dict[str, Any] = {"data": data, "encoder": encoder, "objective": objective, "on_event": on_event}
    with ExitStack() as held:
        trainer = _begun(config, own, held) if resume is None else _resumed(Path(resume), own, held)
        held.enter_context(trainer.logging())
        return trainer.fit()


def _begun(config: TrainConfig, own: Mapping[str, Any], held: ExitStack) -> Trainer:
    """A trainer with a new run directory, held by this process."""
    if own["encoder"] is not None:
        config = config.changed(encoder=OWN)
    if own["objective"] is not None:
        config = config.changed(objective=OWN, ess_target=None, temperature=None)
    # the run may be resumed and evaluated from another folder
    folder = str(Path(config.data_dir).expanduser().absolute()) if config.data_dir else config.data_dir
    config = config.changed(data=from_anywhere(config.data), data_dir=folder)
    # everything is checked before a directory is made
    trainer = Trainer(config, None, **own)
    if trainer.ranks.rank == 0:
        trainer.run = RunDirectory.create(output_path(config, trainer.data), config.to_dict())
        held.enter_context(trainer.run.kept_to_oneself())
    return trainer


def _resumed(path: Path, own: Mapping[str, Any], held: ExitStack) -> Trainer:
    """The trainer of a run where its last checkpoint left it, the directory held by this process."""
    run = RunDirectory.open(path)
    if ranks_sharing_a_batch(gather=True).rank == 0:
        held.enter_context(run.kept_to_oneself())
    config = TrainConfig.from_dict(run.config())
    for name in ("encoder", "objective"):
        if own[name] is not None and getattr(config, name) != OWN:
            raise ValueError(
                f"{name} must be that of the run, {getattr(config, name)!r}, got one of your own; leave it out."
            )
    trainer = Trainer(config, run, **own)
    for problem in trainer.restore():
        trainer._emit("warning", {"message": f"passed over a damaged checkpoint, {problem}"})
    if differences := run.differences():
        message = f"weights may differ from those of a run without a break: {'; '.join(differences)}."
        trainer._emit("warning", {"message": message})
    return trainer


def _require_arguments(config: Any, data: Any, encoder: Any, objective: Any, on_event: Any) -> None:
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {type(config).__name__}; pass TrainConfig(steps=100).")
    if data is not None and not isinstance(data, Dataset):
        raise TypeError(
            f"data must be a Dataset, got {type(data).__name__}; pass Dataset('mine', ResidentImages(images), None)."
        )
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder must be a torch.nn.Module, got {type(encoder).__name__}; pass an instance of one.")
    if objective is not None and not isinstance(objective, Objective):
        raise TypeError(
            f"objective must be a flatclr.Objective, got {type(objective).__name__}; name one of the package in "
            "TrainConfig(objective=...), or pass an instance of a subclass."
        )
    if callable(on_event) or not all(map(callable, on_event)):
        raise TypeError(f"on_event must be a list of functions, got {on_event!r}; pass [f].")


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Under torchrun: join the group for the time of a run. Alone: nothing."""
    if "RANK" not in os.environ or dist.is_initialized():
        yield ranks_sharing_a_batch(gather=True)
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield ranks_sharing_a_batch(gather=True)
    finally:
        dist.destroy_process_group()
