"""Holding the effective sample size of the negatives at a target by adapting the inverse temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from flatclr.checks import require_number


class EssControl(nn.Module):
    """Holds the effective sample size of the negatives at a target; accepted wherever a temperature is.

        after each step    beta *= 1 + rate if mean ESS > target else 1 - rate,   clamped to [minimum, maximum]

    A larger inverse temperature beta sharpens the weights of the negatives and lowers their ESS. beta stays on the
    device, nothing waits for it, and it is part of the state dict. It is clamped, because embeddings that collapse to
    one point have ESS 1 at every beta.

    It steps on every call of a module in training mode, as batch normalisation does. The state dict holds beta, the
    target and the alarms; rate and clamps are those of the constructor.

    Args:
        target: share of the negatives that should carry the gradient, in (0, 1).
        rate: relative size of a step of beta.
        initial: beta at the start.
        minimum: least beta.
        maximum: largest beta.

    >>> control = EssControl(target=0.25)
    >>> control.observe(torch.tensor([0.9, 0.8]))
    >>> control.inverse_temperature
    tensor(10.1000)

    Reference: Chen et al. 2021.
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
        self.rate, self.minimum, self.maximum = rate, minimum, maximum
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

        Args:
            negatives: per anchor.
            target: one that is to come; None: the one in use.
        """
        wanted = self._target if target is None else target
        if wanted <= 1 / negatives:
            raise ValueError(
                f"target must be > 1/{negatives} = {1 / negatives:.3g}, the smallest ESS {negatives} negatives have, "
                f"got {wanted:g}; raise the target or use more negatives."
            )

    @torch.no_grad()
    def observe(self, ess: Tensor) -> None:
        """Take one step of the rule.

        Args:
            ess: of every anchor of the global batch, or their mean.
        """
        mean = ess.mean().to(self.inverse_temperature)
        factor = torch.where(mean > self.target_ess, 1 + self.rate, 1 - self.rate)
        factor = torch.where(torch.isfinite(mean), factor, 1.0)  # a step with NaN embeddings says nothing
        self.inverse_temperature.mul_(factor).clamp_(self.minimum, self.maximum)
        at_top = self.inverse_temperature >= self.maximum
        self._at_bound.copy_(at_top | (self.inverse_temperature <= self.minimum))
        self._collapsed.copy_(at_top & (mean > (1 + self.target_ess) / 2))
        self.clamped_steps.add_(self._at_bound)
        self.collapsed_steps.add_(self._collapsed)

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
        return f"target={self._target:g}, rate={self.rate:g}, minimum={self.minimum:g}, maximum={self.maximum:g}"
