"""The run directory: one place that says what was run, on what, and what happened."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from flatclr.files import read_json_lines, replace_files

METRICS, CONFIG, ENVIRONMENT, CHECKPOINTS = "metrics.jsonl", "config.yaml", "environment.json", "checkpoint"
LOCK = ".lock"
SIDES = ("encoder_x", "encoder_y")  # folders of a run on pairs


@dataclass(frozen=True)
class RunDirectory:
    """config.yaml, environment.json, metrics.jsonl, checkpoint/ and, at the end, the encoder."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunDirectory:
        """A new directory; one that holds a run already, or just got one, is refused, so that nothing is lost."""
        settings = yaml.safe_dump(dict(config), sort_keys=False).encode()
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"the output directory must not be a file, got {path}; choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        try:
            (path / CONFIG).open("x").close()  # of several runs that start here at once, one gets it
        except FileExistsError:
            raise FileExistsError(
                f"the output directory must not hold a run yet, got {path}; resume it with --resume {path} or choose "
                "another --out."
            ) from None
        run = cls(path)
        try:
            replace_files({path / CONFIG: settings})
        except BaseException:
            (path / CONFIG).unlink()
            raise
        run.write_json(ENVIRONMENT, environment())
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / CONFIG).is_file():
            raise FileNotFoundError(
                f"a run directory must hold {CONFIG}, got {path} without one; pass the directory a run wrote."
            )
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time writes here; the system releases the lock of a killed one."""
        with (self.path / LOCK).open("a") as file:
            if not _lock(file):
                raise ValueError(
                    f"a run must be written by one process at a time, got {self.path}, where one is at work; wait for "
                    "it, or stop it."
                )
            yield

    def config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        try:
            loaded = yaml.safe_load(path.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} must hold named settings, got a damaged file; restore it.") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"{path} must hold named settings, got {type(loaded).__name__}; restore it.")
        return loaded

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        replace_files({self.path / name: json.dumps(content, indent=2).encode()})

    def differences(self) -> list[str]:
        """What resuming here changes of that on which bit-identical weights depend."""
        path = self.path / ENVIRONMENT
        try:
            then, now = json.loads(path.read_text()) if path.exists() else {}, environment()
        except ValueError:
            return [f"{path} is damaged"]
        names = ("torch", "device", "threads", "deterministic")
        return [f"{n} was {then[n]}, is {now[n]}" for n in names if n in then and then[n] != now[n]]

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One line; a line is written whole or, at worst, is the torn last one that `metrics` passes over."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        return read_json_lines(self.path / METRICS)

    def drop_metrics_after(self, step: int) -> None:
        """Forget what a run wrote after the checkpoint it resumes from: it is about to write it again."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row.get("step", 0) <= step]
        replace_files({self.path / METRICS: "".join(kept).encode()})


def _lock(file: IO[str]) -> bool:
    """Whether no other process has it locked; this one has then, until it closes it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems know no locks
        return True
    return True


def new_directory(base: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that nothing is at; made by this process and no other."""
    base.parent.mkdir(parents=True, exist_ok=True)
    for path in (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in count(1)):
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("numbers do not end")


def machine() -> dict[str, Any]:
    """Where a measurement was made: hardware, versions and, in a checkout, the commit."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:  # a repository further up is somebody else's
        return "unknown"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    # a benchmark's own results do not make what it measured another
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return (git("describe", "--always", "--abbrev=10") or "unknown") + ("-dirty" if changed else "")


def environment() -> dict[str, Any]:
    """What a result depends on besides its config."""
    return {
        "flatclr": sys.modules["flatclr"].__version__,  # an import would point up through the layers
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
