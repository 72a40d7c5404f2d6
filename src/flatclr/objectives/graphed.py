"""A loss that captures itself: forward and backward as two CUDA graphs, replayed at every call of the same shape.

A small loss waits for launches. Its two graphs are one launch each; besides them a call copies its inputs to where the
graphs read them and its results to where nothing overwrites them. An `EssControl` notes its ESS inside the forward
graph, so that values equal those of eager calls bit by bit.

The graphs of a shape share their memory from call to call: a loss that still waits for its backward pass keeps them
busy, and another call runs eagerly meanwhile.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import distributed
from flatclr.capture import Graph, WaitsForDeviceError, captured, first_line, first_of, on_a_side_stream, tried
from flatclr.checks import refuse_double_backward
from flatclr.contrast import Options
from flatclr.objectives.ess_control import EssControl

MOST_SHAPES = 8
CHOOSING = ("labels", "ids", "negative_labels", "negative_ids")

Inputs = dict[str, Tensor]  # views by number, and what else a call brings, by name
Evaluate = Callable[[Inputs], Tensor]


class GraphedCalls:
    """The captured calls of one objective, by what their graphs depend on."""

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.options = name, options
        self.captured: dict[tuple[Any, ...], CapturedCall | str] = {}  # or why it could not be
        self.told: set[str] = set()

    def __call__(self, module: nn.Module, inputs: Inputs, evaluate: Evaluate) -> Tensor:
        """The loss of an objective on these inputs, which `evaluate` computes eagerly."""
        if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return evaluate(inputs)  # somebody else makes a graph
        if not inputs or not all(isinstance(x, Tensor) for x in inputs.values()):
            reason: str | None = "not all it was given are tensors"  # perhaps bad input, which is refused below
        else:
            reason = why_not_graphed(module, inputs, self.options)
        if reason is None:
            call = self._call_for(module, inputs, evaluate)
            if isinstance(call, CapturedCall) and not call.is_busy:
                return call.replayed(inputs)
            reason = call if isinstance(call, str) else "an earlier loss still waits for its backward pass"
        self._tell(reason)
        return evaluate(inputs)

    def _call_for(self, module: nn.Module, inputs: Inputs, evaluate: Evaluate) -> CapturedCall | str:
        """What was captured for such a call, now if it is the first; or why it could not be."""
        key = (*_modes(), *_kinds(inputs), *_settings(module))
        if key not in self.captured:
            if len(self.captured) >= MOST_SHAPES:
                return f"calls came in more than {MOST_SHAPES} shapes or settings"
            try:
                self.captured[key] = CapturedCall.of(module, inputs, evaluate)
            except WaitsForDeviceError as error:
                self.captured[key] = first_line(error)
            except RuntimeError as error:
                self.captured[key] = first_line(first_of(error))
        return self.captured[key]

    def _tell(self, reason: str) -> None:
        if reason not in self.told:
            self.told.add(reason)
            warnings.warn(
                f"{self.name} is not captured in a CUDA graph: {reason}; it runs eagerly.", UserWarning, stacklevel=6
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedCalls:
        return GraphedCalls(self.name, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphedCalls, (self.name, self.options)


def why_not_graphed(module: nn.Module, inputs: Inputs, options: Options) -> str | None:
    """What keeps a call from being captured; None if nothing does."""
    z = next(iter(inputs.values()))
    if not z.is_cuda:
        return f"the embeddings are on the {z.device.type.upper()}"
    if distributed.ranks_sharing_a_batch(options.gather).size > 1:
        return "several processes share the batch"
    if options.negatives_per_anchor is not None:
        return "it draws negatives anew at every call"
    if options.check_embeddings:
        return "check_embeddings looks at every batch from the host"
    if options.false_negative_margin is not None or any(name in inputs for name in CHOOSING):
        return "labels, ids and a margin choose other pairs at every call"
    if any(x.device != z.device for x in _tensors(module)):
        return f"its temperature or parameters are not on {z.device}; move the objective there"
    return None


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        yield from (x for group in (part._parameters, part._buffers) for x in group.values() if x is not None)


def _settings(module: nn.Module) -> Iterator[Any]:
    """What a graph holds of the objective itself: its numbers and switches, and where its tensors are."""
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, bool | int | float | str))
    yield from ((x.data_ptr(), x.requires_grad) for x in _tensors(module))


def _modes() -> tuple[Any, ...]:
    """What the caller has switched on or off around the call."""
    casts = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *casts


def _kinds(inputs: Inputs) -> Iterator[Any]:
    for name, x in inputs.items():
        yield name, x.shape, x.dtype, x.device, x.requires_grad


def _casting_anew() -> AbstractContextManager[Any]:
    """Autocast without its cache: a graph would read weights that were rounded before it, in memory that is freed."""
    if not torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False)


class _Token:
    """Lives as long as a loss that could still be differentiated."""


@dataclass
class CapturedCall:
    """The graphs of one kind of call, and the tensors they read and write."""

    static: Inputs
    parameters: list[Tensor]
    evaluate: Evaluate
    upstream: Tensor | None = None
    loss: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()
    graphs: list[Graph] = field(default_factory=list)  # forward, then backward if there is one
    waiting: weakref.ref[_Token] | None = None
    noting: list[EssControl] = field(default_factory=list)  # controllers that a replay lets wait for a step

    @classmethod
    def of(cls, module: nn.Module, inputs: Inputs, evaluate: Evaluate) -> CapturedCall:
        """Captured after a few calls that leave no trace: libraries and allocators must be ready."""
        device = next(iter(inputs.values())).device
        static = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in inputs.items()}
        call = cls(static, [p for p in module.parameters() if p.requires_grad], evaluate)
        kept = [(x, x.clone()) for x in _tensors(module) if not x.requires_grad]
        try:
            if device.type == "cuda":
                on_a_side_stream(lambda: tried(call._both, "it"), device)
        finally:
            for x, before in kept:
                x.copy_(before)
        pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        capture = partial(captured, device=device, pool=pool, others_may_allocate=True)
        call.graphs.append(capture(call._forward)[0])
        if call.differentiable:
            call.graphs.append(capture(call._backward)[0])
            call.noting = [part for part in module.modules() if isinstance(part, EssControl) and module.training]
        return call

    @property
    def differentiable(self) -> bool:
        return self.loss is not None and self.loss.requires_grad

    @property
    def is_busy(self) -> bool:
        return self.waiting is not None and self.waiting() is not None

    def replayed(self, inputs: Inputs) -> Tensor:
        """The loss of these inputs."""
        loss: Tensor = _Replayed.apply(self, *inputs.values(), *self.parameters)
        for control in self.noting:
            control.count_call()
        return loss

    def _both(self) -> None:
        self._forward()
        if self.differentiable:
            self._backward()

    def _forward(self) -> None:
        with _casting_anew():
            self.loss = self.evaluate(self.static)
        if self.upstream is None:
            self.upstream = torch.ones_like(self.loss, requires_grad=False)

    def _backward(self) -> None:
        assert self.loss is not None
        wanted = [x for x in (*self.static.values(), *self.parameters) if x.requires_grad]
        found = iter(torch.autograd.grad(self.loss, wanted, self.upstream, allow_unused=True))
        inputs = (*self.static.values(), *self.parameters)
        self.gradients = tuple(next(found) if x.requires_grad else None for x in inputs)


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: CapturedCall, *inputs: Tensor) -> Tensor:
        for static, given in zip(call.static.values(), inputs, strict=False):
            static.copy_(given)
        call.graphs[0].replay()
        if any(ctx.needs_input_grad):
            ctx.call, ctx.token = call, _Token()
            call.waiting = weakref.ref(ctx.token)
        assert call.loss is not None
        return call.loss.detach().clone()  # the next replay overwrites it

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        call: CapturedCall = ctx.call
        if ctx.token is None:
            raise RuntimeError(
                "a graphed loss must be differentiated once, got a second backward pass; its memory is used again "
                "by the next call: make the objective without graphed=True for that."
            )
        ctx.token = None
        assert call.upstream is not None
        call.upstream.copy_(upstream)
        call.graphs[1].replay()
        return None, *(None if g is None else g.clone() for g in call.gradients)
