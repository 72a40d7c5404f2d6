"""A run from start to end: build, then go step by step while a recorder writes."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import nn

from flatclr.checkpoint import has_checkpoints
from flatclr.checks import require_number
from flatclr.data.opening import from_anywhere
from flatclr.data.sources import Dataset, SkippedImagesWarning, UnusableImagesError, alpha_is_told
from flatclr.distributed import Ranks, any_rank, fail_together, ranks_sharing_a_batch, text_of_first_rank
from flatclr.files import require_place
from flatclr.objectives import Objective
from flatclr.runs import WITHOUT_EFFECT, RunDirectory, new_directory
from flatclr.training.build import Parts, build, find_device, what_to_know
from flatclr.training.build_start import absolute_start
from flatclr.training.config import OWN, TrainConfig, takes_ess_target
from flatclr.training.display import Display
from flatclr.training.errors import TrainingInterruptedError, TrainingStoppedError
from flatclr.training.events import Event, Listener, Started, Stopped, Warned
from flatclr.training.launch import explaining_lost_contact, process_group
from flatclr.training.loggers import require_wandb
from flatclr.training.loop import Loop
from flatclr.training.own_data import Views, is_named, own_dataset
from flatclr.training.progress import SignsOfLife
from flatclr.training.recorder import Recorder
from flatclr.training.resolve import OF_START, chosen_settings, summary_of
from flatclr.training.result import RunResult
from flatclr.training.schedule import Schedule
from flatclr.training.state import FIRST, Start
from flatclr.training.stepping import MakeStep, choose_step
from flatclr.training.stopping import StopAskedError, StopRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Own:
    """What a user brings instead of what the config names."""

    data: Dataset | None = None
    encoder: nn.Module | None = None
    objective: Objective | None = None
    listeners: Sequence[Listener] = ()
    stop: StopRequest | None = None
    displays: Sequence[Listener] = ()

    @property
    def told(self) -> tuple[Listener, ...]:
        """All that hear of events."""
        return (*self.displays, *self.listeners)

    def named_in(self, config: TrainConfig) -> TrainConfig:
        """The settings of the run: what the user brings has no others."""
        if self.encoder is not None:
            config = config.changed(encoder=OWN)
        if self.objective is not None:
            config = config.changed(objective=OWN, ess_target=None, temperature=None)
        return config

    def build(self, config: TrainConfig) -> Parts:
        if config.wandb is not None:
            require_wandb()
        with nullcontext() if self.stop is None else self.stop.at_once():
            return build(
                config,
                data=self.data,
                encoder=self.encoder,
                objective=self.objective,
                progress=SignsOfLife(self.tell) if ranks_sharing_a_batch(gather=True).rank == 0 else None,
            )

    def tell(self, event: Event) -> None:
        for listener in self.told:
            listener(event)

    def stopped_when_ready(self) -> AbstractContextManager[None]:
        """A caller may have nothing to lose; this run has, between its checkpoints."""
        return nullcontext() if self.stop is None else self.stop.when_ready()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Where somebody listens, unreadable images are told as events, not as warnings of Python."""
        with warnings.catch_warnings(), alpha_is_told(bool(self.told)):
            if self.listeners:
                warnings.simplefilter("ignore", SkippedImagesWarning)
            yield


@dataclass(frozen=True)
class Changes:
    """How a run that goes on differs from what it was."""

    max_bad_images: float | None = None
    extend_epochs: float | None = None


UNCHANGED = Changes()


