"""The steps of fine-tuning: on a GPU that holds the images they are replayed from a CUDA graph.

Shape suffixes: B images of a step, K steps drawn at once, P parameters of a view.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from flatclr.capture import CaptureError, WaitsForDeviceError, captured, is_out_of_memory, warm_up
from flatclr.data.loading import Loader
from flatclr.data.views import ViewConfig, ViewParameters, draw_uniforms, gathered_views, views_from
from flatclr.data.views.drawing import DRAWN_ROWS
from flatclr.models.batch_norm import for_capture


@dataclass(frozen=True)
class Step:
    """Loss and update by views of labelled images.

    Args:
        network: images to logits.
        optimizer: of its parameters.
        loss: of logits and labels.
        views: of each image.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    views: ViewConfig

    def take(self, images: Tensor, index_B: Tensor | None, labels_B: Tensor, parameters: ViewParameters) -> None:
        """By `images[index_B]`, or by `images`."""
        views = gathered_views(images, index_B, parameters, self.views)
        self.optimizer.zero_grad()
        self.loss(self.network(views), labels_B).backward()
        self.optimizer.step()

    def state(self) -> Iterator[Tensor]:
        """Everything that a step changes."""
        yield from (weight.detach() for weight in self.network.parameters())
        yield from self.network.buffers()
        for moments in self.optimizer.state.values():
            yield from (value for value in moments.values() if isinstance(value, Tensor))


@dataclass(frozen=True)
class Drawn:
    """What a step needs besides the images, on the device: which they are, their labels, their views."""

    index_B: Tensor
    labels_B: Tensor
    values_BP: Tensor


@dataclass(frozen=True)
class Draws:
    """What each step sees: rows of `numbers` by the loader's plan, their labels, and a view of each.

    Args:
        loader: of the images.
        numbers: of those that are trained on.
        labels: of these.
        views: of each.
        image_size: of the images.
        generator: what views are drawn from, step after step.
    """

    loader: Loader
    numbers: Tensor
    labels: Tensor
    views: ViewConfig
    image_size: int
    generator: torch.Generator

    def steps(self, count: int) -> Iterator[Drawn]:
        """Several are drawn at once, in the operations and copies of one."""
        at_once = max(1, DRAWN_ROWS // self.loader.plan.batch_size)
        for first in range(0, count, at_once):
            rows_KB = self._rows(range(first, min(first + at_once, count)))
            uniforms = draw_uniforms(rows_KB.numel(), self.generator)
            values_NP = views_from(self.views, uniforms, height=self.image_size, width=self.image_size).values_NP
            several = self.numbers[rows_KB], self.labels[rows_KB], values_NP.unflatten(0, rows_KB.shape)
            for each in zip(*(_moved(x, self.loader.device) for x in several), strict=True):
                yield Drawn(*each)

    def batches(self, count: int) -> Iterator[Tensor]:
        """The images of each step, on the device."""
        index = (self.numbers[self._rows(range(i, i + 1))[0]] for i in range(count))
        return (images for (images,) in self.loader.batches(index))

    def parameters(self, values_BP: Tensor) -> ViewParameters:
        """As views are made by."""
        return ViewParameters(values_BP, self.image_size, self.image_size)

    def _rows(self, steps: range) -> Tensor:
        return torch.stack([self.loader.plan.indices(i) for i in steps])


class EagerSteps:
    """One after another, on images that are read ahead where they are not in memory."""

    def __init__(self, step: Step, draws: Draws, count: int) -> None:
        self.step, self.draws, self.batches = step, draws, draws.batches(count)

    def __call__(self, drawn: Drawn) -> None:
        self.step.take(next(self.batches), None, drawn.labels_B, self.draws.parameters(drawn.values_BP))


class GraphedSteps:
    """Captured once, then replayed with what each step has drawn; images are indexed in the graph."""

    def __init__(self, step: Step, draws: Draws) -> None:
        self.step, self.draws = step, draws
        self.static = next(replace(draws, generator=torch.Generator()).steps(1))
        with _quickest_convolutions():
            warm_up(self._take, "a step of fine-tuning", step.state, draws.loader.device)
            self.graph, _ = captured(self._take, draws.loader.device, others_may_allocate=True)

    def __call__(self, drawn: Drawn) -> None:
        for name, static in vars(self.static).items():
            static.copy_(getattr(drawn, name))
        self.graph.replay()

    def _take(self) -> None:
        assert self.draws.loader.resident is not None
        parameters = self.draws.parameters(self.static.values_BP)
        with for_capture():
            self.step.take(self.draws.loader.resident[0], self.static.index_B, self.static.labels_B, parameters)


def graphed(step: Step, draws: Draws) -> GraphedSteps | None:
    """Steps in a CUDA graph; None, with a warning, where a step waits for the device or memory is too small for one."""
    try:
        return GraphedSteps(step, draws)
    except WaitsForDeviceError as error:
        reason = str(error)
    except CaptureError as error:
        raise ValueError(
            f"a CUDA graph must be able to hold a step of fine-tuning, got a broken capture ({error}); "
            "pass --device cpu (device='cpu')."
        ) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = "too little memory is free"
    # outside the handlers: a traceback keeps the tensors of the failed step alive
    torch.cuda.empty_cache()
    warnings.warn(f"fine-tuning is not captured in a CUDA graph: {reason}; it runs eagerly.", stacklevel=2)
    return None


@contextmanager
def _quickest_convolutions() -> Iterator[None]:
    """Found by trying while the step is warmed up, unless they must be the same in every process."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        cudnn.benchmark = before


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Without waiting for the device; pinned memory is kept until the copy is done."""
    return values.contiguous().pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
