"""The processes of a run: how they find each other, and what the others do when one is lost."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from flatclr.distributed import Ranks, ranks_sharing_a_batch
from flatclr.training.errors import TrainingInterruptedError, TrainingStoppedError

FIND_EACH_OTHER = timedelta(minutes=5)
BEAT_S, LOST_AFTER_S = 2.0, 20.0
DONE, FAILED = "done", "failed"
SLURM_PORTS = range(20_000, 50_000)  # one for every job


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The processes that share a batch, for the time of a `with` block.

    What is there is adopted: a process group that somebody made (Ray Train, Lightning, a notebook), else the processes
    that RANK and WORLD_SIZE tell of (torchrun), else those of SLURM_PROCID and SLURM_NTASKS (srun), else this one.
    A group that is made here ends with the block, and a process that is lost ends the others within half a minute.

    Returns:
        A context that gives this process's rank and how many there are.

    Raises:
        ValueError: the variables make no sense, or the processes do not find each other.
        TrainingStoppedError: contact with another process was lost.

    >>> with process_group() as ranks:
    ...     print(ranks.rank, "of", ranks.size)
    0 of 1
    """
    launched = None if dist.is_initialized() else launched_by(os.environ)
    if launched is None:
        with explaining_lost_contact():
            yield ranks_sharing_a_batch(gather=True)
        return
    store = _joined(launched)
    watch = Watch(store, Ranks(launched.rank, launched.size))
    try:
        with explaining_lost_contact():
            yield ranks_sharing_a_batch(gather=True)
    except TrainingInterruptedError:
        raise  # a planned end of all processes: none has failed
    except BaseException:
        watch.end(FAILED)
        raise
    finally:
        watch.end(DONE)
        dist.destroy_process_group()


@dataclass(frozen=True)
class Launched:
    """What a launcher says of this process, and where the first one listens."""

    rank: int
    size: int
    address: str
    port: int


def launched_by(environment: Mapping[str, str]) -> Launched | None:
    """What torchrun or srun left in the environment; None where a process is alone.

    >>> launched_by({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[07-09]", "SLURM_JOB_ID": "1"})
    Launched(rank=3, size=8, address='gpu07', port=20001)
    """
    if "RANK" in environment:
        rank, size = (_number(name, environment) for name in ("RANK", "WORLD_SIZE"))
        address, port = environment.get("MASTER_ADDR", "localhost"), _number("MASTER_PORT", environment)
    elif "SLURM_PROCID" in environment:
        tasks = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environment), None)
        rank, size = _number("SLURM_PROCID", environment), 1 if tasks is None else _number(tasks, environment)
        if size == 1:
            return None
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
        job = _number("SLURM_JOB_ID", environment) if "SLURM_JOB_ID" in environment else 0
        address = environment.get("MASTER_ADDR", first_host(nodes))
        port = _number("MASTER_PORT", environment) if "MASTER_PORT" in environment else SLURM_PORTS[job % 30_000]
    else:
        return None
    if not 0 <= rank < size:
        raise ValueError(f"the rank must be from 0 to {size - 1}, got {rank}; start all processes by one launcher.")
    return Launched(rank, size, address, port)


def local_rank(environment: Mapping[str, str]) -> int:
    """The number of this process on its machine, which says which GPU is its own."""
    name = "LOCAL_RANK" if "LOCAL_RANK" in environment else "SLURM_LOCALID"
    return _number(name, environment) if name in environment else 0


def first_host(nodes: str) -> str:
    """The first host of a list as Slurm writes it.

    >>> first_host("node[003-010,12],big1"), first_host("a1,b[2-3]")
    ('node003', 'a1')
    """
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    return "localhost" if found is None else found.group(1) + (found.group(2) or "")


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ValueError(
            f"the environment variable {name} must be a whole number, got {text!r}; start by torchrun or srun, or "
            "unset RANK and SLURM_PROCID to run one process."
        )
    return int(text)


