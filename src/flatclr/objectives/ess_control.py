"""Holding the effective sample size of the negatives at a target by adapting the inverse temperature."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatclr.accelerator import triton_runs, with_triton
from flatclr.checks import require_number

DEVICE_CODE = "flatclr.objectives.device.ess_control"
HALVINGS = 12  # of the clamps' range in log beta: from 1 to 100 that leaves 0.1 %, and 0.3 % of the ESS
FAR = 0.1  # an error is large from here on, as a share of the way from the target to 0 or to 1, the shorter one
PATIENCE = 5  # steps with a large error of one sign before steps grow
GROWTH, FASTEST = 1.3, 0.15  # from step to step, and up to here
UNATTENDED = 100  # calls that no optimizer's step follows, after which every call is a step

_controls: WeakSet[EssControl] = WeakSet()  # all there are: any optimizer's step may be the one they wait for


@dataclass
class _Calls:
    """What the host knows of the calls since the last step; apart, so that it is no setting of a captured graph."""

    noted: bool = False
    unattended: int = 0
    told: bool = False


@cache
def _follow_optimizers() -> None:
    """Once: every optimizer's step is a step of the controllers that noted something before it."""
    register_optimizer_step_post_hook(_advance_all)


def _advance_all(*_: object) -> None:
    for control in list(_controls):
        if control._calls.noted:
            control.advance()


