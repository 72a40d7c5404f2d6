"""Asked to stop, a run leaves a checkpoint, one line and the code that means "resume me"."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flatclr.checkpoint import load_checkpoint
from flatclr.runs import RunDirectory
from flatclr.training import StopRequest, TrainingInterruptedError
from flatclr.training.build import Parts
from flatclr.training.config import TrainConfig
from flatclr.training.events import Event, Logged, Stopped
from flatclr.training.instruments import evaluation_metrics
from flatclr.training.stopping import RESUME_ME, StopAskedError
from flatclr.training.trainer import train
from tests.support.training import assert_same, wait_for
from tests.support.training_worker import config, network_of

SMALL = (
    *(
        "train",
        "--batch-size",
        "8",
        "--device",
        "cpu",
        "--seed",
        "3",
        "--log-every",
        "1",
        "--checkpoint-every",
        "100000",
    ),
    *("--set", "encoder_options={norm: none, width: 8}", "--set", "eval_samples=100", "--set", "eval_start=false"),
)


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """What runs the tests may ignore some, as nohup and shells do in the background; processes inherit that."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "flatclr", *SMALL, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_a_checkpoint_a_line_and_the_code_that_means_resume_me(name: str, tmp_path: Path) -> None:
    process = start("--steps", "100000", "--out", "run", "--json", cwd=tmp_path)
    wait_for((tmp_path / "run" / "metrics.jsonl").exists, process)
    asked = time.monotonic()
    process.send_signal(getattr(signal, name))
    out, said = process.communicate(timeout=60)
    assert process.returncode == RESUME_ME, said
    assert time.monotonic() - asked < 10
    step = load_checkpoint(tmp_path / "run" / "checkpoint").step
    assert said.strip() == (
        f"flatclr: interrupted by {name}; from the checkpoint of step {step} go on with: flatclr train --resume run"
    )
    last = json.loads(out.splitlines()[-1])
    assert (last["kind"], last["step"], last["reason"]) == ("stopped", step, name)
    assert last["message"] in said


def test_the_same_call_begins_a_run_and_goes_on_with_it_to_the_same_weights(tmp_path: Path) -> None:
    whole, stop = train(config(tmp_path / "whole", 12)).path, StopRequest()
    again = config(tmp_path / "run", 12, log_every=1)

    def listen(event: Event) -> None:
        if isinstance(event, Logged) and event.step == 5:
            stop.ask("a listener")

    with pytest.raises(TrainingInterruptedError):
        train(again, auto_resume=True, on_event=[listen], stop=stop)
    assert train(again, auto_resume=True).steps == 12
    assert_same(network_of(tmp_path / "run"), network_of(whole))
    with pytest.raises(
        ValueError, match=r"steps must be that of the run in .*run, 12, got 400; leave out --auto-resume"
    ):
        train(again.changed(steps=400), auto_resume=True)
    with pytest.raises(ValueError, match=r"objective must be that of the run in .*run, 'flatnce', got 'infonce'"):
        train(again.changed(objective="infonce"), auto_resume=True)


def test_a_listener_may_ask_a_run_to_stop_and_it_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, stop, heard = train(config(tmp_path / "whole", 12)).path, StopRequest(), list[Event]()

    def listen(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Logged) and event.step == 5:
            stop.ask("a listener")

    with pytest.raises(
        TrainingInterruptedError, match="interrupted by a listener; from the checkpoint of step 5 go on"
    ):
        train(config(tmp_path / "run", 12, log_every=1, checkpoint_every=100), on_event=[listen], stop=stop)
    assert isinstance(heard[-1], Stopped)
    train(TrainConfig(), resume=tmp_path / "run")
    assert_same(network_of(tmp_path / "run"), network_of(whole))