def _joined(launched: Launched) -> Any:
    """Make the process group; returns a connection to the store that all processes see."""
    address, port, first = launched.address, launched.port, launched.rank == 0
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if "RANK" in os.environ:  # torchrun may hold the store itself
            store, _, _ = next(rendezvous("env://", timeout=FIND_EACH_OTHER))
        else:
            store = TCPStore(address, port, launched.size, is_master=first, timeout=FIND_EACH_OTHER)
        dist.init_process_group(backend, store=store, rank=launched.rank, world_size=launched.size)
        # a connection of its own: what waits on the other keeps it busy
        return TCPStore(address, port, is_master=False, timeout=FIND_EACH_OTHER, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        where = f"{launched.address}:{launched.port}"
        raise ValueError(
            f"the {launched.size} processes must find each other at {where}, got {_first_line(error)}; start all of "
            "them by one launcher, and free that port."
        ) from error


class Watch:
    """A thread that tells the other processes that this one lives, and ends this one when another does not.

    Collectives of some backends wait for minutes for a process that was killed; the thread does not.
    """

    def __init__(self, store: Any, ranks: Ranks, *, lost_after_s: float = LOST_AFTER_S) -> None:
        self.store, self.ranks, self.lost_after_s = store, ranks, lost_after_s
        self.prefix = f"flatclr/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self.others = [rank for rank in range(ranks.size) if rank != ranks.rank]
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="flatclr-watch", daemon=True).start()

    def end(self, how: str) -> None:
        """Say that this process ends, and stop watching."""
        if not self._ended.is_set():
            self._ended.set()
            with suppress(RuntimeError):  # the store may be gone already
                self.store.set(f"{self.prefix}/{self.ranks.rank}", how)

    def _run(self) -> None:
        seen: dict[int, tuple[str, float]] = {}
        for beat in range(2**62):
            if self._ended.is_set():
                return
            try:
                self.store.set(f"{self.prefix}/{self.ranks.rank}", str(beat))
                lost = self._lost(seen)
            except RuntimeError:
                lost = "the first process, or its launcher, is gone"
            if lost is not None and not self._ended.wait(BEAT_S):  # a step that fails now says more
                print(f"flatclr: {lost_contact(self.ranks, lost)}", file=sys.stderr, flush=True)
                os._exit(1)
            self._ended.wait(BEAT_S)

    def _lost(self, seen: dict[int, tuple[str, float]]) -> str | None:
        """Who has failed, or was not heard of for too long."""
        now = time.monotonic()
        for rank in self.others:
            key = f"{self.prefix}/{rank}"
            value = self.store.get(key).decode() if self.store.check([key]) else ""
            if value == FAILED:
                return f"process {rank} has failed"
            if value != DONE and seen.setdefault(rank, (value, now))[0] != value:
                seen[rank] = (value, now)
            if value != DONE and now - seen[rank][1] > self.lost_after_s:
                return f"process {rank} was not heard of for {self.lost_after_s:.0f} s"
        return None


@contextmanager
def explaining_lost_contact() -> Iterator[None]:
    """One sentence instead of what the backend of the process group says."""
    try:
        yield
    except RuntimeError as error:
        ranks = ranks_sharing_a_batch(gather=True)
        if isinstance(error, TrainingStoppedError) or ranks.size == 1 or not _is_of_communication(error):
            raise
        why = _first_line(error).partition(". ")[0]  # gloo goes on with advice of its own
        raise TrainingStoppedError(lost_contact(ranks, why)) from error


def lost_contact(ranks: Ranks, why: str) -> str:
    return (
        f"process {ranks.rank} of {ranks.size} must reach the others, got a lost one ({why}); see what that one said. "
        "The last checkpoint is intact: start again with --auto-resume, or --resume."
    )


def _is_of_communication(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or any(
        word in str(error) for word in ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    )


def _first_line(error: BaseException) -> str:
    said = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[^]]*\]\s*", "", said).rstrip(".") or type(error).__name__
