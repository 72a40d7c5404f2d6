"""The step as one CUDA graph: at small batches a GPU waits for launches, not for arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from flatclr.data.loading import Batch, Loader
from flatclr.training.inputs import ImageViews
from flatclr.training.networks import FewerLaunches
from flatclr.training.step import StepResult, TrainStep

WARMUP_STEPS = 3


def why_not_graphed(train_step: TrainStep, loader: Loader) -> str | None:
    """What keeps a step from being captured; None if nothing does."""
    if loader.device.type != "cuda":
        return f"the device is {loader.device.type}"
    if train_step.ranks.size > 1:
        return "several processes share the batch"
    if not isinstance(train_step.inputs, ImageViews):
        return "the data are pairs"
    if not train_step.skips_on_device:
        return "fp16, LARS, a queue or a momentum encoder looks at every step from the host"
    if train_step.micro_batch is not None:
        return "the batch is cut into micro-batches"
    return None


class GraphedStep:
    """`TrainStep` on images: captured once, then replayed with each step's images and view parameters.

    Resident images are indexed in the graph. Streamed ones come from `batches`, one for every call, and are copied to
    where the graph looks for them.

    Results are overwritten by the next replay. The parameters, states and buffers a checkpoint restores must be in
    place before this is made: the graph goes on using their memory. Where the capture fails, `train_step` is as before.

    `fewer_launches` is for networks whose layers are called as modules: one that reads another's weight, or leaves
    autocast, would see rounded ones.
    """

    def __init__(
        self, train_step: TrainStep, loader: Loader, batches: Iterator[Batch], *, fewer_launches: bool
    ) -> None:
        assert isinstance(train_step.inputs, ImageViews)
        self.train_step, self.loader, self.inputs, self.batches = train_step, loader, train_step.inputs, batches
        # read to the end before the capture: one that other threads pin memory during is broken
        ((self.batch,),) = loader.batches([loader.own_indices(0)])
        self.index = loader.own_indices(0).to(loader.device)
        self.parameters = self.inputs.parameters(self.batch, 0).to(loader.device)
        forward = train_step.forward
        if fewer_launches and train_step.compiled is None:
            train_step.forward = FewerLaunches(train_step.network, train_step.autocast_type)
        try:
            self._warm_up()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self._take()
        except BaseException:
            train_step.forward = forward
            raise

    def __call__(self, step: int) -> StepResult:
        if self.loader.resident is None:
            (images,) = next(self.batches)
            self.batch.copy_(images)
        else:
            _feed(self.index, self.loader.own_indices(step))
        _feed(self.parameters.values_NP, self.inputs.parameters(self.batch, step).values_NP)
        self.graph.replay()
        return self.result

    def _take(self) -> StepResult:
        if self.loader.resident is None:
            views = self.inputs.apply(self.batch, None, self.parameters)
        else:
            views = self.inputs.apply(self.loader.resident[0], self.index, self.parameters)
        return self.train_step.take(views, len(self.batch))

    def _warm_up(self) -> None:
        """A few steps that leave no trace: libraries and allocators must be ready before a capture."""
        kept = [(tensor, tensor.clone()) for tensor in _state(self.train_step)]
        known = {tensor.data_ptr() for tensor, _ in kept}
        try:
            with torch.random.fork_rng([self.loader.device]):
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(WARMUP_STEPS):
                        self._take()
                torch.cuda.current_stream().wait_stream(side)
        finally:
            for tensor, before in kept:
                tensor.copy_(before)
            for tensor in _state(self.train_step):
                if tensor.data_ptr() not in known:
                    tensor.zero_()  # moments an optimizer made; it starts them from nothing


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