def train(
    config: TrainConfig,
    *,
    resume: str | Path | None = None,
    data: Any = None,
    views: Views | None = None,
    encoder: nn.Module | None = None,
    objective: Objective | None = None,
    progress: bool = True,
    on_event: Sequence[Listener] = (),
    auto_resume: bool = False,
    max_bad_images: float | None = None,
    extend_epochs: float | None = None,
    stop: StopRequest | None = None,
) -> RunResult:
    """Train an encoder without labels, and write a run directory.

    A run that was stopped goes on from its last checkpoint, on a CPU with one or two processes to the same weights bit
    for bit. Several processes share a batch where `flatclr.training.process_group()` finds them: a process group that
    is there is adopted, and under torchrun or srun one is made for the time of the run.

    Args:
        config: every setting of the run; with `resume`, that of the run counts instead.
        resume: the directory of a run to go on with.
        data: data of your own instead of what `config.data` names: a path, a `Dataset`, images as an array or tensor,
            (images, labels), (x, y) for paired data, a torch Dataset or sequence of images or (image, label), a list of
            image files, a Hugging Face dataset; or ready views: a DataLoader or a dataset whose items are 2 or more
            views [C, H, W].
        views: any function from an image to a view, or to several at once: torchvision's, albumentations' or kornia's
            transforms, or your own. It is called on the CPU, in `config.workers` processes, with the items of a dataset
            as they are, else with uint8 tensors [C, S, S]. Their values are not normalised further.
        encoder: a module of your own from images [N, C, S, S] to features [N, d] instead of `config.encoder`.
        objective: one of your own instead of `config.objective`, with its own temperature or ESS control; for several
            processes it must have been made with gather=True.
        progress: whether the run shows how far it is, on standard error: a bar in a terminal or notebook, lines
            elsewhere.
        on_event: functions of one event: `flatclr.training.Started`, `Logged`, `Evaluated`, `Saved`, `Warned`,
            `Stopped` or `Finished`. They are called on the first process, after the event is written; what one raises
            ends the run.
        auto_resume: whether a run that `config.out` holds already goes on, so that the same call begins a run and goes
            on with it; its settings must be the same, but for max_bad_images.
        max_bad_images: with `resume`, the share of unreadable image files to allow instead of the run's own, this time.
        extend_epochs: with `resume`, how many epochs the run is made longer by. The learning rate then follows the
            schedule of the longer run.
        stop: asks the run to stop with a checkpoint, by signals or from code; every process has one or none has.

    Returns:
        Where the run is, how many steps it took and what its last evaluation measured.

    Raises:
        ValueError: for settings that do not fit the data, the device or each other; nothing is written then.
        TypeError: for an argument or a setting of the wrong kind.
        FileNotFoundError: for data, or a run to resume, that is not there.
        FileExistsError: where the output directory holds a run already.
        TrainingStoppedError: where the run cannot go on: losses stay not finite, memory or the disk is full, images or
            a process are lost.
        TrainingInterruptedError: where `stop` asked for it.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> config = flatclr.TrainConfig(steps=2, batch_size=8, eval_samples=100, eval_start=False, log_every=1)
    >>> def show(event):
    ...     if isinstance(event, flatclr.training.Logged):
    ...         print(f"step {event.step}: at most {event.metrics['ceiling_nats']:.2f} nats")
    >>> result = flatclr.train(config.changed(out=folder.name, device="cpu"), on_event=[show])
    step 1: at most 2.71 nats
    step 2: at most 2.71 nats
    >>> flatclr.load_encoder(result.path)(torch.rand(3, 1, 28, 28)).shape[0]
    3
    >>> folder.cleanup()
    """
    _require_arguments(config, encoder, objective, on_event)
    if max_bad_images is not None and resume is None:
        raise ValueError(
            f"max_bad_images must be in the config of a run that begins, got {max_bad_images}; pass TrainConfig("
            f"max_bad_images={max_bad_images})."
        )
    if extend_epochs is not None:
        require_number("extend_epochs", extend_epochs, above=0, advice="pass how many epochs to add, say 10.")
        if resume is None:
            raise ValueError(f"extend_epochs must go with resume, got {extend_epochs} without; name the run.")
    if is_named(data) and views is None and resume is None:
        config, data = config.changed(data=str(data)), None
    of_run = config if resume is None else TrainConfig.from_dict(RunDirectory.open(Path(resume)).config())
    with alpha_is_told(progress or bool(on_event)):  # the run will
        dataset, changes = own_dataset(data, of_run, views), Changes(max_bad_images, extend_epochs)
    with Display(console=Console(stderr=True)) if progress else nullcontext() as display:
        own = Own(dataset, encoder, objective, on_event, stop, () if display is None else (display,))
        return train_with(config, own, resume=resume, auto_resume=auto_resume, changes=changes)


def train_with(
    config: TrainConfig,
    own: Own,
    *,
    resume: str | Path | None = None,
    auto_resume: bool = False,
    changes: Changes = UNCHANGED,
    make_step: MakeStep = choose_step,
) -> RunResult:
    """As `train`, which is this with checked arguments; `make_step` says how steps are taken."""
    with process_group() as ranks, own.heard(), own.stopped_when_ready(), ExitStack() as held:
        if resume is None:
            config = own.named_in(config)
        if auto_resume and resume is None and _is_there(config, ranks):
            resume, changes = config.out, replace(changes, max_bad_images=config.max_bad_images)
        try:
            if resume is None:
                recorder, start = _begun(config, own, held)
            else:
                recorder, start = _resumed(Path(resume), own, held, changes)
        except StopAskedError as asked:
            message = f"interrupted by {asked} before the first step; nothing is lost: give the same command again."
            for listener in own.told if ranks.rank == 0 else ():
                listener(Stopped(0, str(asked), message))
            raise TrainingInterruptedError(message) from None
        return fit(recorder, start=start, make_step=make_step, stop=own.stop)


