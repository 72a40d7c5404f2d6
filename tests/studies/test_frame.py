"""The frame of studies: nothing is computed twice, nothing is lost, and claims are judged by what is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flatclr import studies
from flatclr.cli.main import main
from flatclr.studies import Run, execution
from flatclr.training.stopping import StopRequest
from tests.support import toy_study

TOY = toy_study.__name__
START = f"from flatclr import studies; studies.STUDIES['toy'] = '{TOY}'; from flatclr.cli.main import main; main()"
RUNS = 7  # two arms of three seeds, and one that follows from them


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(studies.STUDIES, "toy", TOY)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def kept(home: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (home / "toy" / "runs").glob("*.json")}


def numbers(home: Path) -> dict[str, float]:
    return {name: json.loads(text)["numbers"]["nats"] for name, text in kept(home).items()}


def calls(home: Path) -> Counter[str]:
    return Counter((home / "toy" / "calls.txt").read_text().split())


def test_a_study_leaves_table_figure_verdicts_page_and_overview(tmp_path: Path) -> None:
    told: list[studies.Progress] = []
    result = studies.run("toy", out=tmp_path, device="cpu", progress=told.append)
    assert result.complete
    assert (len(result.found), result.planned) == (RUNS, RUNS)
    assert [verdict.word for verdict in result.verdicts] == ["held", "held"]
    assert [row["arm"] for row in result.table] == ["one", "two, larger", "best again"]
    assert result.figures["figure"].read_bytes().startswith(b"\x89PNG")
    page = result.page.read_text()
    for part in (
        "**held**",
        "difference above 0",
        "7 of 7 runs are kept",
        "flatclr study toy",
        "Seeds 0, 1, 2",
        "commit",
    ):
        assert part in page
    assert [p.done for p in told] == list(range(RUNS + 1))
    overview = result.overview.read_text()
    assert "[held](toy/README.md)" in overview
    for name in studies.STUDIES:
        for claim in studies.load_study(name).claims:
            assert claim.statement in overview
    assert "ImageNet itself" in overview


def test_a_second_call_computes_nothing_and_more_seeds_only_those(tmp_path: Path) -> None:
    studies.run("toy", out=tmp_path, device="cpu", seeds=2)
    before = kept(tmp_path)
    again = studies.run("toy", out=tmp_path, device="cpu", seeds=2)
    assert kept(tmp_path) == before
    assert set(calls(tmp_path).values()) == {1}
    assert again.complete
    (tmp_path / "toy" / "runs" / "best-again-s0.json").unlink()  # depends on the seeds
    studies.run("toy", out=tmp_path, device="cpu", seeds=3)
    assert {name: count for name, count in calls(tmp_path).items() if count > 1} == {"best-again-s0": 2}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_study_goes_on_where_it_was(jobs: int, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", TOY, str(tmp_path), "0.5", str(jobs)]
    process = subprocess.Popen(command, env=environment, cwd=root, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while len(kept(tmp_path)) < 2 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = kept(tmp_path)
    assert 2 <= len(before) < RUNS
    result = studies.run("toy", out=tmp_path, device="cpu")
    assert result.complete
    assert {name: text for name, text in kept(tmp_path).items() if name in before} == before
    repeated = [name for name, count in calls(tmp_path).items() if count > 1]
    assert not {f"{name}.json" for name in repeated} & set(before)
    assert len(repeated) <= jobs
    whole = tmp_path / "whole"
    studies.run("toy", out=whole, device="cpu")
    assert numbers(tmp_path) == numbers(whole)


@contextmanager
def started(home: Path, jobs: int) -> Iterator[subprocess.Popen[str]]:
    """The command at work at so many runs, which sleep for a minute and have nothing to save."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", START, "study", "toy", "--device", "cpu", "--out", str(home), "--jobs", str(jobs)]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1", "TOY_SECONDS": "60"}
    process = subprocess.Popen(
        command, env=environment, cwd=root, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (home / "toy" / "calls.txt").exists() or sum(calls(home).values()) < jobs:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_study_that_is_killed_alone_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path, 2) as process:
        process.kill()
        process.communicate(timeout=20)  # ends when the last process does that can still write there
    assert sum(calls(tmp_path).values()) == 2
    assert kept(tmp_path) == {}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_ends_a_study_with_its_page_and_leaves_no_process(jobs: int, tmp_path: Path) -> None:
    """Its runs do not keep it waiting."""
    with started(tmp_path, jobs) as process:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=40)[1]  # also ends when the last process does that can still write there
        assert process.returncode == 75
        assert said.splitlines()[-1] == "flatclr: stopped by SIGTERM, 0 of 6 runs are kept; the same command goes on."
        assert "0 of 6 runs are there" in (tmp_path / "toy" / "README.md").read_text()


