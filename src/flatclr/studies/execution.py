"""Making the runs that are missing: one after another here, or several at once in processes that share a device."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from flatclr.files import told_of_system
from flatclr.studies.keeping import file_name, home_of, keep
from flatclr.studies.study import Job, Kept, Run
from flatclr.threads import threads
from flatclr.training.errors import TrainingInterruptedError, TrainingStoppedError
from flatclr.training.stopping import StopAskedError, StopRequest

NextRun = Callable[[], Run | None]  # the run to make next; None: none is known now
UNFINISHED = "unfinished"  # the folder of what runs need to go on after a kill
LATE = "the time that was given"
LOOK_S = 0.2  # how often a wish to stop is looked for while others work
ORPHAN_S = 60.0  # for a run to save where it is, once the process that would have kept its numbers is gone


@dataclass(frozen=True)
class Site:
    """Where runs are made.

    Args:
        home: the folder of the study.
        device: that all of them share.
        threads: of each.
        deadline: by `time.time()`, after which none is begun and those that can are stopped; None: there is none.
        environment: hardware, versions and commit, kept beside the numbers.
    """

    home: Path
    device: str
    threads: int
    deadline: float | None
    environment: Mapping[str, Any]

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.time() >= self.deadline


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Args:
        run: its name.
        seconds: that it took.
        problem: why it has no numbers, "" where it has.
        stopped: whether it was only asked to, by a signal or because time ran out, and goes on the next time.
    """

    run: str
    seconds: float
    problem: str = ""
    stopped: bool = False


def execute(next_run: NextRun, site: Site, *, jobs: int, stop: StopRequest) -> Iterator[Ended]:
    """Make runs as they are given, and tell how each ended; one that fails leaves the others alone."""
    return _in_turn(next_run, site, stop) if jobs == 1 else _side_by_side(next_run, site, jobs, stop)


def make(run: Run, site: Site, stop: StopRequest) -> Ended:
    """One run from its seed to its file; what it cannot save, a signal cuts short."""
    started = time.monotonic()
    folder = home_of(site.home, run) / UNFINISHED / file_name(run)
    job = Job(run.settings, run.seed, site.device, folder, stop)
    try:
        with _asked_in_time(stop, site.deadline), threads(site.threads), torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            with stop.at_once():
                numbers = run.measure(job)
    except (TrainingInterruptedError, StopAskedError):
        return Ended(run.name, time.monotonic() - started, f"stopped by {stop.reason}", stopped=True)
    except Exception as error:  # whatever it is, the other runs can still be made
        return Ended(run.name, time.monotonic() - started, _said(error).splitlines()[0])
    seconds = round(time.monotonic() - started, 2)
    keep(site.home, run, Kept(run.name, run.arm, run.seed, run.settings, numbers, seconds, site.environment))
    shutil.rmtree(job.folder, ignore_errors=True)  # checkpoints, which only going on needs
    with suppress(OSError):
        job.folder.parent.rmdir()
    return Ended(run.name, seconds)


def _said(error: Exception) -> str:
    """A sentence for what was meant for people; the kind of error where the words alone say little."""
    if isinstance(error, OSError):
        return told_of_system(error)
    if isinstance(error, ValueError | TypeError | ImportError | TrainingStoppedError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _in_turn(next_run: NextRun, site: Site, stop: StopRequest) -> Iterator[Ended]:
    while stop.reason is None and not site.late and (run := next_run()) is not None:
        yield make(run, site, stop)


def _side_by_side(next_run: NextRun, site: Site, jobs: int, stop: StopRequest) -> Iterator[Ended]:
    workers: list[_Worker] = []
    try:
        while True:
            busy = [worker for worker in workers if worker.run is not None]
            while len(busy) < jobs and stop.reason is None and not site.late and (run := next_run()) is not None:
                idle = (worker for worker in workers if worker.run is None and worker.process.is_alive())
                worker = next(idle, None) or _Worker(site)
                worker.give(run)
                workers += [] if worker in workers else [worker]
                busy.append(worker)
            if not busy:
                return
            yield from _outcomes(busy, stop)
    finally:
        for worker in workers:
            worker.end()


def _outcomes(busy: Sequence[_Worker], stop: StopRequest) -> list[Ended]:
    """Of those that are the next to end."""
    while not (heard := wait([worker.pipe for worker in busy], LOOK_S)):
        if stop.reason is not None:
            for worker in busy:
                worker.ask()
    return [worker.outcome(stop) for worker in busy if worker.pipe in heard]


class _Worker:
    """A process that makes one run after another until its pipe is closed, by its end or its parent's."""

    def __init__(self, site: Site) -> None:
        # spawned, not forked: a fork of a process that has used torch's threads, or CUDA, can hang
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs, site))
        self.process.start()
        theirs.close()
        self.run: Run | None = None
        self.asked = False

    def give(self, run: Run) -> None:
        self.run = run
        self.pipe.send(run)

    def ask(self) -> None:
        """It stops as on any signal; once is enough."""
        if not self.asked:
            self.asked = True
            self.process.terminate()

    def outcome(self, stop: StopRequest) -> Ended:
        assert self.run is not None
        run, self.run = self.run, None
        try:
            ended: Ended = self.pipe.recv()
        except (EOFError, OSError):  # the second where it ended before it read what it was given
            self.process.join()
            if stop.reason is not None:  # before it could hear signals, the parent's or the terminal's
                return Ended(run.name, 0.0, f"stopped by {stop.reason}", stopped=True)
            return Ended(run.name, 0.0, f"its process ended with exit code {self.process.exitcode}")
        return ended

    def end(self) -> None:
        self.pipe.close()
        if self.run is not None:
            self.ask()
        self.process.join()


def _work(pipe: Connection[Ended, Run], site: Site) -> None:
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            run, stop = pipe.recv(), StopRequest()
            with stop.on_signals():
                ended = make(run, site, stop)
            pipe.send(ended)


def _stop_with_parent() -> None:
    """A parent that was killed cannot ask its processes to stop, so that each asks itself as it would have."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a signal, since only these interrupt what has nothing to save
    time.sleep(ORPHAN_S)
    os._exit(1)  # this run cannot be asked


@contextmanager
def _asked_in_time(stop: StopRequest, deadline: float | None) -> Iterator[None]:
    timer = threading.Timer(max(0.0, (deadline or 0.0) - time.time()), stop.ask, [LATE])
    if deadline is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def threads_for(jobs: int) -> int:
    """Of each of so many runs at once, of those that this process may use (OMP_NUM_THREADS, its cores)."""
    return max(1, torch.get_num_threads() // jobs)
