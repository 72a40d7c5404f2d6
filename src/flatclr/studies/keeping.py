"""The raw numbers of every finished run, each in a file that appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatclr.files import json_ready, parse_json, replace_files
from flatclr.studies.study import Found, Kept, Run

RUNS = "runs"
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def kept_path(home: Path, run: Run) -> Path:
    return home / RUNS / f"{run.name}.json"


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
        content = _numbers(parse_json(path.read_bytes()))
        kept = Kept(**content)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"{path} must hold a finished run, got {type(error).__name__}; remove it and start again."
        ) from error
    planned = _numbers(json.loads(json.dumps(json_ready(dict(run.settings)))))
    if kept.settings != planned:
        other = next(name for name in (*planned, *kept.settings) if planned.get(name) != kept.settings.get(name))
        raise ValueError(
            f"{path} must hold the planned run, got one with {other} {kept.settings.get(other)!r} instead of "
            f"{planned.get(other)!r}; choose another --out, or remove it."
        )
    return kept


def _numbers(value: Any) -> Any:
    """The inverse of `json_ready`."""
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