@pytest.mark.parametrize("asked", ["code", "the terminal"])
def test_a_study_is_stopped_while_its_processes_still_start(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end without reading what they were given, which breaks the pipe instead of closing it."""
    stop, give = StopRequest(), execution._Worker.give

    def given(worker: execution._Worker, run: Run) -> None:
        give(worker, run)
        stop.ask("a test")
        if asked == "the terminal":  # whose signal reaches them too
            worker.process.kill()

    monkeypatch.setattr(execution._Worker, "give", given)
    result = studies.run("toy", out=tmp_path, device="cpu", jobs=2, stop=stop)
    assert (len(result.found), result.failed, result.complete) == (0, {}, False)
    assert "0 of 6 runs are there" in result.page.read_text()


def test_a_process_that_is_killed_while_it_starts_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, killed = execution._Worker.give, []

    def given(worker: execution._Worker, run: Run) -> None:
        give(worker, run)
        if not killed:
            killed.append(run.name)
            worker.process.kill()

    monkeypatch.setattr(execution._Worker, "give", given)
    result = studies.run("toy", out=tmp_path, device="cpu", jobs=2)
    assert result.failed == {killed[0]: "its process ended with exit code -9"}
    assert len(result.found) == RUNS - 2  # and the one that follows from all


def test_processes_find_the_same_numbers(tmp_path: Path) -> None:
    studies.run("toy", out=tmp_path / "one", device="cpu")
    result = studies.run("toy", out=tmp_path / "two", device="cpu", jobs=2)
    assert result.complete
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_a_run_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "1")
    result = studies.run("toy", out=tmp_path, device="cpu")
    assert result.failed == {"one-s0": "RuntimeError: this one fails"}
    assert (len(result.found), result.complete) == (5, False)
    assert [verdict.word for verdict in result.verdicts] == ["not run", "not run"]
    assert "5 of 6 runs are kept" in result.page.read_text()
    monkeypatch.delenv("TOY_FAILS")
    assert studies.run("toy", out=tmp_path, device="cpu").complete


def test_time_that_is_up_ends_with_75_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_SECONDS", "0.05")
    command = ["flatclr", "study", "toy", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, "--minutes", "0.001"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 75
    assert "of 6 runs are kept; the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["verdict"] for line in lines if line["kind"] == "claim"] == ["held", "held"]
    assert lines[-1]["complete"] is True
    assert set(calls(tmp_path).values()) == {1}


def test_jobs_that_would_take_turns_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flatclr.cli.study.takes_turns", lambda device: device == "cpu")
    monkeypatch.setattr(
        sys, "argv", ["flatclr", "study", "toy", "--out", str(tmp_path), "--device", "cpu", "--jobs", "2"]
    )
    with pytest.raises(SystemExit):
        main()
    assert "runs will take turns on the GPU, so --jobs gains nothing" in capsys.readouterr().err


def test_quick_says_that_it_judges_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        result = studies.run("toy", out=tmp_path, device="cpu", quick=True)
        assert "say nothing of the claims" in result.page.read_text()
        assert result.verdicts[1].word == "held"
    overview = result.overview.read_text()
    assert " held" not in overview.splitlines()[2]
    with pytest.raises(ValueError, match=r"must be a folder of its own for a whole study, got .* a smoke test"):
        studies.run("toy", out=tmp_path, device="cpu")


def test_a_smoke_test_leaves_the_page_of_shared_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(studies.STUDIES, "sharing", "tests.support.sharing_study")
    page = studies.run("sharing", out=tmp_path, device="cpu").page
    before = page.read_text()
    with pytest.raises(ValueError, match=r"smoke test \(--quick\), got .* where sharing is a whole study"):
        studies.run("sharing", out=tmp_path, device="cpu", quick=True)
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["costs"], "study must be one of"),
        (["toy", "--seeds", "0"], "seeds must be a whole number >= 1, got 0"),
        (["toy", "--jobs", "0"], "jobs must be a whole number >= 1, got 0"),
        (["toy", "--minutes", "-1"], "minutes must be a finite number > 0"),
        (["toy", "--device", "tpu"], "device must be"),
        (["toy", "--set", "a=1"], "toy must be run without options, got 'a'"),
        (["cost", "--set", "dollars_per_hour"], "--set must be NAME=VALUE"),
        (["cost", "--set", "dollars_per_hour=much"], "dollars_per_hour must be a number, got 'much'"),
        (["cost", "--set", "dollars_per_hour=0"], "dollars_per_hour must be a finite number > 0, got 0"),
        (["cost", "--set", "dollars_per_hour=inf"], "dollars_per_hour must be a finite number > 0, got inf"),
        (["small-batches"], "cifar10 must stand in a data folder"),
        (["flo-attempts", "--set", "data=nosuch"], "data must be an existing path"),
        (["imagenet-style", "--set", "data=images.npz", "--set", "transfer_data=nosuch"], "got 'nosuch'"),
        (["toy", "--out", "file"], "out must be a folder, got the file file"),
        (
            ["toy", "--quick", "--out", "full"],
            "must be a folder of its own for a smoke test (--quick), got full, where toy is",
        ),
        (["toy", "--out", "torn"], "must hold a finished run, got"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    (tmp_path / "file").touch()
    np.savez(tmp_path / "images.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4) % 2)
    studies.run("toy", out="full", device="cpu", seeds=1)
    torn = tmp_path / "torn" / "toy" / "runs"
    torn.mkdir(parents=True)
    (torn / "one-s0.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["flatclr", "study", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(lines)) == (2, 1), lines
    assert message in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_that_are_kept_need_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "images.npz"
    np.savez(data, images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4) % 2)
    runs = [Run("one", 0, toy_study.measure, {"level": 1.0, "data": str(data)})]
    monkeypatch.setattr(toy_study, "STUDY", replace(toy_study.STUDY, plan=lambda of: runs, claims=()))
    assert studies.run("toy", out=tmp_path, device="cpu").complete
    data.unlink()
    assert studies.run("toy", out=tmp_path, device="cpu").complete
    runs.append(Run("two", 0, toy_study.measure, runs[0].settings))
    with pytest.raises(FileNotFoundError, match="data must be an existing path"):
        studies.run("toy", out=tmp_path, device="cpu")
    assert len(studies.run("toy", out=tmp_path, device="cpu", minutes=1e-9).found) == 1  # none is begun: its page alone


def test_every_price_has_a_run(tmp_path: Path) -> None:
    for price in (2, 3.5, 0.001, 2.0):
        result = studies.run("cost", out=tmp_path, device="cpu", options={"dollars_per_hour": price})
        assert result.complete
        assert result.found.arms == ["bill" if price == 3.5 else f"bill at ${float(price)} an hour"]
        assert f"at ${price:g} an hour" in result.table[0]["evidence"]
    assert len(list((tmp_path / "cost" / "runs").iterdir())) == 3


@pytest.mark.parametrize("quiet", [True, False])
def test_a_study_whose_bar_cannot_be_seen_tells_its_runs(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["flatclr", "study", "toy", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, *(["-q"] if quiet else [])])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert ("one-s0: 0 s, 1 of 6 runs" in said, said == "") == (not quiet, quiet)


def test_the_list_names_every_study(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", "study", "list"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(studies.STUDIES)
