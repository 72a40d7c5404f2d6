"""Make the runs that are missing: as processes that share the GPU, resumed where they stopped, before a time limit."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from benchmarks.cifar10.data import places_of, prepare, require_images
from benchmarks.cifar10.kept import CLOCK, RUNS, KeptRun, is_finished, is_trained, keep, planned_otherwise
from benchmarks.cifar10.plan import SHARING, PlannedRun, Scale
from flatclr.checks import require_count
from flatclr.runs import CONFIG, machine

PROCESS_SECONDS = 45.0  # to start (20 to 30), and to measure at the end (15)
GRACE_SECONDS = 15.0  # between asking a process to stop and killing it
REPORT_SECONDS = 30.0
LOCK = "lock"
TIMED = ("start", "log", "evaluation", "checkpoint", "end", "row")


@dataclass(frozen=True)
class Site:
    """Where a plan is carried out."""

    scale: Scale
    runs: Path  # run directories, with checkpoints
    home: Path  # what is kept of finished ones
    data_dir: Path | None = None

    def folder(self, run: PlannedRun) -> Path:
        return self.runs / run.name

    def places(self, run: PlannedRun) -> dict[str, Any]:
        return places_of(run, self.scale, self.runs, self.data_dir)


@dataclass
class Outcome:
    """What became of each run: done, kept, stopped, not started, or failed and why."""

    by_run: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return [name for name, what in self.by_run.items() if what.startswith("failed")]

    @property
    def complete(self) -> bool:
        return all(what in ("done", "kept") for what in self.by_run.values())


def print_now(line: str) -> None:
    print(line, flush=True)


def execute(
    wanted: Sequence[PlannedRun],
    site: Site,
    *,
    deadline: float,
    parallel: int = SHARING,
    whole: bool = False,
    say: Callable[[str], None] = print_now,
) -> Outcome:
    """Make all runs that are not kept yet, `parallel` at a time; those whose time counts come last, one at a time.

    `deadline` is a time of `time.monotonic`: what still runs then is stopped, and goes on from its last checkpoint when
    this is called again. `whole` starts only what should be finished in time by its estimate, for when checkpoints do
    not survive.
    """
    require_count("parallel", parallel, advice="5 share an H200 well.")
    outcome = Outcome({run.name: "not started" for run in wanted})
    for run in wanted:
        kept = site.home / RUNS / run.name
        if (kept / CONFIG).exists():
            difference = planned_otherwise(KeptRun(kept).config, run)
            advice = f"failed: planned with {difference}; remove {kept} to run it again"
            outcome.by_run[run.name] = advice if difference else "kept"
    missing = [run for run in wanted if outcome.by_run[run.name] == "not started"]
    if missing:
        require_images(site.scale, site.data_dir)
        with alone_in(site.runs):
            prepare(site.scale, site.runs, site.data_dir, held_out=any(run.held_out for run in missing))
            together, single = ([run for run in missing if run.alone is alone] for alone in (False, True))
            for at_once, group in ((parallel, together), (1, single)):
                if group:
                    Shift(site, deadline, min(at_once, len(group)), whole, say, outcome).work(group)
    for name, what in outcome.by_run.items():
        say(f"{name}: {what}")
    return outcome


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a second one in a folder of runs. The lock goes with this process and those it started, however they end.

    What a killed one leaves behind still writes, until it finds nobody listening.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} must be used by one command at a time, got a second; wait for the first, or pass another "
                "--runs."
            ) from None
        os.set_inheritable(lock.fileno(), True)
        yield


class Shift:
    """Some processes side by side until all runs are made or the time is up."""

    def __init__(
        self, site: Site, deadline: float, parallel: int, whole: bool, say: Callable[[str], None], outcome: Outcome
    ) -> None:
        self.site, self.deadline, self.parallel, self.whole = site, deadline, parallel, whole
        self.say, self.outcome = say, outcome
        self.started = time.monotonic()
        self.stopping = threading.Event()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.progress: dict[str, str] = {}
        self.lock = threading.Lock()

    def work(self, runs: Sequence[PlannedRun]) -> None:
        with ThreadPoolExecutor(self.parallel) as pool:
            waiting = {pool.submit(self._complete, run) for run in runs}
            try:
                self._watch(waiting)
            finally:  # also when interrupted: whatever happens, no process stays behind
                self._stop()

    def _watch(self, waiting: set[Future[None]]) -> None:
        while waiting and (left := self.deadline - time.monotonic()) > 0:
            done, waiting = wait(waiting, timeout=min(REPORT_SECONDS, left))
            for future in done:
                future.result()
            if self.progress and not done:
                running = "; ".join(f"{name} {where}" for name, where in sorted(self.progress.items()))
                self._tell(f"running: {running}")

    def _stop(self) -> None:
        self.stopping.set()
        with self.lock:
            processes = list(self.processes.values())
        for process in processes:
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + GRACE_SECONDS
        for process in processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # a checkpoint is whole or not there

    def _complete(self, run: PlannedRun) -> None:
        left = self.deadline - time.monotonic()
        needed = PROCESS_SECONDS + (run.gpu_seconds * self.parallel if self.whole else 0)
        if self.stopping.is_set() or left < needed:
            return
        try:
            self.outcome.by_run[run.name] = self._make(run)
        except Exception as error:  # whatever befalls one run, the others go on
            self.outcome.by_run[run.name] = f"failed: {type(error).__name__}: {error}"
        self._tell(f"{run.name}: {self.outcome.by_run[run.name]}")

    def _make(self, run: PlannedRun) -> str:
        folder = self.site.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        if not is_trained(folder):
            problem = self._process(run, train_arguments(run, self.site))
            if problem is not None:
                return problem
        if not is_finished(folder, run):
            problem = self._process(run, evaluation_arguments(run, self.site))
            if problem is not None:
                return problem
        keep(folder, self.site.home)
        return "done"

    def _process(self, run: PlannedRun, arguments: list[str]) -> str | None:
        """Run one `flatclr` command to its end, noting when it said what; returns what went wrong."""
        folder, started = self.site.folder(run), time.monotonic()
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.parallel)), **os.environ}
        with (folder / "stderr.txt").open("w") as stderr, (folder / CLOCK).open("a") as clock:

            def note(row: dict[str, Any]) -> float:
                seconds = round(time.monotonic() - started, 3)
                clock.write(json.dumps({**row, "seconds": seconds}) + "\n")
                clock.flush()
                return seconds

            with self.lock:
                if self.stopping.is_set():
                    return "stopped"
                process = launch(arguments, stderr, environment)
                self.processes[run.name] = process
            self.progress[run.name] = arguments[0]
            does, evaluating = arguments[0], 0.0
            shared = {"beside": self.parallel - 1, "multi_process_service": has_multi_process_service()}
            now = note({"kind": "process", "does": does, **shared, **_hardware()})
            assert process.stdout is not None
            with closing(process.stdout) as lines:
                for row in map(_event, lines):
                    if row.get("kind") in TIMED:
                        before = now
                        now = note({key: row[key] for key in ("kind", "step", "protocol", "weights") if key in row})
                        evaluating += now - before if row["kind"] == "evaluation" else 0.0
                    if "step" in row:
                        self.progress[run.name] = f"{row['step']}/{run.steps}"
            code = process.wait()
        with self.lock:
            del self.processes[run.name]
        del self.progress[run.name]
        if code == 0:
            self._tell(f"{run.name}: {does} took {now:.0f} s, {evaluating:.0f} s of it for evaluations")
            return None
        if self.stopping.is_set():
            return "stopped"
        last_words = _last_line(folder / "stderr.txt")
        return f"failed: {last_words} (exit code {code})"

    def _tell(self, what: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
        self.say(f"{minutes}:{seconds:02d} {what}")


def launch(arguments: Sequence[str], stderr: IO[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """`flatclr` with these arguments, one JSON line on standard output for each event; it holds the lock too."""
    command = [sys.executable, "-m", "flatclr", *arguments, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, close_fds=False)


def train_arguments(run: PlannedRun, site: Site) -> list[str]:
    """Of `flatclr`: from the start, or from the last checkpoint; a run begun with other settings is refused."""
    folder = site.folder(run)
    if not (folder / CONFIG).exists():
        return run.arguments(**site.places(run))
    difference = planned_otherwise(KeptRun(folder).config, run)
    if difference:
        raise ValueError(f"{folder} must hold the planned run, got one to be planned with {difference}; remove it.")
    return ["train", "--resume", str(folder)]


def evaluation_arguments(run: PlannedRun, site: Site) -> list[str]:
    """Of `flatclr`, on the data of the run."""
    random = [] if run.untrained else ["--no-random-row"]
    return ["eval", str(site.folder(run)), "--protocol", ",".join(run.protocols), "--no-cache", *random]


def has_multi_process_service() -> bool:
    """Whether processes compute side by side through NVIDIA's service for it, instead of in turns."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()


@cache
def _hardware() -> dict[str, Any]:
    return {name: value for name, value in machine().items() if name in ("gpu", "cpu", "cores", "commit")}


def _event(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return row if isinstance(row, dict) else {}


def _last_line(path: Path) -> str:
    lines = path.read_text().strip().splitlines()
    return lines[-1] if lines else "no message"
