"""A thread that looks after whether something was said of late: work that tells nothing is seen to go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

LOOK_S = 1.0  # between two looks
SILENCE_S = 7.0  # after which a sign of life is due; with a look and a busy machine, less than 10


class Heartbeat:
    """Calls a function every second until it is left.

    Args:
        alive: says a sign of life where one is due; called from another thread.

    >>> with Heartbeat(lambda: None):
    ...     pass
    """

    def __init__(self, alive: Callable[[], None]) -> None:
        self.alive, self.over = alive, threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self._look, name="flatclr-heartbeat", daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(LOOK_S):
            self.alive()
