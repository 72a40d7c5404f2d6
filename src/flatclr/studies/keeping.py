"""The raw numbers of every finished run, each in a file that appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from flatclr.files import json_read, json_ready, parse_json, replace_files
from flatclr.studies.study import Found, Kept, Run

RUNS, POOL = "runs", "pool"


def home_of(home: Path, run: Run) -> Path:
    """The folder of the study, or for what studies share the pool beside it."""
    return home.parent / POOL if run.shared else home


def file_name(run: Run) -> str:
    """Without its ending; in the pool two studies may call different runs by one name."""
    return run.name if not run.shared else f"{run.name.removesuffix(_of_seed(run))}-{run.digest}{_of_seed(run)}"


def kept_path(home: Path, run: Run) -> Path:
    """Where the run is kept, or would be; in the pool whatever the study that made it called it."""
    folder = home_of(home, run) / RUNS
    there = sorted(folder.glob(f"*-{run.digest}{_of_seed(run)}.json")) if run.shared else ()
    return next(iter(there), folder / f"{file_name(run)}.json")


def _of_seed(run: Run) -> str:
    return f"-s{run.seed}"


def keep(home: Path, run: Run, kept: Kept) -> None:
    """From here on the run is never made again."""
    path = kept_path(home, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_files({path: (json.dumps(json_ready(asdict(kept)), indent=1) + "\n").encode()})


def find(home: Path, runs: Sequence[Run]) -> Found:
    """Those of the planned runs that are finished.

    Raises:
        ValueError: for a file that holds something else than the planned run.
    """
    paths = ((run, kept_path(home, run)) for run in runs)
    return Found([_read(path, run) for run, path in paths if path.exists()])


def _read(path: Path, run: Run) -> Kept:
    try:
        content = json_read(parse_json(path.read_bytes()))
        kept = Kept(**content)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"{path} must hold a finished run, got {type(error).__name__}; remove it and start again."
        ) from error
    planned = json_read(json.loads(json.dumps(json_ready(dict(run.settings)))))
    if kept.settings != planned:
        other = next(name for name in (*planned, *kept.settings) if planned.get(name) != kept.settings.get(name))
        raise ValueError(
            f"{path} must hold the planned run, got one with {other} {kept.settings.get(other)!r} instead of "
            f"{planned.get(other)!r}; choose another --out, or remove it."
        )
    return replace(kept, run=run.name, arm=run.arm) if run.shared else kept
