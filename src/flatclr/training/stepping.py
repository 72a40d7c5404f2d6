"""How a step is taken: captured in a CUDA graph where there can be one, else eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from flatclr.capture import CaptureError, WaitsForDeviceError, is_out_of_memory
from flatclr.data.loading import Batch
from flatclr.data.sources import UnusableImagesError
from flatclr.distributed import any_rank
from flatclr.models.encoders import is_own_encoder
from flatclr.training.build import Parts
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.graph import GraphedSteps, why_not_graphed
from flatclr.training.memory import micro_batch_that_fits
from flatclr.training.step import StepResult, TrainStep
from flatclr.training.throughput import Throughput

TakeStep = Callable[[int], StepResult]
T = TypeVar("T")


@dataclass(frozen=True)
class Stepper:
    """The way steps are taken in a run.

    Args:
        take: a step by its number; they are asked for one after another.
        warning: why it is a slower way than was hoped for, if it is.
    """

    take: TakeStep
    warning: str | None = None


MakeStep = Callable[[Parts, Iterator[Batch], int], Stepper]


def batches_from(parts: Parts, first: int, throughput: Throughput) -> Iterator[Batch]:
    """This process's batches from step `first` to the last; the wait for those that are streamed is timed."""
    batches = (batch for _, batch in parts.loader.steps(first, parts.schedule.total_steps))
    if parts.loader.resident is not None:
        return batches
    timed = throughput.timed(batches)
    return timed if parts.ranks.size == 1 else _readable_everywhere(timed, parts)


def _readable_everywhere(batches: Iterator[Batch], parts: Parts) -> Iterator[Batch]:
    """The same batches; images that one process cannot read end those of all, before any takes a step."""
    while True:
        batch, problem = None, None
        try:
            batch = next(batches, None)
        except UnusableImagesError as error:
            problem = error
        if any_rank(problem is not None, parts.device, parts.ranks):
            said_there = "images must be readable on every process; see what another one said."
            problem = problem or UnusableImagesError(said_there)
            problem.everywhere = True
            raise problem
        if batch is None:
            return
        yield batch


def why_not_captured(parts: Parts) -> str | None:
    """What keeps the step of a run from being captured; None if nothing does."""
    reason = why_not_graphed(parts.train_step, parts.loader)
    if reason is None and parts.config.graph is None and not is_own_network(parts.train_step):
        return "the encoder is not one of this package; --graph tries it nevertheless"
    return reason


def captured(parts: Parts, batches: Iterator[Batch], first: int) -> TakeStep:
    """The step of a run in CUDA graphs, one for each set of sizes that views have from step `first` on."""
    own, sizes = is_own_network(parts.train_step), parts.schedule.groups_from(first)
    return GraphedSteps(parts.train_step, parts.loader, batches, sizes=sizes, fewer_launches=own)


def is_own_network(train_step: TrainStep) -> bool:
    """Whether every encoder is one that `build_encoder` makes itself."""
    return all(map(is_own_encoder, train_step.bare_network.encoders.values()))


def choose_step(
    parts: Parts,
    batches: Iterator[Batch],
    first: int,
    *,
    why_not: Callable[[Parts], str | None] = why_not_captured,
    capture: Callable[[Parts, Iterator[Batch], int], TakeStep] = captured,
) -> Stepper:
    """The captured step where there can be one, else the eager one.

    Args:
        parts, batches: what is stepped, and on what, from step `first` on.
        why_not, capture: what keeps the step from being captured, and how it is.
    """

    def eager(step: int) -> StepResult:
        batch = next(batches)
        return _fitting(parts, lambda: parts.train_step(batch, step), lambda: batch, step)

    if parts.device.type != "cuda" or parts.config.graph is False:
        return Stepper(eager)
    reason = why_not(parts)
    if reason is None:
        try:
            return Stepper(_fitting(parts, lambda: capture(parts, batches, first), lambda: next(batches), first))
        except WaitsForDeviceError as error:
            reason = str(error)
        except CaptureError as error:
            raise TrainingStoppedError(
                f"a CUDA graph must be able to hold the step, got a broken capture ({error}); pass --no-graph."
            ) from error
    return Stepper(eager, f"steps are not captured in a CUDA graph: {reason}.")


def _fitting(parts: Parts, work: Callable[[], T], a_batch: Callable[[], Batch], step: int) -> T:
    """Do it, or say which micro-batch would fit into memory."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # outside the handler: a traceback keeps the tensors of the failed step alive
    batch = a_batch()
    raise TrainingStoppedError(
        f"a batch of {len(batch[0])} samples must fit into the memory of {parts.device}, got too little; "
        f"{_what_fits(parts, batch, step)}."
    )


def _what_fits(parts: Parts, batch: Batch, step: int) -> str:
    if parts.ranks.size > 1:
        # to try would need all ranks, and only this one is out of memory
        return f"try --micro-batch {max(1, (parts.train_step.micro_batch or len(batch[0])) // 2)}"
    fits = micro_batch_that_fits(parts.train_step, batch, step)
    return f"--micro-batch {fits} fits" if fits else "not even a micro-batch of 1 fits; use a smaller encoder"
