"""Where a run goes: its directory, TensorBoard, Weights & Biases, and whoever listens. Of all processes, the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatclr.checkpoint import has_checkpoints, load_checkpoint, save_checkpoint
from flatclr.files import json_ready
from flatclr.models.saving import save_encoder
from flatclr.runs import CONFIG, RunDirectory
from flatclr.training.build import Parts
from flatclr.training.config import takes_ess_target
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Finished, Listener, Logged, Measured, Saved, Warned
from flatclr.training.loggers import Logger, TensorBoardLog, WandbLog
from flatclr.training.resolve import facts_of
from flatclr.training.state import FIRST, Start, restore, state_of


class Recorder:
    """Writes down what a loop tells, and passes it on.

    Args:
        parts: of the run that is recorded.
        run: its directory; without one nothing is written.
        listeners: called with every event, after it is written.
    """

    def __init__(self, parts: Parts, run: RunDirectory | None = None, listeners: Sequence[Listener] = ()) -> None:
        is_first = parts.ranks.rank == 0
        self.parts, self.run = parts, run
        self.written = run if is_first else None
        self.listeners = tuple(listeners) if is_first else ()
        self.loggers: list[Logger] = []
        self.has_noted = False
        self.identity = "" if run is None else run.identity()
        self.data = "" if self.written is None else parts.data.fingerprint  # taken before any file can change

    @property
    def path(self) -> Path | None:
        return None if self.run is None else self.run.path

    def tell(self, event: Event) -> None:
        if isinstance(event, Measured):
            self._write_metrics(event)
        if isinstance(event, Logged) and not self.has_noted:
            self._note({"graph": self.parts.train_step.is_captured})  # known once steps are taken
            self.has_noted = True
        for listener in self.listeners:
            listener(event)

    def save(self, step: int, *, owes_evaluation: bool = False) -> None:
        """A checkpoint of everything resuming needs."""
        if self.written is None:
            return
        state = state_of(self.parts, step, owes_evaluation=owes_evaluation)
        with self._writing("checkpoint"):
            keep_every = self.parts.config.keep_every
            save_checkpoint(self.written.checkpoints, step, state, identity=self.identity, keep_every=keep_every)
        self.tell(Saved(step))

    def restore(self) -> Start:
        """Put the newest whole checkpoint back into the parts; returns where it goes on.

        A run that was killed before its first one starts again from its seed.
        """
        assert self.run is not None
        start, said = FIRST, list[str]()
        unchecked = [] if self.run.has_checksum() else [f"{self.run.path / CONFIG} has no checksum"]
        written_until = -1  # before the evaluation that precedes the first step
        if has_checkpoints(self.run.checkpoints):
            loaded = load_checkpoint(
                self.run.checkpoints, map_location=self.parts.device, identity=self.identity or None
            )
            start = Start(loaded.step, bool(loaded.state.get("owes_evaluation")))
            written_until = start.step
            said += [f"passed over a damaged checkpoint, {problem}" for problem in loaded.passed_over]
            if loaded.unchecked:
                unchecked.append(f"the checkpoint of step {start.step} does not say whose it is")
            said += restore(self.parts, loaded.state, self.run.checkpoints)
        else:
            said.append("the run had no checkpoint yet and begins again from its seed.")
        if unchecked:
            missing = " and ".join(unchecked)
            said.insert(0, f"the run could not be checked: {missing}, as in runs of earlier versions.")
        if self.written is not None:
            self.written.drop_metrics_after(written_until)
        for message in said:
            self.tell(Warned(start.step, message))
        if differences := self.run.differences():
            message = f"weights may differ from those of a run without a break: {'; '.join(differences)}."
            self.tell(Warned(start.step, message))
        return start

    def finish(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the encoder, which is what a user takes away."""
        if self.written is None:
            return
        description = self._description(step, metrics)
        encoders, saved = self.parts.train_step.bare_network.encoders, []
        for name, encoder in encoders.items():
            folder = self.written.path if len(encoders) == 1 else self.written.path / name
            with self._writing("encoder"), self.parts.validation.ready(encoder):
                path = save_encoder(folder, encoder, description=description, normalisation=self.parts.normalisation)
            saved.append(path)
        self.tell(Finished(step, tuple(saved), metrics))

    @contextmanager
    def logging(self, step: int) -> Iterator[None]:
        """Loggers for the time of a run that begins after this step."""
        config = self.parts.config
        try:
            if self.written is not None:
                self._note(facts_of(self.parts))
                self.loggers.append(TensorBoardLog(self.written.path, step=step))
                if config.wandb is not None:
                    self.loggers.append(WandbLog(config.wandb, self.written.path, config.to_dict()))
            yield
        finally:
            while self.loggers:
                self.loggers.pop().close()

    def _note(self, facts: Mapping[str, Any]) -> None:
        with self._writing("environment"):
            if self.written is not None:
                self.written.note(facts)

    def _write_metrics(self, event: Measured) -> None:
        row = {"step": event.step, "epoch": event.epoch, **event.row()}
        with self._writing("metrics"):
            if self.written is not None:
                self.written.append_metrics(json_ready(row))
            for logger in self.loggers:
                logger.write(row)

    def _description(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What encoder.json says of the run."""
        config = self.parts.config
        controlled = config.temperature is None and takes_ess_target(config)
        return {
            "data": self.parts.data.dataset.name,
            "objective": config.objective,
            "ess_target": config.ess_target if controlled else None,
            "temperature": config.temperature,
            "batch_size": config.batch_size,
            "views_per_image": config.views_per_image,
            "steps": step,
            "seed": config.seed,
            "measured": metrics,
        }

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingStoppedError(
                f"the {what} must be writable, got {error.strerror or error}; the last checkpoint is intact: free "
                f"space or restore permission, then --resume {self.path}."
            ) from error
