"""The run directory: one place that says what was run, on what, and what happened."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from flatclr.files import naming, parse_json, read_json_lines, read_sealed, replace_files, require_few_values, sealed

METRICS, CONFIG, ENVIRONMENT, CHECKPOINTS = "metrics.jsonl", "config.yaml", "environment.json", "checkpoint"
LOCK = ".lock"
LATELY_S = 120.0
QUICK_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ASKED = "asked_for"  # in the settings: what was asked for where the run chose for itself
EXTENDED = "extended_to"  # in the settings: the epochs or steps that a run was given later
ADDED = (ASKED, EXTENDED)
SIDES = ("encoder_x", "encoder_y")  # folders of a run on pairs
ENCODER = "encoder.safetensors"
REPORT, PICTURES, EVENTS = "report.html", "pictures.json", "events.out.tfevents.*"
EVALUATION = "evaluation"  # the folder of what `flatclr eval` found
RESOLVED = "resolved"  # in the environment: what the run made of its settings and data
LEFT_BY_RUNS = (
    *(CONFIG, ENVIRONMENT, METRICS, CHECKPOINTS, *SIDES, ENCODER, "encoder.json", REPORT, PICTURES, EVALUATION),
    EVENTS,
)
WITHOUT_EFFECT = (  # settings that leave the weights as they are; the data have a fingerprint of their own
    *("out", "data", "data_dir", "labels", "workers", "resident_gib", "max_bad_images"),
    *("device", "graph", "compile", "wandb", "log_every", "eval_every", "eval_start", "eval_samples"),
    *("checkpoint_every", "checkpoint_minutes", "max_bad_steps", "keep_checkpoints", "probe_every"),
)


@dataclass(frozen=True)
class RunDirectory:
    """config.yaml, environment.json, metrics.jsonl, checkpoint/ and, at the end, the encoder."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], chosen: Mapping[str, Any] | None = None) -> RunDirectory:
        """A new directory; one that holds anything of a run already is refused, so that nothing is lost or mixed.

        Args:
            path: where.
            config: the settings as they were asked for.
            chosen: those of them that were left to the run, as it chose them; the file has these values, and those
                that were asked for beside them.
        """
        content = {**config, **(chosen or {})} | ({ASKED: {name: config[name] for name in chosen}} if chosen else {})
        settings = sealed(yaml.safe_dump(content, sort_keys=False)).encode()
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"the output directory must not be a file, got {path}; choose another --out.")
        _refuse_taken(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        try:
            with run.locked():
                _refuse_taken(path)
                _create_whole(path / CONFIG, settings)
        except RunAtWorkError:
            raise _taken(path) from None
        run.write_json(ENVIRONMENT, environment())
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / CONFIG).is_file():
            raise FileNotFoundError(
                f"a run directory must hold {CONFIG}, got {path} without one; pass the directory a run wrote."
            )
        return cls(path)

    @staticmethod
    def begun_in(path: Path) -> bool:
        """Whether a run was begun there; settings of no length are what a kill left of none."""
        return (path / CONFIG).is_file() and (path / CONFIG).stat().st_size > 0

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time writes here; the system releases the lock of a killed one."""
        with naming(self.path):
            file = (self.path / LOCK).open("a")
        with file:
            if not _lock(file):
                raise RunAtWorkError(
                    f"a run must be written by one process at a time, got {self.path}, where one is at work; wait for "
                    "it, or stop it."
                )
            yield

    def config(self) -> dict[str, Any]:
        """Its settings; those that were left to the run are as it chose them.

        Raises:
            ValueError: the file is not as the run wrote it.
        """
        return self.config_and_asked()[0]

    def asked(self) -> dict[str, Any]:
        """The settings that were left to the run, as they were asked for."""
        return self.config_and_asked()[1]

    def config_and_asked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both, with one look at the file."""
        content = self._content()
        extended, asked = (found if isinstance(found := content.get(name), dict) else {} for name in (EXTENDED, ASKED))
        return {n: v for n, v in content.items() if n not in ADDED} | extended, dict(asked)

    def extend(self, length: Mapping[str, Any]) -> None:
        """Make the run longer: its epochs or steps from now on. Its checkpoints stay its own."""
        content = {**self._content(), EXTENDED: dict(length)}
        replace_files({self.path / CONFIG: sealed(yaml.safe_dump(content, sort_keys=False)).encode()})

    def _content(self) -> dict[str, Any]:
        path = self.path / CONFIG
        try:
            text, untouched = self._settings()
            # the quick loader only for what this package wrote: it takes the stack for what is nested deeply, and does
            # not read the escapes that stand for bytes of names that are not UTF-8
            quick = untouched and "\\uD" not in text
            loaded = require_few_values(yaml.load(text, Loader=QUICK_LOADER if quick else yaml.SafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise ValueError(f"{path} must hold named settings, got a damaged file; restore it.") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"{path} must hold named settings, got {type(loaded).__name__}; restore it.")
        if untouched is False:
            raise ValueError(
                f"{path} must be as the run wrote it, got a file that does not match its checksum; restore it, or, if "
                "you changed it yourself, remove its last line."
            )
        return loaded

    def has_checksum(self) -> bool:
        """Whether its settings came with one, as those of earlier versions do not."""
        return self._settings()[1] is not None

    def identity(self) -> str:
        """The settings that decide what its weights become; checkpoints carry it to tell whose they are."""
        settings = {name: value for name, value in self._content().items() if name not in (*WITHOUT_EFFECT, *ADDED)}
        return json.dumps(settings, sort_keys=True, default=str)

    def _settings(self) -> tuple[str, bool | None]:
        return read_sealed((self.path / CONFIG).read_text(encoding="utf-8"))

    def environment(self) -> dict[str, Any]:
        """What environment.json says; nothing where it is missing or damaged."""
        try:
            content = parse_json((self.path / ENVIRONMENT).read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep what the run made of its settings and data, beside its environment."""
        content = self.environment() or environment()
        known = content.get(RESOLVED)
        content[RESOLVED] = {**(known if isinstance(known, dict) else {}), **facts}
        self.write_json(ENVIRONMENT, content)

    @property
    def is_finished(self) -> bool:
        """Whether the encoder that a run ends with is there."""
        return (self.path / ENCODER).exists() or all((self.path / side / ENCODER).exists() for side in SIDES)

    @property
    def is_at_work(self) -> bool:
        """Whether a process writes here; where the system does not say, whether one has written lately."""
        try:
            status, table = (self.path / LOCK).stat(), Path("/proc/locks").read_text()
        except FileNotFoundError:
            written = (self.path / METRICS).stat().st_mtime if (self.path / METRICS).exists() else 0.0
            return time.time() - written < LATELY_S and not self.is_finished
        except OSError:
            return False
        return f":{status.st_ino} " in table

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        replace_files({self.path / name: json.dumps(content, indent=2).encode()})

    def differences(self) -> list[str]:
        """What resuming here changes of that on which bit-identical weights depend."""
        path = self.path / ENVIRONMENT
        try:
            then, now = parse_json(path.read_text()) if path.exists() else {}, environment()
        except ValueError:
            return [f"{path} is damaged"]
        if not isinstance(then, dict):
            return [f"{path} is damaged"]
        names = ("torch", "device", "threads", "deterministic")
        return [f"{n} was {then[n]}, is {now[n]}" for n in names if n in then and then[n] != now[n]]

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One line; a line is written whole or, at worst, is the torn last one that `metrics` passes over."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        rows = read_json_lines(self.path / METRICS)
        return [row for row in rows if isinstance(row.get("step", 0), int | float)]

    def drop_metrics_after(self, step: int) -> None:
        """Forget what a run wrote after the checkpoint it resumes from: it is about to write it again."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row.get("step", 0) <= step]
        replace_files({self.path / METRICS: "".join(kept).encode()})


def training_minutes(rows: Sequence[Mapping[str, Any]], batch_size: int) -> dict[int, float]:
    """Minutes of training by logged step, from the pace of each stretch: evaluations and breaks do not count.

    >>> training_minutes([{"kind": "log", "step": 60, "images_per_second": 8.0}], batch_size=16)
    {0: 0.0, 60: 2.0}
    """
    clock, minutes, seen = {0: 0.0}, 0.0, 0
    for row in rows:
        if row.get("kind") == "log" and isinstance(row.get("step"), int):
            rate = row.get("images_per_second")
            rate = rate if isinstance(rate, int | float) and rate > 0 else math.nan
            minutes += (row["step"] - seen) * batch_size / rate / 60
            seen = row["step"]
            clock[seen] = minutes
    return clock


class RunAtWorkError(ValueError):
    """Another process writes into a run directory."""


def _refuse_taken(path: Path) -> None:
    """Refuse a directory with anything that a run wrote; settings of no length are what a kill left of nothing."""
    there = [found.name for name in LEFT_BY_RUNS for found in sorted(path.glob(name))]
    if there == [CONFIG] and (path / CONFIG).is_file() and (path / CONFIG).stat().st_size == 0:
        return
    if CONFIG in there:
        raise _taken(path)
    if there:
        raise FileExistsError(
            f"the output directory must hold nothing of another run, got {path} with {there[0]}; choose another --out, "
            "or move that away."
        )


def _taken(path: Path) -> FileExistsError:
    return FileExistsError(
        f"the output directory must not hold a run yet, got {path}; resume it with --resume {path} or choose "
        "another --out."
    )


def _create_whole(path: Path, content: bytes) -> None:
    """A file that appears with all of its content, for one process of those that try."""
    part = path.with_name(f".{path.name}.part")
    if path.exists():
        path.unlink()
    try:
        with naming(path), part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            raise _taken(path.parent) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            os.replace(part, path)  # a file system without links
    finally:
        part.unlink(missing_ok=True)


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
    """Where a measurement was made: hardware, versions and the commit, of a copy without history $FLATCLR_COMMIT."""
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
        return os.environ.get("FLATCLR_COMMIT", "unknown")

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
