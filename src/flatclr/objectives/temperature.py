"""Where an objective's scale, the inverse temperature, comes from: a number, a parameter, or the ESS controller."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.checks import LARGEST_SCALE, require_number
from flatclr.objectives.ess_control import EssControl


class FixedScale(nn.Module):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.inverse_temperature = 1 / temperature

    def forward(self) -> float:
        return self.inverse_temperature

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:g}"


class LearnedScale(nn.Module):
    """Learned in log space, so that it stays positive."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.log_inverse_temperature = nn.Parameter(torch.tensor(-math.log(temperature)))

    def forward(self) -> Tensor:
        return self.log_inverse_temperature.exp()


class ControlledScale(nn.Module):
    def __init__(self, control: EssControl) -> None:
        super().__init__()
        self.control = control

    def forward(self) -> Tensor:
        # a copy: the controller changes its own in place before backward has read it
        beta = self.control.inverse_temperature
        return _snapshot(beta) if torch.compiler.is_compiling() else beta.clone()


@torch.library.custom_op("flatclr::snapshot", mutates_args=())
def _snapshot(x: Tensor) -> Tensor:
    """A copy the compiler cannot make again later, from a value that has changed since."""
    return x.clone()


@_snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def scale_source(temperature: float | EssControl, *, learn: bool) -> FixedScale | LearnedScale | ControlledScale:
    if isinstance(temperature, EssControl):
        if learn:
            raise ValueError(
                "learn_temperature must be False with an EssControl, got True; the controller already sets it."
            )
        return ControlledScale(temperature)
    require_number(
        "temperature",
        temperature,
        above=0,
        advice="pass exp(log_temperature) if you learn it in log space, or an EssControl.",
    )
    if not 1 / LARGEST_SCALE < temperature < LARGEST_SCALE:
        raise ValueError(
            f"temperature must be > {1 / LARGEST_SCALE:g} and < {LARGEST_SCALE:g}, got {temperature:g}; float32 cannot "
            "hold scores of others: 0.05 to 1 is usual."
        )
    return LearnedScale(temperature) if learn else FixedScale(temperature)
