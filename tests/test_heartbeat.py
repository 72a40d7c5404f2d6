"""No more than ten seconds without a sign of life, whatever takes long."""

from __future__ import annotations

import io
import json
import threading

import pytest
from rich.console import Console

from flatclr import heartbeat
from flatclr.heartbeat import LOOK_S, SILENCE_S, Heartbeat
from flatclr.training import display
from flatclr.training.display import Bar, Display, JsonLines, Lines
from flatclr.training.events import Progressed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def piped() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_a_heartbeat_looks_again_and_again_until_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.001)
    thrice, looks = threading.Event(), []

    def alive() -> None:
        looks.append(threading.current_thread())
        if len(looks) == 3:
            thrice.set()

    with Heartbeat(alive) as beating:
        assert thrice.wait(10)
    assert looks[0] is not threading.main_thread()
    assert beating.thread is not None
    assert not beating.thread.is_alive()


def test_a_sign_is_due_before_ten_seconds_are_over() -> None:
    assert display.LINE_S < SILENCE_S < SILENCE_S + LOOK_S < 10


def test_lines_say_what_goes_on_where_nothing_was_said(clock: list[float]) -> None:
    console = piped()
    lines = Lines(console)
    for moment in (106.0, 107.0, 113.0):  # nothing tells how far it is
        clock[0] = moment
        lines.alive()
    lines.moved("training", 3, 840)  # which says it, as the last line of progress is old
    for moment in (118.0, 119.0, 120.0):
        clock[0] = moment
        lines.alive()
    lines.said()
    clock[0] = 126.0
    lines.alive()

    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "still at it: preparing",
        "training 3/840",
        "still at it: training 3/840",
    ]


def test_json_lines_say_again_how_far_it_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = JsonLines()
    sign = Progressed(5, "training", 5, 840)
    lines(sign)  # too soon after the beginning to be said
    for moment in (104.0, 107.0, 108.0):
        clock[0] = moment
        lines.alive()

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [sign.row()]


def test_a_bar_is_there_though_nothing_tells_how_far_it_is(clock: list[float]) -> None:
    bar = Bar(Console(force_terminal=True, width=60, file=io.StringIO()))
    bar.alive()
    assert bar.task is None
    clock[0] = 107.0
    bar.alive()
    bar.stop()
    assert bar.progress.tasks[0].description == "preparing"


def test_a_display_that_says_nothing_has_no_heartbeat() -> None:
    for silent in (Display(quiet=True), Display(brief=True), JsonLines(quiet=True)):
        with silent as shown:
            assert shown.heartbeat.thread is None
    with Display(console=piped()) as shown:
        assert shown.heartbeat.thread is not None
