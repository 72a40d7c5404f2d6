"""Holding the effective sample size of the negatives at a target by adapting the inverse temperature."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from flatclr.accelerator import triton_runs, with_triton
from flatclr.checks import require_number

DEVICE_CODE = "flatclr.objectives.device.ess_control"
HALVINGS = 12  # of the clamps' range in log beta: from 1 to 100 that leaves 0.1 %, and 0.3 % of the ESS


class EssControl(nn.Module):
    """Holds the effective sample size of the negatives at a target; accepted wherever a temperature is.

        after each step    beta *= 1 + rate if mean ESS > target else 1 - rate,   clamped to [minimum, maximum]

    A larger inverse temperature beta sharpens the weights of the negatives and lowers their ESS. beta stays on the
    device, nothing waits for it, and it is part of the state dict. It is clamped, because embeddings that collapse to
    one point have ESS 1 at every beta.

    It steps on every call of a module in training mode, as batch normalisation does. The state dict holds beta, the
    target and the alarms; rate and clamps are those of the constructor.

    With `per_anchor` every anchor has its own beta instead, found anew in every batch by bisection on its own
    negatives, as the perplexity of t-SNE sets its bandwidths: twelve more passes over the pairs, and no state that
    matters. No gradient passes through it.

    Args:
        target: share of the negatives that should carry the gradient, in (0, 1).
        rate: relative size of a step of beta.
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

    Reference: Chen et al. 2021; per anchor, after van der Maaten & Hinton 2008.
    """

    inverse_temperature: Tensor
    target_ess: Tensor
    _at_bound: Tensor
    _collapsed: Tensor
    clamped_steps: Tensor
    collapsed_steps: Tensor

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

    @torch.no_grad()
    def observe(self, ess: Tensor, inverse_temperature: float | Tensor | None = None) -> None:
        """Take one step of the rule; with `per_anchor`, only note what was solved.

        Args:
            ess: of every anchor of the global batch, or their mean.
            inverse_temperature: with `per_anchor`, what `solved` found [A].
        """
        if self.per_anchor:
            assert isinstance(inverse_temperature, Tensor)
            self._note(ess, inverse_temperature)
            return
        mean = ess if ess.dim() == 0 else ess.mean()
        if self._is_stepped_in_one_launch(mean):
            self._step_in_one_launch(mean)
            return
        mean = mean.to(self.inverse_temperature)
        above, below = mean > self.target_ess, mean <= self.target_ess  # neither, if NaN embeddings say nothing
        self.inverse_temperature.mul_(torch.where(above, 1 + self.rate, torch.where(below, 1 - self.rate, 1.0)))
        self.inverse_temperature.clamp_(self.minimum, self.maximum)
        at_top = self.inverse_temperature >= self.maximum
        self._ring(at_top | (self.inverse_temperature <= self.minimum), at_top & (mean > (1 + self.target_ess) / 2))

    def _note(self, ess_A: Tensor, beta_A: Tensor) -> None:
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

    def _ring(self, at_bound: Tensor, collapsed: Tensor) -> None:
        self._at_bound.copy_(at_bound)
        self._collapsed.copy_(collapsed)
        self.clamped_steps.add_(self._at_bound)
        self.collapsed_steps.add_(self._collapsed)

    def _is_stepped_in_one_launch(self, mean: Tensor) -> bool:
        if torch.compiler.is_compiling() or not mean.is_cuda or mean.device != self.inverse_temperature.device:
            return False
        return triton_runs(mean.device, _try_step)

    def _step_in_one_launch(self, mean: Tensor) -> None:
        """What `observe` says: a GPU would spend more time on its operations than on a small loss."""
        alarms = self._at_bound, self._collapsed, self.clamped_steps, self.collapsed_steps
        buffers = (self.inverse_temperature, self.target_ess, *alarms)
        step = with_triton(DEVICE_CODE).step
        step(mean, buffers, 1 + self.rate, 1 - self.rate, self.minimum, self.maximum)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        beta, target = self.inverse_temperature, self.target_ess
        super()._apply(fn, recurse)
        if self.inverse_temperature.dtype != torch.float32:
            # half precision cannot hold steps of one per cent
            self.inverse_temperature = beta.to(self.inverse_temperature.device)
            self.target_ess = target.to(self.target_ess.device)
        return self

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
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if f"{prefix}target_ess" in state_dict:
            self._target = float(state_dict[f"{prefix}target_ess"])
            self.inverse_temperature.clamp_(self.minimum, self.maximum)

    def extra_repr(self) -> str:
        rule = "per_anchor=True" if self.per_anchor else f"rate={self.rate:g}"
        return f"target={self._target:g}, {rule}, minimum={self.minimum:g}, maximum={self.maximum:g}"


def _try_step(device: torch.device) -> None:
    with_triton(DEVICE_CODE).try_launch(device)