@pytest.mark.parametrize("step", [0, 4])
def test_an_evaluation_does_not_keep_a_signal_waiting(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stop = train(config(tmp_path / "whole", 8, eval_start=True)).path, StopRequest()

    def endless(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    settings = config(tmp_path / "run", 8, eval_start=step == 0, eval_every=4, checkpoint_every=100)
    with monkeypatch.context() as patch:
        patch.setattr("flatclr.training.loop.evaluation_metrics", endless)
        with stop.on_signals(), pytest.raises(TrainingInterruptedError):
            train(settings, stop=stop)
    assert train(TrainConfig(), resume=tmp_path / "run").steps == 8
    assert_same(network_of(tmp_path / "run"), network_of(whole))


@pytest.mark.parametrize("step", [0, 4, 8])
def test_an_evaluation_that_a_signal_cut_short_is_made_up(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(parts: Parts, at: int, *signs: Any, **options: Any) -> dict[str, Any]:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return evaluation_metrics(parts, at, *signs, **options)

    settings = config(tmp_path / "run", 8, eval_start=True, eval_every=4, checkpoint_every=100)
    with monkeypatch.context() as patch:
        patch.setattr("flatclr.training.loop.evaluation_metrics", endless)
        for _ in range(2):  # also where the one that was to be made up is cut short again
            stop = StopRequest()
            with stop.on_signals(), pytest.raises(TrainingInterruptedError):
                train(settings, auto_resume=True, stop=stop)
    resumed = train(settings, auto_resume=True)
    whole = train(config(tmp_path / "whole", 8, eval_start=True, eval_every=4))
    rows = {
        run: [row for row in RunDirectory(run).metrics() if row["kind"] == "evaluation"]
        for run in (resumed.path, whole.path)
    }
    assert [row["step"] for row in rows[resumed.path]] == [0, 4, 8]
    assert rows[resumed.path] == rows[whole.path]
    assert resumed.metrics == whole.metrics


def test_a_signal_before_the_first_step_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(60)

    monkeypatch.setattr("flatclr.training.build.open_dataset", slow)
    stop, heard = StopRequest(), list[Event]()
    with (
        stop.on_signals(),
        pytest.raises(TrainingInterruptedError, match="interrupted by SIGUSR1 before the first step"),
    ):
        train(config(tmp_path / "run", 8), stop=stop, on_event=[heard.append])
    assert [event.row()["reason"] for event in heard] == ["SIGUSR1"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
def test_signals_ask_for_a_stop_and_handlers_are_put_back(number: signal.Signals) -> None:
    before, stop = signal.getsignal(number), StopRequest()
    with stop.on_signals():
        os.kill(os.getpid(), number)
    assert stop.reason == number.name
    assert signal.getsignal(number) is before


def test_a_run_has_its_time_to_save_where_its_caller_has_nothing_to_lose(tmp_path: Path) -> None:
    """As in a study, which a signal cuts short wherever it is, but for the training inside of it."""
    stop = StopRequest()

    def listen(event: Event) -> None:
        if isinstance(event, Logged) and event.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.reason == "SIGTERM"  # and nothing was raised

    settings = config(tmp_path / "run", 12, log_every=1, checkpoint_every=100)
    with stop.on_signals(), stop.at_once(), pytest.raises(TrainingInterruptedError, match="checkpoint of step 5"):
        train(settings, on_event=[listen], stop=stop)
    after = StopRequest()
    with after.on_signals(), after.at_once():
        with after.when_ready():
            pass
        with pytest.raises(StopAskedError, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_nobody_looked_for_is_raised_where_there_is_nothing_to_lose_again() -> None:
    stop, reached = StopRequest(), []

    def work() -> None:
        with stop.at_once():
            with stop.when_ready():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append("the last checkpoint")
            reached.append("what has nothing to save")

    with stop.on_signals(), pytest.raises(StopAskedError, match="SIGTERM"):
        work()
    assert reached == ["the last checkpoint"]


def test_an_error_is_not_hidden_by_a_signal_that_came_before_it() -> None:
    stop = StopRequest()

    def work() -> None:
        with stop.at_once(), stop.when_ready():
            stop.ask("a test")
            raise ValueError("another")

    with pytest.raises(ValueError, match="another"):
        work()


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.reason is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    def listen() -> str | None:
        with StopRequest().on_signals():
            return "listened"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(listen).result() == "listened"


def test_a_second_interrupt_is_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatclr.training.stopping.REPEATED_S", 0.0)
    stop = StopRequest()
    with stop.on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_auto_resume_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="out must be given to go on with what it holds"):
        train(TrainConfig(), auto_resume=True)
