"""How fast a run goes, and how much of the time it waits for data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from flatclr.data.loading import Batch


class _Wait(NamedTuple):
    host_s: float
    device_before: torch.cuda.Event | None  # what was launched before the wait is done
    device_after: torch.cuda.Event | None  # what is launched after it begins

    @property
    def idle_s(self) -> float:
        """A GPU may have earlier steps to do while the host waits: its gap counts where it is shorter."""
        if self.device_before is None or self.device_after is None:
            return self.host_s
        gap_ms: float = self.device_before.elapsed_time(self.device_after)
        return min(self.host_s, 1e-3 * gap_ms)


class Throughput:
    """Images and views per second since the last restart; where batches were timed, the share of time without one."""

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self.batch_size, self.device = batch_size, device
        self.is_timing = False
        self.waits: deque[_Wait] = deque()
        self.restart(0)

    def restart(self, step: int) -> None:
        self.step, self.views, self.since, self.idle_s = step, 0, time.monotonic(), 0.0
        self.waits.clear()

    def count(self, views: int) -> None:
        """A step was taken, on so many views of each sample."""
        self.views += views

    def row(self, step: int) -> dict[str, float]:
        """At a moment when the device is done with the step."""
        elapsed_s = time.monotonic() - self.since
        self._settle(leave=0)
        rates = {
            "images_per_second": (step - self.step) * self.batch_size / elapsed_s,
            "views_per_second": self.views * self.batch_size / elapsed_s,
        }
        return rates | ({"data_wait_share": min(1.0, self.idle_s / elapsed_s)} if self.is_timing else {})

    def timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the host gets no more than a step ahead of a GPU, so that they do not pile up."""
        self.is_timing = True
        while True:
            if self.waits and (done := self.waits[-1].device_before) is not None:
                done.synchronize()
                self._settle(leave=1)
            before, start = self._mark(), time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.waits.append(_Wait(time.perf_counter() - start, before, self._mark()))
            yield batch

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _settle(self, leave: int) -> None:
        while len(self.waits) > leave:
            self.idle_s += self.waits.popleft().idle_s
