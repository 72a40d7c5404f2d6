"""Images, views and the share of its time a run spends without data are those of the clock."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from flatclr.training import throughput
from flatclr.training.throughput import Throughput

CPU = torch.device("cpu")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(throughput, "time", SimpleNamespace(monotonic=made, perf_counter=made))
    return made


def batches_every(seconds: float, clock: Clock) -> Iterator[tuple[Tensor, ...]]:
    for _ in range(4):
        clock.now += seconds
        yield (torch.zeros(1),)


def test_the_share_of_time_without_data_is_that_of_the_clock(clock: Clock) -> None:
    measured = Throughput(batch_size=10, device=CPU)
    for _ in measured.timed(batches_every(1.0, clock)):
        clock.now += 3.0  # the step
    assert measured.row(4)["data_wait_share"] == 0.25
    measured.restart(4)
    clock.now += 2.0
    assert measured.row(5)["data_wait_share"] == 0.0


def test_images_and_views_are_counted_apart(clock: Clock) -> None:
    measured = Throughput(batch_size=10, device=CPU)
    for views in (2, 2, 8, 8):
        clock.now += 4.0
        measured.count(views)
    assert measured.row(4) == {"images_per_second": 40 / 16, "views_per_second": 200 / 16}
    measured.restart(4)
    clock.now += 2.0
    measured.count(8)
    assert measured.row(5) == {"images_per_second": 5.0, "views_per_second": 40.0}


def test_waiting_while_the_device_has_earlier_steps_to_do_does_not_count(clock: Clock) -> None:
    class Event:
        def elapsed_time(self, end: Any) -> float:
            return 250.0  # ms without work

        def synchronize(self) -> None:
            clock.now += 0.5  # the device catches up

    class OnDevice(Throughput):
        def _mark(self) -> Any:
            return Event()

    measured = OnDevice(batch_size=1, device=CPU)
    list(measured.timed(batches_every(1.0, clock)))
    assert clock.now == 4 * 1.0 + 4 * 0.5  # every batch but the first waits for the device, and so does the end
    assert measured.row(4)["data_wait_share"] == pytest.approx(4 * 0.25 / clock.now)