class EssControl(nn.Module):
    """Holds the effective sample size of the negatives at a target; accepted wherever a temperature is.

        after each step    beta *= 1 + rate if mean ESS > target else 1 - rate,   clamped to [minimum, maximum]

    A larger inverse temperature beta sharpens the weights of the negatives and lowers their ESS. beta stays on the
    device, nothing waits for it, and it is part of the state dict. It is clamped, because embeddings that collapse to
    one point have ESS 1 at every beta. While the ESS stays far on one side of the target, steps grow from `rate` up
    to 15 %.

    A step is an optimizer's step: calls of the loss in training mode are noted, and the next `optimizer.step()`, of any
    optimizer of PyTorch, moves beta once by their mean ESS. Calls under `torch.no_grad()` are not noted. A call that
    nothing can learn from, on embeddings without a gradient, is a step of its own. `advance` takes a step by hand.

    The state dict holds beta, the target, the alarms and what was noted; rate and clamps are those of the constructor.

    With `per_anchor` every anchor has its own beta instead, found anew in every batch by bisection on its own
    negatives, as the perplexity of t-SNE sets its bandwidths: twelve more passes over the pairs, and no state that
    matters. No gradient passes through it.

    Args:
        target: share of the negatives that should carry the gradient, in (0, 1).
        rate: relative size of a step of beta near the target.
        initial: beta at the start.
        minimum: least beta.
        maximum: largest beta.
        per_anchor: solve for each anchor's beta. `inverse_temperature` is the mean of the last batch then, to be read.

    >>> control = EssControl(target=0.25)
    >>> control.observe(torch.tensor([0.9, 0.8]))
    >>> control.inverse_temperature
    tensor(10.1000)
    >>> z_a, z_b = torch.randn(2, 64, 16)
    >>> _, stats = flatclr.FlatNCE(EssControl(target=0.25, per_anchor=True)).with_stats(z_a, z_b)
    >>> bool((stats.ess - 0.25).abs().max() < 0.0025)
    True

    Reference: Chen et al. 2021; growing steps, after Riedmiller & Braun 1993; per anchor, after van der Maaten &
    Hinton 2008.
    """

    inverse_temperature: Tensor
    target_ess: Tensor
    _at_bound: Tensor
    _collapsed: Tensor
    clamped_steps: Tensor
    collapsed_steps: Tensor
    _noted_ess: Tensor
    _noted_calls: Tensor
    _stride: Tensor
    _run: Tensor

    def __init__(
        self,
        target: float = 0.25,
        *,
        rate: float = 0.01,
        initial: float = 10.0,
        minimum: float = 1.0,
        maximum: float = 100.0,
        per_anchor: bool = False,
    ) -> None:
        super().__init__()
        require_number("target", target, above=0, below=1, advice="0.2 to 0.4 is a good start.")
        require_number("rate", rate, above=0, below=1)
        require_number("minimum", minimum, above=0)
        require_number("maximum", maximum, above=minimum, advice="the clamps must leave beta room to move.")
        require_number("initial", initial)
        if not minimum <= initial <= maximum:
            raise ValueError(
                f"initial must be within [{minimum:g}, {maximum:g}], got {initial:g}; start between the clamps."
            )
        if not isinstance(per_anchor, bool):
            raise TypeError(f"per_anchor must be True or False, got {per_anchor!r}; pass a bool.")
        self.rate, self.minimum, self.maximum, self.per_anchor = rate, minimum, maximum, per_anchor
        self._target = target  # a host copy, so that the check against the batch size never waits
        self.register_buffer("inverse_temperature", torch.tensor(float(initial)))
        self.register_buffer("target_ess", torch.tensor(float(target)))
        self.register_buffer("_at_bound", torch.tensor(False))
        self.register_buffer("_collapsed", torch.tensor(False))
        self.register_buffer("clamped_steps", torch.tensor(0))
        self.register_buffer("collapsed_steps", torch.tensor(0))
        # numbers of float32, as those that a step of the trainer takes back when it is not finite
        self.register_buffer("_noted_ess", torch.tensor(0.0))  # sum over the calls since the last step
        self.register_buffer("_noted_calls", torch.tensor(0.0))
        self.register_buffer("_stride", torch.tensor(float(rate)))
        self.register_buffer("_run", torch.tensor(0.0))  # steps with a large error of one sign, with that sign
        self._calls = _Calls()
        _follow_optimizers()
        _controls.add(self)

    @property
    def target(self) -> float:
        """The mean ESS to hold; assign another between steps."""
        return self._target

    @target.setter
    def target(self, value: float) -> None:
        require_number("target", value, above=0, below=1)
        self._target = value
        self.target_ess.fill_(value)

    @property
    def clamped(self) -> bool:
        """Whether beta sits at a bound; waits for the device. `clamped_steps` counts the steps on which it did."""
        return bool(self._at_bound)

    @property
    def collapsed(self) -> bool:
        """Whether beta sits at its upper bound and the ESS is still more than half-way from the target to 1.

        Waits for the device. `collapsed_steps` counts the steps on which it was so.
        """
        return bool(self._collapsed)

    def require_reachable(self, negatives: int, target: float | None = None) -> None:
        """Refuse a target that no batch of this size can reach.

        Labels, ids and a margin may leave anchors fewer negatives than that. How many is known only when the batch has
        been computed: on the CPU a step then warns, on a GPU, which nothing waits for, `clamped_steps` tells.

        Args:
            negatives: per anchor, at most.
            target: one that is to come; None: the one in use.
        """
        wanted = self._target if target is None else target
        if wanted <= 1 / negatives:
            raise ValueError(
                f"target must be > 1/{negatives} = {1 / negatives:.3g}, the smallest ESS {negatives} negatives have, "
                f"got {wanted:g}; raise the target or use more negatives."
            )

    def warn_of_few_negatives(self, least_ess: Tensor) -> None:
        """Warn where labels, ids or a margin left too few negatives for the target.

        Args:
            least_ess: the mean over anchors of 1 / K, which is the smallest ESS they can have.
        """
        if not torch.compiler.is_compiling() and least_ess >= self._target:
            warnings.warn(
                f"target must be > {least_ess:.3g}, the smallest mean ESS of the negatives that labels, ids or the "
                f"margin left in this batch, got {self._target:g}; raise the target or mix the batch.",
                RuntimeWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def solved(self, ess_of: Callable[[Tensor], Tensor], anchors: int) -> Tensor:
        """The inverse temperatures at which every anchor has the target ESS, between the clamps.

        An ESS falls as its beta rises, so halving the range finds the one beta; all anchors are halved together.

        Args:
            ess_of: the ESS of every anchor at inverse temperatures [A].
            anchors: how many there are.

        Returns:
            [A].
        """
        low = self.inverse_temperature.new_full((anchors,), math.log(self.minimum))
        high = torch.full_like(low, math.log(self.maximum))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            too_flat = ess_of(middle.exp()) > self.target_ess
            low, high = torch.where(too_flat, middle, low), torch.where(too_flat, high, middle)
        return ((low + high) / 2).exp()

    def observe(self, ess: Tensor, inverse_temperature: float | Tensor | None = None) -> None:
        """Take one step of the rule; with `per_anchor`, only note what was solved.

        Args:
            ess: of every anchor of the global batch, or their mean.
            inverse_temperature: with `per_anchor`, what `solved` found [A].
        """
        self.note(ess, inverse_temperature)
        self.advance()

    @torch.no_grad()
    def note(self, ess: Tensor, inverse_temperature: float | Tensor | None = None) -> None:
        """Keep the ESS of a call for the next step. NaN embeddings say nothing and are not kept.

        Where no optimizer's step follows the calls, the hundredth and every later one is a step.

        Args:
            ess: of every anchor of the global batch, or their mean.
            inverse_temperature: with `per_anchor`, what `solved` found [A].
        """
        if self.per_anchor:
            assert isinstance(inverse_temperature, Tensor)
            self._note_solved(ess, inverse_temperature)
            return
        mean = ess if ess.dim() == 0 else ess.mean()
        if self._runs_in_one_launch(mean):
            with_triton(DEVICE_CODE).note(mean, self._noted_ess, self._noted_calls)
        else:
            mean = mean.to(self.inverse_temperature)
            self._noted_ess.add_(torch.where(mean.isnan(), 0.0, mean))
            self._noted_calls.add_(~mean.isnan())
        self._calls.noted = True
        if not torch.compiler.is_compiling():
            self.count_call()

    def count_call(self) -> None:
        """Remember on the host that a call was noted, as replays of a captured one are without it."""
        self._calls.noted = True
        self._calls.unattended += 1
        if self._calls.unattended < UNATTENDED or _is_capturing():
            return
        if not self._calls.told:
            self._calls.told = True
            warnings.warn(
                f"EssControl must be followed by an optimizer's step, got {UNATTENDED} calls without one; from now on "
                "every call is a step: call control.advance() after each update of your own.",
                RuntimeWarning,
                stacklevel=4,
            )
        self._step()

    def advance(self) -> None:
        """Move beta by one step of the rule, by the mean ESS of the calls since the last; without any, not at all.

        Every `optimizer.step()` does this. Call it where parameters are updated in another way.
        """
        self._calls.noted, self._calls.unattended = False, 0
        if not self.per_anchor:
            self._step()

    @torch.no_grad()
    def _step(self) -> None:
        """By the errors' sum over calls, not their mean: nothing is divided, so that all ways of it agree."""
        if self._runs_in_one_launch(self._noted_ess):
            self._step_in_one_launch()
            return
        ess, calls, target, stride = self._noted_ess, self._noted_calls, self.target_ess, self._stride
        noted, error = calls > 0, ess - target * calls
        upwards = torch.where(error > 0, 1.0, -1.0)
        far = error.abs() > FAR * torch.minimum(target, 1 - target) * calls
        turned = self._run * upwards < 0
        run = torch.where(far, torch.where(turned, upwards, self._run + upwards), 0.0)
        longer = torch.where(run.abs() > PATIENCE, (stride * GROWTH).clamp(max=self._fastest), stride)
        stride = torch.where(far, torch.where(turned, (stride / 2).clamp(min=self.rate), longer), self.rate)
        beta = (self.inverse_temperature * (1 + upwards * stride)).clamp(self.minimum, self.maximum)
        self._run.copy_(torch.where(noted, run, self._run))
        self._stride.copy_(torch.where(noted, stride, self._stride))
        self.inverse_temperature.copy_(torch.where(noted, beta, self.inverse_temperature))
        at_top = noted & (beta >= self.maximum)
        at_bound, collapsed = at_top | (noted & (beta <= self.minimum)), at_top & (ess > calls * ((1 + target) / 2))
        self._ring(torch.where(noted, at_bound, self._at_bound), torch.where(noted, collapsed, self._collapsed), noted)
        self._noted_ess.zero_()
        self._noted_calls.zero_()

    @property
    def _fastest(self) -> float:
        return max(self.rate, FASTEST)

    def _note_solved(self, ess_A: Tensor, beta_A: Tensor) -> None:
        """The mean beta, to be read, and the alarms: they ring where most anchors end at a clamp."""
        counted_A = ess_A.isfinite()
        mean = beta_A.masked_fill(~counted_A, 0.0).sum() / counted_A.sum()
        self.inverse_temperature.copy_(torch.where(mean.isfinite(), mean, self.inverse_temperature))
        close = 1 + 2 * math.log(self.maximum / self.minimum) / 2**HALVINGS  # as near to a clamp as halving comes
        at_top = beta_A * close >= self.maximum
        at_bound = at_top | (beta_A <= self.minimum * close)
        collapsed = at_top & (ess_A > (1 + self.target_ess) / 2)
        most = counted_A.sum() / 2
        self._ring((at_bound & counted_A).sum() > most, (collapsed & counted_A).sum() > most)

    def _ring(self, at_bound: Tensor, collapsed: Tensor, counted: Tensor | bool = True) -> None:
        self._at_bound.copy_(at_bound)
        self._collapsed.copy_(collapsed)
        self.clamped_steps.add_(self._at_bound & counted)
        self.collapsed_steps.add_(self._collapsed & counted)

    def _runs_in_one_launch(self, mean: Tensor) -> bool:
        if torch.compiler.is_compiling() or not mean.is_cuda or mean.device != self.inverse_temperature.device:
            return False
        return triton_runs(mean.device, _try_step)

    def _step_in_one_launch(self) -> None:
        """What `_step` says: a GPU would spend more time on its operations than on a small loss."""
        alarms = self._at_bound, self._collapsed, self.clamped_steps, self.collapsed_steps
        noted = self._noted_ess, self._noted_calls
        buffers = (*noted, self.inverse_temperature, self.target_ess, self._stride, self._run, *alarms)
        with_triton(DEVICE_CODE).step(buffers, self.rate, self._fastest, self.minimum, self.maximum)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: x for name, x in self._buffers.items() if x is not None and x.is_floating_point()}
        super()._apply(fn, recurse)
        for name, x in before.items():
            moved = getattr(self, name)
            if moved.dtype != torch.float32:  # half precision cannot hold steps of one per cent
                setattr(self, name, x.to(moved.device))
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _follow_optimizers()
        _controls.add(self)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: object, **kwargs: object
    ) -> None:
        for name, most in (("inverse_temperature", math.inf), ("target_ess", 1.0)):
            value = float(state_dict.get(f"{prefix}{name}", 0.5))
            if not 0 < value < most:  # also NaN, which no clamp and no later step would mend
                raise ValueError(
                    f"the state of EssControl must have {name} > 0{' and < 1' if most == 1 else ' and finite'}, got "
                    f"{value}; load an earlier checkpoint."
                )
        for name in ("_noted_ess", "_noted_calls", "_stride", "_run"):  # saved since steps can grow
            value = float(state_dict.setdefault(f"{prefix}{name}", getattr(self, name)))
            if not math.isfinite(value):
                raise ValueError(
                    f"the state of EssControl must have a finite {name}, got {value}; load an earlier checkpoint."
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if f"{prefix}target_ess" in state_dict:
            self._target = float(state_dict[f"{prefix}target_ess"])
            self.inverse_temperature.clamp_(self.minimum, self.maximum)

    def extra_repr(self) -> str:
        rule = "per_anchor=True" if self.per_anchor else f"rate={self.rate:g}"
        return f"target={self._target:g}, {rule}, minimum={self.minimum:g}, maximum={self.maximum:g}"


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _try_step(device: torch.device) -> None:
    with_triton(DEVICE_CODE).try_launch(device)
