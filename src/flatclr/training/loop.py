"""Step by step: schedule, step, gauges, evaluation. The loop tells what happens and knows nothing of files."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Protocol

from torch import Tensor

from flatclr.data.sources import UnusableImagesError
from flatclr.distributed import any_rank, wait_for_every_rank
from flatclr.training.build import Parts
from flatclr.training.errors import DivergedError
from flatclr.training.events import Evaluated, Event, Forecast, Logged, Warned
from flatclr.training.instruments import evaluation_metrics, matrices_of, step_metrics, update_ratio
from flatclr.training.progress import Forecaster, SignsOfLife
from flatclr.training.resolve import encoder_name
from flatclr.training.state import FIRST, Start
from flatclr.training.step import StepResult
from flatclr.training.stepping import MakeStep, TakeStep, batches_from, choose_step
from flatclr.training.stopping import StopAskedError, StopRequest
from flatclr.training.throughput import Throughput
from flatclr.training.trial import evaluation_s, trial_pace


class Record(Protocol):
    """Whom a loop tells what happens."""

    def tell(self, event: Event) -> None:
        """Something happened."""

    def save(self, step: int, *, owes_evaluation: bool = False) -> None:
        """Everything that resuming after this step needs is to be kept, also that an evaluation is to be made up."""


class Loop:
    """The steps of a run.

    Args:
        parts: what `build` made, restored to `start`.
        record: is told what happens, and asked to save.
        start: how many steps were taken before, and whether the evaluation of the last is to be made up.
        make_step: how a step is taken; the captured one where there can be one.
        stop: asks the run to stop; with several processes, all or none have one.
    """

    def __init__(
        self,
        parts: Parts,
        record: Record,
        *,
        start: Start = FIRST,
        make_step: MakeStep = choose_step,
        stop: StopRequest | None = None,
    ) -> None:
        self.parts, self.record, self.make_step, self.stop = parts, record, make_step, stop
        self.step, self.owes_evaluation = start
        self.saved_step = self.step
        self.bad_images_told = parts.data.count_bad_images()
        parts.schedule.apply(parts.train_step, max(self.step - 1, 0))  # what held at the last step of a resumed run
        self.throughput = Throughput(parts.config.batch_size, parts.device)
        self.last_evaluation: dict[str, Any] = {}
        self.alarms_seen = {"beta_clamped": 0, "collapsed": 0}
        self.saved_at = time.monotonic()
        self.signs = SignsOfLife(record.tell)
        self.evaluation_s = 0.0
        self.forecaster = Forecaster(
            parts.schedule.total_steps,
            on_cpu=parts.device.type == "cpu",
            size=getattr(parts.data.source, "image_size", None),
            encoder=encoder_name(parts),
        )

    def forecast(self) -> Forecast | None:
        """How long the run will take, where a few steps can be tried and taken back."""
        pace = trial_pace(self.parts, self.step, self.signs)
        if pace is None:
            return None
        self.evaluation_s = evaluation_s(self.parts, pace.step_s)
        first = self.owes_evaluation or (self.step == 0 and self.parts.config.eval_start)
        return self.forecaster.at(
            self.step, pace, evaluations=first + self._evaluations_after(self.step), evaluation_s=self.evaluation_s
        )

    def run(self) -> dict[str, Any]:
        """Go on to the last step; returns what the last evaluation measured.

        Raises:
            TrainingStoppedError: where losses stay not finite, or a batch does not fit into memory.
            StopAskedError: where it was asked to stop; what was done is saved.
            UnusableImagesError: where images went missing; what was done is saved.
        """
        try:
            return self._run()
        except StopAskedError:
            self._save_what_was_done(together=True)
            raise
        except UnusableImagesError as lost:
            self._save_what_was_done(together=lost.everywhere)
            raise

    def _save_what_was_done(self, *, together: bool) -> None:
        self._tell_of_bad_images()
        if self.step > self.saved_step:
            self.record.save(self.step, owes_evaluation=self.owes_evaluation)
        if together:  # the first process writes for all: it may be ended as soon as another one leaves
            wait_for_every_rank(self.parts.device, self.parts.ranks)

    def _run(self) -> dict[str, Any]:
        if self.owes_evaluation or (self.step == 0 and self.parts.config.eval_start):
            self._evaluate()
        stepper = self.make_step(self.parts, batches_from(self.parts, self.step, self.throughput), self.step)
        if stepper.warning is not None:
            self.record.tell(Warned(self.step, stepper.warning))
        self.saved_at = time.monotonic()
        self.throughput.restart(self.step)
        while self.step < self.parts.schedule.total_steps:
            self._stop_if_asked()
            self._advance(stepper.take)
        return self.last_evaluation or evaluation_metrics(self.parts, self.step, probe=self._probing)

    def _stop_if_asked(self) -> None:
        if self.stop is None:
            return
        if any_rank(self.stop.reason is not None, self.parts.device, self.parts.ranks):
            raise StopAskedError(self.stop.reason or "another process")

    def _advance(self, take: TakeStep) -> None:
        config = self.parts.config
        train_step = self.parts.train_step
        learning_rate = self.parts.schedule.apply(train_step, self.step)
        logging = self._is_due(config.log_every, self.step + 1)
        before = matrices_of(train_step) if logging else []
        result = take(self.step)
        self.step += 1
        self._give_signs()
        self.throughput.count(train_step.inputs.views_per_sample)
        if logging or self.parts.device.type == "cpu":  # elsewhere a look waits for the device
            self._stop_if_bad(result.loss)
        if logging:
            self._log(result, learning_rate, before)
        self._forecast(synchronised=logging)
        if self._is_due(config.eval_every) or self._probing:
            self._evaluate()
            self.throughput.restart(self.step)
        self._tell_of_bad_images()
        self._save_if_due()

    def _give_signs(self) -> None:
        self.signs.step = self.step
        self.signs("training", self.step, self.parts.schedule.total_steps)
        if self.forecaster.since == 0.0:
            self.forecaster.begin(self.step)

    def _forecast(self, *, synchronised: bool) -> None:
        to_come = self._evaluations_after(self.step - 1)  # the one of this step is to come too
        forecast = self.forecaster.after(
            self.step, synchronised=synchronised, evaluations=to_come, evaluation_s=self.evaluation_s
        )
        if forecast is not None and self.step < self.parts.schedule.total_steps:
            self.record.tell(forecast)

    def _evaluations_after(self, step: int) -> int:
        total, every = self.parts.schedule.total_steps, self.parts.config.eval_every
        return -(-total // every) - step // every

    def _is_due(self, every: int, step: int | None = None) -> bool:
        step = self.step if step is None else step
        return step % every == 0 or step == self.parts.schedule.total_steps

    @property
    def _probing(self) -> bool:
        every = self.parts.config.probe_every
        return every is not None and self._is_due(every)

    def _log(self, result: StepResult, learning_rate: float, before: list[Tensor]) -> None:
        train_step = self.parts.train_step
        metrics = step_metrics(result, train_step.objective.inverse_temperature, self.parts.ranks) | {
            "learning_rate": learning_rate,
            "update_ratio": update_ratio(train_step, before),
            **self.throughput.row(self.step),
            "bad_steps": int(train_step.bad_steps),
            **self._alarms(),
        }
        self.record.tell(Logged(self.step, self._epoch, metrics))
        self.throughput.restart(self.step)

    def _evaluate(self) -> None:
        self.owes_evaluation = True
        alone = self.parts.ranks.size == 1
        started = time.monotonic()
        with self.stop.at_once() if self.stop is not None and alone else nullcontext():
            progress = self.signs if alone else self._go_on_together
            self.last_evaluation = evaluation_metrics(self.parts, self.step, progress, probe=self._probing)
        self.evaluation_s = time.monotonic() - started
        self.record.tell(Evaluated(self.step, self._epoch, self.last_evaluation))
        self.owes_evaluation = False

    def _go_on_together(self, what: str, done: int, total: int) -> None:
        """All processes evaluate the same and come by here as often: none waits for one that left."""
        self.signs(what, done, total)
        self._stop_if_asked()

    def _save_if_due(self) -> None:
        config = self.parts.config
        minutes = (time.monotonic() - self.saved_at) / 60
        paces = (config.checkpoint_every or self.parts.schedule.steps_per_epoch, config.keep_every)
        if any(self._is_due(pace) for pace in paces if pace) or minutes > config.checkpoint_minutes:
            self.record.save(self.step)
            self.saved_at, self.saved_step = time.monotonic(), self.step

    def _tell_of_bad_images(self) -> None:
        count = self.parts.data.count_bad_images()
        if count != self.bad_images_told:
            new = self.parts.data.bad_images(self.bad_images_told, count)
            path, reason = new[0]
            many = "1 more image is" if len(new) == 1 else f"{len(new)} more images are"
            message = (
                f"{many} damaged, {sum(count)} in all; another of its class stands in for each, "
                f"the first is {path}: {reason}."
            )
            self.record.tell(Warned(self.step, message))
            self.bad_images_told = count

    @property
    def _epoch(self) -> float:
        return self.step / self.parts.schedule.steps_per_epoch

    def _alarms(self) -> dict[str, bool]:
        """Whether the controller met a clamp, or a collapse, since the last look."""
        controls = self.parts.train_step.objective.controls
        if not controls:
            return {}
        seen = {
            "beta_clamped": sum(int(control.clamped_steps) for control in controls),
            "collapsed": sum(int(control.collapsed_steps) for control in controls),
        }
        rung = {name: count > self.alarms_seen[name] for name, count in seen.items()}
        self.alarms_seen = seen
        return rung

    def _stop_if_bad(self, loss: Tensor) -> None:
        longest_bad = int(self.parts.train_step.longest_bad)
        if longest_bad >= self.parts.config.max_bad_steps:
            raise DivergedError(
                f"losses and gradients must be finite, got {longest_bad} bad steps in a row at step {self.step} "
                f"(loss {loss.item():g}); lower the learning rate, set clip_norm, or use precision fp32 or bf16."
            )
