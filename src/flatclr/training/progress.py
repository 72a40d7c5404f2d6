"""Signs of life: whatever takes long says how far it is, and a run how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from flatclr.training.events import Event, Forecast, Progressed

SIGN_S = 1.0  # between two signs of life
FORECAST_S, FORECAST_STEPS = 3.0, 3  # of steps from which a forecast is made
LONG_S = 20 * 60  # on a CPU, from which a smaller run is suggested


class Pace(NamedTuple):
    """What a step takes, and how many steps said so."""

    step_s: float
    steps: int


class SignsOfLife:
    """Passes on how far something is, at most once a second.

    Args:
        tell: gets the events.

    >>> signs = SignsOfLife(print)
    >>> signs("evaluation", 1, 10)  # too soon after it was made
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell, self.step, self.last = tell, 0, time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last >= SIGN_S:
            self.tell(Progressed(self.step, what, done, total))
            self.last = time.monotonic()


class Forecaster:
    """How long a run will take: by steps that are tried before it begins, else by its first ones.

    Args:
        total_steps: the step the run ends with.
        on_cpu: whether steps are over when they return, and a long run gets a suggestion.
        size: the side of the images in pixels; None where there are none.
        encoder: its name, so that nothing is suggested that is there already.
    """

    def __init__(self, total_steps: int, *, on_cpu: bool, size: int | None, encoder: str) -> None:
        self.total_steps, self.on_cpu, self.size, self.encoder = total_steps, on_cpu, size, encoder
        self.first, self.since, self.told = 0, 0.0, False

    def begin(self, step: int) -> None:
        """A step is over that is not like the others: the first, which sets things up."""
        self.first, self.since = step, time.monotonic()

    def after(self, step: int, *, synchronised: bool, evaluations: int, evaluation_s: float) -> Forecast | None:
        """The forecast, once, as soon as there is one.

        Args:
            step: how many were taken.
            synchronised: whether the device is done with them.
            evaluations, evaluation_s: that are to come, and what one takes.
        """
        taken, elapsed_s = step - self.first, time.monotonic() - self.since
        ripe = synchronised or (self.on_cpu and elapsed_s >= FORECAST_S and taken >= FORECAST_STEPS)
        if self.told or taken == 0 or not ripe:
            return None
        pace = Pace(elapsed_s / taken, taken)
        return self.at(step, pace, evaluations=evaluations, evaluation_s=evaluation_s)

    def at(self, step: int, pace: Pace, *, evaluations: int, evaluation_s: float) -> Forecast:
        """The forecast after a step at this pace."""
        self.told = True
        seconds = (self.total_steps - step) * pace.step_s + evaluations * evaluation_s
        steps = "1 step" if pace.steps == 1 else f"{pace.steps} steps"
        return Forecast(
            step, seconds, f"about {duration(seconds)} to go, by the pace of {steps}", self._advice(seconds)
        )

    def _advice(self, seconds: float) -> str:
        if not self.on_cpu or seconds < LONG_S:
            return ""
        size = self.size or 0
        smaller = f"--image-size {size // 2} (about a quarter of the time)" if size >= 48 else ""
        simpler = "--encoder cnn" if self.encoder not in ("cnn", "mlp") and size else ""
        return f"for a shorter run {' or '.join(way for way in (smaller, simpler, 'fewer --epochs') if way)}"


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (0.4, 42, 150, 5400, 200000)]
    ['1 s', '42 s', '3 min', '1.5 h', '56 h']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{-(-seconds // 60):.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