def fit(
    recorder: Recorder, *, start: Start = FIRST, make_step: MakeStep = choose_step, stop: StopRequest | None = None
) -> RunResult:
    """The steps of a run whose parts are built, from `start` to the last."""
    parts, step = recorder.parts, start.step
    with recorder.logging(step):
        loop = Loop(parts, recorder, start=start, make_step=make_step, stop=stop)
        forecast = loop.forecast() if recorder.listeners else None
        seconds = None if forecast is None else forecast.seconds
        network, summary = parts.train_step.bare_network, summary_of(parts, seconds)
        recorder.tell(
            Started(step, parts.schedule.total_steps, recorder.path, network, summary, parts.data.dataset, seconds)
        )
        if forecast is not None:
            recorder.tell(forecast)
        for message in what_to_know(parts):
            recorder.tell(Warned(step, message))
        try:
            with explaining_lost_contact():
                metrics = loop.run()
                recorder.finish(loop.step, metrics)
        except StopAskedError as asked:
            error: TrainingStoppedError = TrainingInterruptedError(_how_to_go_on(recorder, loop.step, str(asked)))
            recorder.tell(Stopped(loop.step, str(asked), str(error)))
            raise error from None
        except UnusableImagesError as lost:
            error = TrainingStoppedError(f"{str(lost).rstrip('.')}, then go on with --resume {recorder.path or ''}")
            recorder.tell(Stopped(loop.step, None, str(error)))
            raise error from lost
        except TrainingStoppedError as stopped:
            recorder.tell(Stopped(loop.step, None, str(stopped)))
            raise
    return RunResult(recorder.path or Path(), loop.step, metrics)


def _how_to_go_on(recorder: Recorder, step: int, asked: str) -> str:
    where = f"from the checkpoint of step {step} go on" if step else "before the first step; begin anew"
    return f"interrupted by {asked}{';' if step else ''} {where} with: flatclr train --resume {recorder.path}"


def _is_there(config: TrainConfig, ranks: Ranks) -> bool:
    """Whether the output directory holds a run to go on with, whose settings must be these; the first process looks."""
    if config.out is None:
        raise ValueError("out must be given to go on with what it holds, got none; pass --out with --auto-resume.")
    there = ranks.rank == 0 and RunDirectory.begun_in(Path(config.out))
    if not any_rank(there, find_device(config.device), ranks):
        return False
    directory = RunDirectory.open(Path(config.out))
    begun = TrainConfig.from_dict(directory.config()).to_dict() | directory.asked()
    for name, value in config.to_dict().items():
        then, now = (json.loads(json.dumps(setting, default=str)) for setting in (begun[name], value))
        if name == "init":
            now = absolute_start(value)
        if name in ("data", "data_dir"):
            now = from_anywhere(value) if name == "data" else value and str(Path(value).expanduser().absolute())
        if (name not in WITHOUT_EFFECT or name in ("data", "data_dir")) and then != now:  # a file knows no tuples
            raise ValueError(
                f"{name} must be that of the run in {config.out}, {begun[name]!r}, got {value!r}; leave out "
                "--auto-resume and choose another --out for another run."
            )
    return True


def _begun(config: TrainConfig, own: Own, held: ExitStack) -> tuple[Recorder, Start]:
    """The recorder of a new run, its directory held by this process."""
    # the run may be resumed and evaluated from another folder
    folder = str(Path(config.data_dir).expanduser().absolute()) if config.data_dir else config.data_dir
    config = config.changed(data=from_anywhere(config.data), data_dir=folder, init=absolute_start(config.init))
    # everything is checked before a directory is made
    if config.out is not None:
        require_place(config.out)
    parts = own.build(config)

    def create() -> RunDirectory:
        path = _output_path(config, parts.data.dataset)
        chosen = chosen_settings(parts, path, own_data=own.data is not None)
        directory = RunDirectory.create(path, config.to_dict(), chosen)
        held.enter_context(directory.locked())
        return directory

    made = _by_the_first(create, parts.ranks, parts.device)
    path = text_of_first_rank("" if made is None else str(made.path), parts.ranks)
    return Recorder(parts, RunDirectory(Path(path)), own.told), FIRST


