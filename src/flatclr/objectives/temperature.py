"""Where an objective's inverse temperature comes from: a number, a parameter, or the ESS controller."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.checks import require_number
from flatclr.objectives.ess_control import EssControl


class FixedTemperature(nn.Module):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.value = temperature

    def forward(self) -> float:
        return 1 / self.value

    def extra_repr(self) -> str:
        return f"{self.value:g}"


class LearnedTemperature(nn.Module):
    """Learned in log space, so that it stays positive."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.log_inverse_temperature = nn.Parameter(torch.tensor(-math.log(temperature)))

    def forward(self) -> Tensor:
        return self.log_inverse_temperature.exp()


class ControlledTemperature(nn.Module):
    def __init__(self, control: EssControl) -> None:
        super().__init__()
        self.control = control

    def forward(self) -> Tensor:
        # a copy: the controller changes its own in place before backward has read it
        return self.control.inverse_temperature.clone()


def temperature_source(
    temperature: float | EssControl, *, learn: bool
) -> FixedTemperature | LearnedTemperature | ControlledTemperature:
    if isinstance(temperature, EssControl):
        if learn:
            raise ValueError(
                "learn_temperature must be False with an EssControl, got True; the controller already sets it."
            )
        return ControlledTemperature(temperature)
    require_number(
        "temperature",
        temperature,
        above=0,
        advice="pass exp(log_temperature) if you learn it in log space, or an EssControl.",
    )
    return LearnedTemperature(temperature) if learn else FixedTemperature(temperature)
