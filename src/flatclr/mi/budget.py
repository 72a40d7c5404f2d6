"""How long an estimate may take: a clock that is looked at between steps, and steps that stand in for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

TRAINING = "train longer"
_TRAINING_SHARE = 0.95  # of the seconds; what was learned has to be read as well
_BUSY = 3.0  # how much slower a busy machine may be before its clock counts


@dataclass(frozen=True)
class Progress:
    """Where an estimate stands.

    Args:
        stage: what is done now.
        best_nats: the best held-out value so far; None before there is one.
        seconds: of the budget, since the start.

    >>> Progress("densities", best_nats=0.8, seconds=12.0).stage
    'densities'
    """

    stage: str
    best_nats: float | None
    seconds: float


@dataclass
class Budget:
    """Time that runs from the start, or a number of steps in its place.

    The clock is only looked at by `over`, at fixed points: between checks of a training and before a stage that could
    be left out. Each look counts as a step beyond those of the training before it, so that the steps at which the time
    was up, given as `steps`, end everything at the same point again.

    Args:
        seconds: of work of this thread, whatever else the machine does, but at most three times as many of the wall
            clock; the last twentieth is kept for reading what was learned. None: no limit.
        steps: at which to end instead; None: no limit.
        report: is told where the estimate stands.

    >>> budget = Budget(steps=100)
    >>> budget.over(after=60), budget.over(after=60), budget.steps_done
    (False, True, 61)
    """

    seconds: float | None = None
    steps: int | None = None
    report: Callable[[Progress], None] | None = None
    steps_done: int = 0
    ended: bool = False
    best_nats: float | None = None
    undone: list[str] = field(default_factory=list)  # what more time would do
    _wall: float = field(default_factory=time.monotonic)
    _work: float = field(default_factory=time.thread_time)

    @property
    def spent_seconds(self) -> float:
        return max(time.thread_time() - self._work, (time.monotonic() - self._wall) / _BUSY)

    def over(self, after: int = 0, *, leaves: str = TRAINING) -> bool:
        """Whether to end here, `after` more steps; once it is over it stays so.

        Args:
            after: steps of training since the last look.
            leaves: what is then left undone.
        """
        reached = self.steps_done + after + 1
        late = self.seconds is not None and self.spent_seconds >= _TRAINING_SHARE * self.seconds
        self.ended = self.ended or late or (self.steps is not None and reached > self.steps)
        if not self.ended:
            self.steps_done = reached
        elif leaves not in self.undone:
            self.undone.append(leaves)
        return self.ended

    def start_over(self) -> None:
        """For the same again, on other rows: it ends after as many steps as this did, or not before its own end.

        >>> budget = Budget(steps=1)
        >>> budget.over(after=5), budget.start_over(), budget.ended, budget.steps
        (True, None, False, 0)
        """
        self.steps, self.seconds = (self.steps_done if self.ended else None), None
        self.steps_done, self.ended, self.undone = 0, False, []

    def tell(self, stage: str, nats: float | None = None) -> None:
        """Report a stage, and a held-out value if there is one."""
        if nats is not None:
            self.best_nats = nats if self.best_nats is None else max(self.best_nats, nats)
        if self.report is not None:
            self.report(Progress(stage, self.best_nats, self.spent_seconds))
