"""Training runs over a grid of settings, several at once on one machine; what is finished is never made again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from flatclr.checks import checked_device, require_count, require_number
from flatclr.data.loading import BatchPlan
from flatclr.data.opening import open_dataset
from flatclr.files import json_ready, require_place
from flatclr.runs import RunDirectory, machine
from flatclr.studies.entry import Progress
from flatclr.studies.execution import Site, execute, threads_for
from flatclr.studies.keeping import find
from flatclr.studies.study import Job, Numbers, Run
from flatclr.training.build_start import image_size_of_start
from flatclr.training.config import TrainConfig
from flatclr.training.errors import DivergedError
from flatclr.training.stopping import StopAskedError, StopRequest
from flatclr.training.trainer import train

LEFT_TO_SWEEP = ("out", "device")  # settings that the sweep gives its runs
LONGEST_NAME = 120


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left.

    Args:
        home: its folder, in which every run has a folder of its own.
        runs: the folders of the runs that were begun.
        finished: how many of them are at their end.
        planned: how many there are to be.
        failed: runs that ended without an encoder, by name, and why.
    """

    home: Path
    runs: tuple[Path, ...]
    finished: int
    planned: int
    failed: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether every planned run is finished."""
        return self.finished == self.planned


def sweep(
    base: TrainConfig,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: StopRequest | None = None,
) -> SweepResult:
    """Train at every point of a grid of settings.

    Every run goes on from its last checkpoint, so the same call begins a sweep and goes on with it.

    Args:
        base: the settings that all runs share.
        grid: values of others by name; a run for every combination. `seed` is one of them.
        out: the folder of the sweep.
        jobs: how many runs share the device, each in a process of its own.
        device: "cpu", "cuda", "cuda:1", or "auto": cuda where there is one.
        minutes: after which no run is begun, and those at work are stopped with a checkpoint; None: no limit.
        progress: called when a run ends.
        stop: once asked, no run is begun, and those at work stop with a checkpoint.

    Returns:
        Where the runs are.

    Raises:
        ValueError: for settings that cannot be, alone or with the data, before any run is begun, or a folder that holds
            another sweep.
    """
    require_count("jobs", jobs, advice="1 makes one run after another.")
    if minutes is not None:
        require_number("minutes", minutes, above=0)
    home, chosen = require_place(out), str(checked_device(device))
    if home.exists() and not home.is_dir():
        raise ValueError(f"out must be a folder, got the file {home}; name another.")
    planned, stop = plan(base, grid), stop or StopRequest()
    there = find(home, planned)
    with suppress(StopAskedError), stop.at_once():
        _require_batches([run for run in planned if run.name not in there])
    home.mkdir(parents=True, exist_ok=True)
    deadline = None if minutes is None else time.time() + 60 * minutes
    site = Site(home, chosen, threads_for(jobs), deadline, {**machine(), "device": chosen, "jobs": jobs})
    failed = _made(planned, site, jobs, progress or (lambda _: None), stop)
    folders = tuple(home / run.name for run in planned if RunDirectory.begun_in(home / run.name))
    return SweepResult(home, folders, len(find(home, planned)), len(planned), failed)


def _made(
    planned: Sequence[Run], site: Site, jobs: int, tell: Callable[[Progress], None], stop: StopRequest
) -> dict[str, str]:
    """Make the runs that are missing; returns why some have failed."""
    found, failed = find(site.home, planned), dict[str, str]()
    missing = iter([run for run in planned if run.name not in found])
    tell(Progress(len(found), len(planned)))
    all_ended = execute(partial(next, missing, None), site, jobs=jobs, stop=stop)
    for number, ended in enumerate(all_ended, start=len(found) + 1):
        tell(Progress(number, len(planned), ended))
        if ended.problem and not ended.stopped:
            failed[ended.run] = ended.problem
    return failed


def _require_batches(runs: Sequence[Run]) -> None:
    """Refuse, before any run, data that cannot be opened, or that a run's batch is too large for."""
    opened: dict[str, int] = {}
    for run in runs:
        config = TrainConfig.from_dict(run.settings["config"])
        size = config.image_size or image_size_of_start(config)
        key = str([config.data, config.data_dir, config.labels, size])
        if key not in opened:
            data = open_dataset(config.data, data_dir=config.data_dir, image_size=size, labels=config.labels)
            opened[key] = len(data.train)
        BatchPlan(opened[key], config.batch_size, config.seed)


def plan(base: TrainConfig, grid: Mapping[str, Sequence[Any]]) -> list[Run]:
    """The runs of a sweep, in the order of the grid; all of their settings are checked.

    >>> [run.name for run in plan(TrainConfig(), {"temperature": [0.1, 0.5], "seed": [0, 1]})]
    ['temperature-0.1-s0', 'temperature-0.1-s1', 'temperature-0.5-s0', 'temperature-0.5-s1']
    """
    for name, values in grid.items():
        if name in LEFT_TO_SWEEP:
            raise ValueError(f"{name} must be left to the sweep, got values for it; say --{name} once.")
        if not values:
            raise ValueError(f"{name} must have a value, got none; say --set {name}=VALUE.")
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    varied = [name for name, values in grid.items() if len(values) > 1 and name != "seed"]
    runs = [_run(base.changed(**point), ", ".join(f"{name} {point[name]}" for name in varied)) for point in points]
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"every run of a sweep must be another, got two for {twice}; give every value once.")
    return runs


def _run(config: TrainConfig, arm: str) -> Run:
    settings = {name: value for name, value in config.to_dict().items() if name not in LEFT_TO_SWEEP}
    if len(arm) > LONGEST_NAME:
        arm = f"{arm[:LONGEST_NAME]} {hashlib.sha256(arm.encode()).hexdigest()[:8]}"
    return Run(arm or "run", config.seed, measure, {"config": json_ready(settings)})


def measure(job: Job) -> Numbers:
    """Train, from the last checkpoint where there is one; a run whose loss does not stay finite is a result too.

    One that ends for another reason, say a full disk, fails, and is made again.
    """
    folder = job.folder.parents[1] / job.folder.name
    config = TrainConfig.from_dict(job.settings["config"]).changed(out=str(folder), device=job.device)
    try:
        result = train(config, auto_resume=True, stop=job.stop, progress=False)
    except DivergedError as error:
        return {"stopped": str(error)}
    return dict(result.metrics)
