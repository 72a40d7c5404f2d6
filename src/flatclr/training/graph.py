"""The step as one CUDA graph: at small batches a GPU waits for launches, not for arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flatclr.capture import Graph, captured, warm_up
from flatclr.data.loading import Batch, Loader
from flatclr.data.views.drawing import DRAWN_ROWS
from flatclr.models.batch_norm import for_capture
from flatclr.training.inputs import ImageViews
from flatclr.training.networks import FewerLaunches
from flatclr.training.step import StepResult, TrainStep
from flatclr.training.view_groups import Groups


def why_not_graphed(train_step: TrainStep, loader: Loader) -> str | None:
    """What keeps a step from being captured; None if nothing does."""
    if loader.device.type != "cuda":
        return f"the device is {loader.device.type}"
    if train_step.ranks.size > 1:
        return "several processes share the batch"
    if not isinstance(train_step.inputs, ImageViews):
        return "the data are pairs"
    if loader.positives is not None:
        return "positives are other samples"
    if not train_step.skips_on_device:
        return "fp16, LARS, a queue or a momentum encoder looks at every step from the host"
    if train_step.micro_batch is not None:
        return "the batch is cut into micro-batches"
    return None


class GraphedSteps:
    """`TrainStep` on images, captured before the first step for every set of sizes that views will have.

    Not when a size comes up: a capture during which other threads pin memory is broken, and what does not fit into
    memory is better known at the start. The graphs share their memory, since one is replayed at a time; so results are
    overwritten by the next replay. The parameters, states and buffers a checkpoint restores must be in place before
    this is made: the graphs go on using their memory.

    Args:
        train_step, loader: of the run; `train_step.inputs` says which graph is replayed.
        batches: of streamed images, one for every call.
        sizes: groups of views, every one that `train_step.inputs` will have.
        fewer_launches: for networks whose layers are called as modules: one that reads another's weight, or leaves
            autocast, would see rounded ones.
    """

    def __init__(
        self,
        train_step: TrainStep,
        loader: Loader,
        batches: Iterator[Batch],
        *,
        sizes: Sequence[Groups],
        fewer_launches: bool,
    ) -> None:
        assert isinstance(train_step.inputs, ImageViews)
        self.train_step, self.steps = train_step, dict[Groups, GraphedStep]()
        forward, first = train_step.forward, train_step.inputs
        if fewer_launches and train_step.compiled is None:
            train_step.forward = FewerLaunches(train_step.network, train_step.autocast_type)
        pool = torch.cuda.graph_pool_handle() if loader.device.type == "cuda" else None
        try:
            for groups in sizes:
                train_step.inputs = replace(first, groups=groups)  # what failed is what was last tried
                self.steps[groups] = GraphedStep(train_step, loader, batches, pool)
        except BaseException:
            train_step.forward = forward
            raise
        train_step.inputs = first
        train_step.is_captured = True

    def __call__(self, step: int) -> StepResult:
        assert isinstance(self.train_step.inputs, ImageViews)
        return self.steps[self.train_step.inputs.groups](step)


class GraphedStep:
    """A step on views of certain sizes: captured once, then replayed with each step's images and view parameters.

    Resident images are indexed in the graph. Streamed ones come from `batches`, one for every call, and are copied to
    where the graph looks for them.
    """

    def __init__(self, train_step: TrainStep, loader: Loader, batches: Iterator[Batch], pool: Any = None) -> None:
        assert isinstance(train_step.inputs, ImageViews)
        self.train_step, self.loader, self.inputs, self.batches = train_step, loader, train_step.inputs, batches
        self.pool = pool
        # read to the end before the capture: one that other threads pin memory during is broken
        ((self.batch,),) = loader.batches([loader.own_indices(0)])
        self.index = loader.own_indices(0).to(loader.device, copy=True)
        self.parameters = self.inputs.parameters(self.batch, 0).to(loader.device)
        self.drawn_KRP, self.drawn_steps = self.parameters.values_NP.clone().unsqueeze(0), range(1)
        self._warm_up()
        self.graph, self.result = self._captured()

    def __call__(self, step: int) -> StepResult:
        if self.loader.resident is None:
            (images,) = next(self.batches)
            self.batch.copy_(images)
        if self.loader.resident is not None or self.train_step.samples_of is not None:
            _feed(self.index, self.loader.own_indices(step))
        self.parameters.values_NP.copy_(self._drawn(step))
        self.graph.replay()
        return self.result

    def _drawn(self, step: int) -> Tensor:
        """The view parameters of a step, drawn for several at once: K steps, R rows of all views, P parameters.

        Between replays each operation takes its turn with the threads that look after decoders, so few are made there.
        """
        if step not in self.drawn_steps:
            steps = range(step, step + max(1, DRAWN_ROWS // len(self.parameters)))
            drawn = self.inputs.parameters(self.batch, *steps).to(self.loader.device)
            self.drawn_KRP, self.drawn_steps = drawn.values_NP.unflatten(0, (len(steps), -1)), steps
        return self.drawn_KRP[step - self.drawn_steps.start]

    def _take(self) -> StepResult:
        if self.loader.resident is None:
            views = self.inputs.apply(self.batch, None, self.parameters)
        else:
            views = self.inputs.apply(self.loader.resident[0], self.index, self.parameters)
        index = None if self.train_step.samples_of is None else self.index
        with for_capture():
            return self.train_step.take(views, len(self.batch), index)

    def _captured(self) -> tuple[Graph, StepResult]:
        return captured(self._take, self.loader.device, self.pool)

    def _warm_up(self) -> None:
        warm_up(self._take, "the step", lambda: _state(self.train_step), self.loader.device)


def _state(train_step: TrainStep) -> Iterator[Tensor]:
    yield from (train_step.bad_steps, train_step.bad_in_a_row, train_step.longest_bad)
    for module in (train_step.bare_network, train_step.objective):
        yield from (parameter.detach() for parameter in module.parameters())
        yield from module.buffers()
    for moments in train_step.optimizer.state.values():
        yield from (value for value in moments.values() if isinstance(value, Tensor))


def _feed(static: Tensor, values: Tensor) -> None:
    """Copy from the host without waiting; pinned memory is kept until the copy is done."""
    static.copy_(values.contiguous().pin_memory(), non_blocking=True)
