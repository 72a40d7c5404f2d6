"""What a finished run leaves in results/cifar10/runs: its settings, its metrics, its times and its accuracies."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import yaml

from benchmarks import record
from benchmarks.cifar10.plan import PlannedRun, Scale, planned
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import RANDOM, RESULTS, TRAINED
from flatclr.files import replace_files
from flatclr.runs import CONFIG, ENVIRONMENT, METRICS, RunDirectory
from flatclr.training.config import TrainConfig

HOME = record.RESULTS / "cifar10"
RUNS, CLOCK, EVALUATION, ENCODER = "runs", "clock.jsonl", "evaluation.json.gz", "encoder.safetensors"
INCIDENTAL = ("data", "data_dir", "out", "checkpoint_every")  # change from machine to machine, and no result


@dataclass(frozen=True)
class KeptRun:
    """A finished run, read from its folder."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> TrainConfig:
        """As it was asked for."""
        run = RunDirectory.open(self.path)
        return TrainConfig.from_dict(run.config() | run.asked())

    @cached_property
    def environment(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / ENVIRONMENT).read_text())
        return content

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return _unpacked_lines(self.path / f"{METRICS}.gz")

    @cached_property
    def clock(self) -> list[dict[str, Any]]:
        return _unpacked_lines(self.path / f"{CLOCK}.gz")

    @cached_property
    def logs(self) -> list[dict[str, Any]]:
        return [row for row in self.metrics if row["kind"] == "log"]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.metrics if row["kind"] == "evaluation"]

    @cached_property
    def processes(self) -> list[dict[str, Any]]:
        """The processes it took, with commit and hardware."""
        return [row for row in self.clock if row["kind"] == "process"]

    def score(self, protocol: str, weights: str = TRAINED, *, name: str | None = None) -> Score | None:
        """Of the evaluation after training, on all images: the headline or another; None if it was not made."""
        path = self.path / EVALUATION
        rows = json.loads(gzip.decompress(path.read_bytes()))["rows"] if path.exists() else []
        for row in rows:
            if (row["protocol"], row["weights"]) == (protocol, weights):
                found = row["scores"].get(name or row["headline"])
                return None if found is None else Score(**found)
        return None

    def untrained(self, protocol: str) -> Score | None:
        return self.score(protocol, RANDOM)


def kept_runs(home: Path) -> dict[str, KeptRun]:
    """All of them by name."""
    folder = home / RUNS
    return {path.parent.name: KeptRun(path.parent) for path in sorted(folder.glob(f"*/{CONFIG}"))}


def is_trained(folder: Path) -> bool:
    return (folder / ENCODER).is_file()


def is_finished(folder: Path, run: PlannedRun) -> bool:
    """Whether nothing is left to do in this run directory."""
    return is_trained(folder) and (not run.protocols or set(run.protocols) <= _protocols(folder))


def keep(folder: Path, home: Path) -> KeptRun:
    """Copy the small files of a run directory, without the paths of the machine it ran on."""
    target = home / RUNS / folder.name
    target.mkdir(parents=True, exist_ok=True)
    run = RunDirectory.open(folder)
    config = {**run.config(), **run.asked(), "data": PurePath(run.config()["data"]).name, "data_dir": None, "out": None}
    contents = {
        target / CONFIG: yaml.safe_dump(config, sort_keys=False).encode(),
        target / ENVIRONMENT: (folder / ENVIRONMENT).read_bytes(),
        target / f"{METRICS}.gz": _packed((folder / METRICS).read_bytes()),
        target / f"{CLOCK}.gz": _packed((folder / CLOCK).read_bytes()),
    }
    results = folder / "evaluation" / RESULTS
    if results.exists():
        found = json.loads(results.read_text())
        contents[target / EVALUATION] = _packed(json.dumps({**found, "encoder": folder.name}).encode())
    replace_files(contents)
    return KeptRun(target)


def planned_otherwise(config: TrainConfig, run: PlannedRun) -> str:
    """How the settings of a run differ from the plan's, "" if they do not."""
    then, now = (_essential(settings.to_dict()) for settings in (config, run.config()))
    return ", ".join(f"{name} {now[name]!r} (was {then[name]!r})" for name in now if now[name] != then[name])


def measured_rates(kept: Mapping[str, KeptRun], scale: Scale) -> dict[int, float] | None:
    """The learning rate of each batch size with the best kNN accuracy on held-out images; None before all are run."""
    runs = planned(["lr"], scale, scale.starting_rates)
    if not all(run.name in kept for run in runs):
        return None
    best: dict[int, KeptRun] = {}
    for run in (kept[planned_run.name] for planned_run in runs):
        batch = run.config.batch_size
        if batch not in best or held_out_knn(run) > held_out_knn(best[batch]):
            best[batch] = run
    return {batch: run.config.learning_rate for batch, run in best.items()}


def held_out_knn(run: KeptRun) -> float:
    return float(run.evaluations[-1]["knn"])


def _protocols(folder: Path) -> set[str]:
    path = folder / "evaluation" / RESULTS
    return {row["protocol"] for row in json.loads(path.read_text())["rows"]} if path.exists() else set()


def _essential(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in INCIDENTAL}


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # the same content gives the same file


def _unpacked_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
