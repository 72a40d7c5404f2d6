"""Checkpoints that survive anything: written whole, checksummed, the last two kept, read without running code."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatclr.files import replace_files

KEPT = 2
_NAME = re.compile(r"step-(\d{9})\.pt$")


@dataclass(frozen=True)
class Loaded:
    step: int
    state: dict[str, Any]
    passed_over: tuple[str, ...]  # newer checkpoints that were damaged, and how


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write one checkpoint and its checksum, then drop all but the last two.

    Nothing older is touched until the new one is whole on disk, so a full disk or a killed process costs at most the
    newest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content, path = buffer.getvalue(), _path(folder, step)
    replace_files({_checksum_path(path): hashlib.sha256(content).hexdigest().encode(), path: content})
    for old in sorted(steps_in(folder))[:-KEPT]:
        _path(folder, old).unlink(missing_ok=True)
        _checksum_path(_path(folder, old)).unlink(missing_ok=True)
    return path


def has_checkpoints(folder: Path) -> bool:
    """Whether there is any, whole or damaged."""
    return bool(steps_in(folder))


def load_checkpoint(folder: Path, *, map_location: str | torch.device = "cpu") -> Loaded:
    """The newest whole checkpoint; damaged newer ones are named in `passed_over`."""
    passed_over: list[str] = []
    for step in sorted(steps_in(folder), reverse=True):
        path = _path(folder, step)
        problem = _damage(path)
        if problem is None:
            state = torch.load(path, map_location=map_location, weights_only=True)  # never runs code from the file
            return Loaded(step, state, tuple(passed_over))
        passed_over.append(f"{path.name}: {problem}")
    found = "; ".join(passed_over) or "none"
    raise FileNotFoundError(
        f"{folder} must hold a whole checkpoint, got {found}; start the run again with a new --out."
    )


def _damage(path: Path) -> str | None:
    checksum = _checksum_path(path)
    if not checksum.exists():
        return "its checksum is missing"
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    return None if actual == checksum.read_text().strip() else "its content does not match its checksum"


def steps_in(folder: Path) -> list[int]:
    """Of its checkpoints, whole or damaged, in no order."""
    matches = (_NAME.match(p.name) for p in folder.iterdir()) if folder.is_dir() else ()
    return [int(m.group(1)) for m in matches if m]


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.pt"


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".sha256")
