"""Asking a run to stop where nothing is lost: by a signal of a scheduler or a person, or from code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, and the same run can go on
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
REPEATED_S = 1.0  # launchers pass on a Ctrl-C that the terminal sent as well


class StopAskedError(Exception):
    """A run was asked to stop, for the reason given, and is at a place where it can."""


class StopRequest:
    """A wish that a run stops after the step it is at, with a checkpoint.

    >>> request = StopRequest()
    >>> request.ask("the price of electricity")
    >>> request.reason
    'the price of electricity'
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._asked_at, self._may_raise = 0.0, False

    def ask(self, reason: str) -> None:
        """Stop soon; may be called from any thread, and by listeners.

        Args:
            reason: what is said of it, say the name of a signal.
        """
        if self.reason is None:
            self.reason, self._asked_at = reason, time.monotonic()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGTERM, SIGUSR1, SIGHUP and SIGINT ask, for the time of a `with` block.

        Signals that the process was started to ignore, as by nohup, stay ignored. A second SIGINT interrupts at once.
        Only the main thread of a program can hear signals; in another one nothing is changed.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in SIGNALS if in_main_thread}
        heard = [number for number in before if before[number] is not signal.SIG_IGN]
        try:
            for number in heard:
                signal.signal(number, self._hear)
            yield
        finally:
            for number in heard:
                signal.signal(number, before[number] or signal.SIG_DFL)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Where there is no state to lose, a signal need not wait: `StopAskedError` is raised wherever it arrives."""
        with self._raising(True):
            if self.reason is not None:
                raise StopAskedError(self.reason)
            yield

    @contextmanager
    def when_ready(self) -> Iterator[None]:
        """Inside of `at_once`, where there is state to lose: a signal waits for somebody to look, or for the end."""
        with self._raising(False):
            yield

    @contextmanager
    def _raising(self, may_raise: bool) -> Iterator[None]:
        before, self._may_raise = self._may_raise, may_raise
        try:
            yield
        finally:
            self._may_raise = before
        if before and self.reason is not None:
            raise StopAskedError(self.reason)

    def _hear(self, number: int, _frame: object) -> None:
        if self.reason is None:
            self.ask(signal.Signals(number).name)
            if self._may_raise:
                raise StopAskedError(self.reason)
        elif number == signal.SIGINT and time.monotonic() > self._asked_at + REPEATED_S:
            raise KeyboardInterrupt