def _resumed(path: Path, own: Own, held: ExitStack, changes: Changes) -> tuple[Recorder, Start]:
    """The recorder of a run where its last checkpoint left it, and where that is; this process holds the directory."""
    directory = RunDirectory.open(path)
    config = TrainConfig.from_dict(directory.config())
    if not takes_ess_target(config):
        config = config.changed(ess_target=None)  # which earlier versions passed over
    if changes.max_bad_images is not None:
        config = config.changed(max_bad_images=changes.max_bad_images)
    left_open = {name: value for name, value in directory.asked().items() if name in ("device", "graph")}
    config = config.changed(**left_open)  # it may go on on another machine
    config = _without_start(config, directory)
    ranks, device = ranks_sharing_a_batch(gather=True), find_device(config.device)
    _by_the_first(lambda: held.enter_context(directory.locked()), ranks, device)
    for name in ("encoder", "objective"):
        if getattr(own, name) is not None and getattr(config, name) != OWN:
            raise ValueError(
                f"{name} must be that of the run, {getattr(config, name)!r}, got one of your own; leave it out."
            )
    parts = own.build(config)
    if changes.extend_epochs is None:
        recorder = Recorder(parts, directory, own.told)
        return recorder, recorder.restore()
    longer = _longer(parts, changes.extend_epochs)
    recorder = Recorder(longer, directory, own.told)
    start = recorder.restore()
    _by_the_first(lambda: directory.extend(_length(longer.config)), ranks, device)
    recorder.tell(Warned(start.step, _extension(parts.schedule, longer.schedule, start.step)))
    return recorder, start


def _without_start(config: TrainConfig, directory: RunDirectory) -> TrainConfig:
    """A run goes on with the weights of its checkpoint; before the first one it begins as it was asked to."""
    if config.init is None or has_checkpoints(directory.checkpoints):
        return config.changed(init=None)
    asked = directory.asked()
    return config.changed(**{name: asked[name] for name in OF_START if name in asked})


def _longer(parts: Parts, epochs: float) -> Parts:
    """The same parts, for a run that is so many epochs longer."""
    config, schedule = parts.config, parts.schedule
    if config.steps is None:
        config = config.changed(epochs=config.epochs + epochs)
    else:
        config = config.changed(steps=config.steps + max(1, round(epochs * schedule.steps_per_epoch)))
    return replace(parts, config=config, schedule=Schedule.of(config, schedule.steps_per_epoch, schedule.view_plan))


def _length(config: TrainConfig) -> dict[str, Any]:
    return {"epochs": config.epochs} if config.steps is None else {"steps": config.steps}


def _extension(before: Schedule, after: Schedule, step: int) -> str:
    rates = [schedule.rate(max(step, 0)) for schedule in (before, after)]
    return (
        f"the run is made longer, from {before.total_steps:,} to {after.total_steps:,} steps. The learning rate "
        f"follows half a cosine over all of them: at step {step:,} it goes from {rates[0]:.2g} to {rates[1]:.2g}, and "
        "then down to 0."
    )


def _by_the_first(work: Callable[[], T], ranks: Ranks, device: torch.device) -> T | None:
    """What the first process does for all; where it fails, all do, since the others would wait for it."""
    done, failure = None, None
    if ranks.rank == 0:
        try:
            done = work()
        except (ValueError, OSError) as error:
            failure = error
    if ranks.size > 1:
        fail_together(None if failure is None else str(failure), device, ranks)
    if failure is not None:
        raise failure
    return done


def _require_arguments(config: Any, encoder: Any, objective: Any, on_event: Any) -> None:
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {type(config).__name__}; pass TrainConfig(steps=100).")
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder must be a torch.nn.Module, got {type(encoder).__name__}; pass an instance of one.")
    if objective is not None and not isinstance(objective, Objective):
        raise TypeError(
            f"objective must be a flatclr.Objective, got {type(objective).__name__}; name one of the package in "
            "TrainConfig(objective=...), or pass an instance of a subclass."
        )
    if callable(on_event) or not all(map(callable, on_event)):
        raise TypeError(f"on_event must be a list of functions, got {on_event!r}; pass [f].")
    for listener in on_event:
        if not _takes_an_event(listener):
            raise TypeError(
                f"on_event must hold functions of one event, got {listener!r}; write def listen(event), where "
                "event.row() has its values by name."
            )


def _takes_an_event(listener: Any) -> bool:
    try:
        inspect.signature(listener).bind(None)
    except TypeError:
        return False
    except ValueError:  # some built-in functions do not say what they take
        return True
    return True


def _output_path(config: TrainConfig, data: Dataset) -> Path:
    """Where the run goes; without a name from the user, a directory of its own is made."""
    if config.out is not None:
        return Path(config.out)
    return new_directory(Path("runs") / f"{Path(data.name).stem}-{config.objective}-{config.seed}")
