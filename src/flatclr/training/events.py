"""What happens in a run, as small records for whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from flatclr.data.sources import Dataset


@dataclass(frozen=True)
class Event:
    """Something that happened in a run; which thing is said by the class.

    Args:
        step: how many optimizer steps had been taken.
    """

    kind: ClassVar[str]  # its name in files and in the lines of `flatclr train --json`
    step: int

    def row(self) -> dict[str, Any]:
        """As one flat row: a line of `flatclr train --json`.

        >>> Warned(step=3, message="the disk is nearly full.").row()
        {'kind': 'warning', 'step': 3, 'message': 'the disk is nearly full.'}
        """
        return {"kind": self.kind, "step": self.step}


Listener = Callable[[Event], None]
"""A function of one event, for `train(..., on_event=[...])`."""


@dataclass(frozen=True)
class Started(Event):
    """Everything is built, and the steps begin.

    Args:
        total_steps: the step the run ends with.
        run: its directory; None where nothing is written.
        network: encoder and projection head as they are trained, the same object to the end.
        summary: what the run resolved: data, encoder, batch, steps and device in one line, on a CPU with a forecast.
        data: what it is trained and evaluated on.
        seconds: the forecast, where a few steps were tried; else `Forecast` follows after the first steps.
    """

    kind = "start"
    total_steps: int
    run: Path | None
    network: nn.Module = field(repr=False)
    summary: str = ""
    data: Dataset | None = field(default=None, repr=False)
    seconds: float | None = None

    def row(self) -> dict[str, Any]:
        run = None if self.run is None else str(self.run)
        told = {"total_steps": self.total_steps, "run": run, "summary": self.summary, "seconds": self.seconds}
        return {**super().row(), **told}


@dataclass(frozen=True)
class Forecast(Event):
    """How long the run will take, measured from its first steps or from steps that were tried before.

    Args:
        seconds: from now on.
        message: the same in words.
        advice: what would make a long run on a CPU shorter; else nothing.
    """

    kind = "forecast"
    seconds: float
    message: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        """Message and advice."""
        return f"{'; '.join(part for part in (self.message, self.advice) if part)}."

    def row(self) -> dict[str, Any]:
        return {**super().row(), "seconds": self.seconds, "message": self.sentence}


@dataclass(frozen=True)
class Progressed(Event):
    """A sign of life, at most one a second: something that takes long got so far.

    Args:
        what: decoding, training or evaluation.
        done, total: of its parts.
    """

    kind = "progress"
    what: str
    done: int
    total: int

    def row(self) -> dict[str, Any]:
        return {**super().row(), "what": self.what, "done": self.done, "total": self.total}


@dataclass(frozen=True)
class Measured(Event):
    """A row of metrics; either `Logged` or `Evaluated`.

    Args:
        epoch: passes over the data so far.
        metrics: by name, as metrics.jsonl has them.
    """

    epoch: float
    metrics: Mapping[str, Any]

    def row(self) -> dict[str, Any]:
        return {**super().row(), "epoch": self.epoch, **self.metrics}


@dataclass(frozen=True)
class Logged(Measured):
    """The gauges of one step: loss, bound, ESS, beta, views per second and others, every `log_every` steps."""

    kind = "log"


@dataclass(frozen=True)
class Evaluated(Measured):
    """What the encoder is worth: kNN, effective rank, pool MI, gradient SNR and others, every `eval_every` steps."""

    kind = "evaluation"


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is on disk, whole."""

    kind = "checkpoint"


@dataclass(frozen=True)
class Warned(Event):
    """Something a person should know; the run goes on.

    Args:
        message: one sentence.
    """

    kind = "warning"
    message: str

    def row(self) -> dict[str, Any]:
        return {**super().row(), "message": self.message}


@dataclass(frozen=True)
class Stopped(Event):
    """The run ends before its last step.

    Args:
        reason: the signal or wish that it follows; None where it cannot go on.
        message: one sentence, which says how to go on.
    """

    kind = "stopped"
    reason: str | None
    message: str

    def row(self) -> dict[str, Any]:
        return {**super().row(), "reason": self.reason, "message": self.message}


@dataclass(frozen=True)
class Finished(Event):
    """The last step is taken and the encoder is on disk.

    Args:
        encoders: the file of the encoder; of paired data, one for each side.
        metrics: of the last evaluation.
    """

    kind = "end"
    encoders: tuple[Path, ...]
    metrics: Mapping[str, Any]

    def row(self) -> dict[str, Any]:
        return {**super().row(), "encoders": [str(path) for path in self.encoders], **self.metrics}
