"""Checkpoints that survive anything: written whole, checksummed, the last two kept, read without running code."""

from __future__ import annotations

import errno
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatclr.files import parse_json, replace_files

KEPT = 2
RUN = "run"  # the entry of a state that says whose it is
_NAME = re.compile(r"step-(\d{9})\.(pt|sha256)$")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint.

    Args:
        step: after which it was taken.
        state: what was saved.
        passed_over: newer checkpoints that were damaged, and how.
        unchecked: whether it does not say whose it is, as those of earlier versions.
    """

    step: int
    state: dict[str, Any]
    passed_over: tuple[str, ...]
    unchecked: bool = False


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], *, identity: str = "", keep_every: int | None = None
) -> Path:
    """Write one checkpoint and its checksum, then drop all but the last two of this run.

    Nothing older is touched until the new one is whole on disk, so a full disk or a killed process costs at most the
    newest.

    Args:
        folder: of the checkpoints.
        step: after which it is taken.
        state: to keep.
        identity: of the run, as JSON; checkpoints of another are left alone.
        keep_every: those whose step is a multiple of it stay too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save({**state, RUN: identity}, buffer)
    content, path = buffer.getvalue(), _path(folder, step)
    note = f"{hashlib.sha256(content).hexdigest()}\n{_mark(identity)}\n"
    replace_files({_checksum_path(path): note.encode(), path: content})
    for old in [step for step in _named_in(folder) if _is_own(_path(folder, step), identity)][:-KEPT]:
        if keep_every is not None and old % keep_every == 0:
            continue
        for file in (_path(folder, old), _checksum_path(_path(folder, old))):
            if not file.is_dir():  # what somebody put in its place is theirs
                file.unlink(missing_ok=True)
    return path


def has_checkpoints(folder: Path) -> bool:
    """Whether there is any, whole or damaged."""
    return bool(steps_in(folder))


def load_checkpoint(
    folder: Path,
    *,
    map_location: str | torch.device = "cpu",
    identity: str | None = None,
    step: int | None = None,
) -> Loaded:
    """The newest whole checkpoint; damaged newer ones are named in `passed_over`.

    Args:
        folder: of the checkpoints.
        map_location: where its tensors go.
        identity: of the run it must belong to; None for any.
        step: after which it was taken; None: the last.

    Raises:
        FileNotFoundError: none is whole, or there is none of that step.
        ValueError: the newest whole one belongs to another run.
    """
    passed_over: list[str] = []
    there = _named_in(folder)
    if step is not None and step not in there:
        raise FileNotFoundError(f"{folder} must hold a checkpoint of step {step}, got those of {there}; pick one.")
    for taken in reversed(there) if step is None else [step]:
        path = _path(folder, taken)
        state, problem = _read(path, map_location)
        if state is not None:
            owner = state.get(RUN, "")
            if identity is not None and owner and owner != identity:
                raise ValueError(
                    f"{path} must belong to the run beside it, got one of another ({_difference(owner, identity)}); "
                    "move it away."
                )
            return Loaded(taken, state, tuple(passed_over), unchecked=not owner)
        passed_over.append(f"{path.name}: {problem}")
    found = "; ".join(passed_over) or "none"
    raise FileNotFoundError(
        f"{folder} must hold a whole checkpoint, got {found}; start the run again with a new --out."
    )


def _read(path: Path, map_location: str | torch.device) -> tuple[dict[str, Any] | None, str]:
    """The state of a whole checkpoint, or what is wrong with it."""
    if not _checksum_path(path).exists():
        return None, "its checksum is missing"
    try:
        expected, content = _note(path)[:1], _content(path)
    except (OSError, ValueError) as error:
        return None, f"it cannot be read ({_reason(error)})"
    if expected != [hashlib.sha256(content).hexdigest()]:
        return None, "its content does not match its checksum"
    if _unpacked_bytes(content) > len(content):  # torch.save packs nothing
        return None, "it would become more bytes than it has"
    try:
        state = torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)  # runs no code
    except Exception as error:  # torch.load fails in many ways, and its message is a page
        return None, f"it holds more than tensors and plain values, and nothing of it is run ({type(error).__name__})"
    return (state, "") if isinstance(state, dict) else (None, f"it holds {type(state).__name__}")


def _unpacked_bytes(content: bytes) -> int:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OverflowError):
        return 0  # no archive: whoever reads it says what it is


def _note(path: Path) -> list[str]:
    """The checksum and, of this version, whose the checkpoint is."""
    return _content(_checksum_path(path)).decode("ascii").split()


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # to open a pipe would wait for its other end
        raise OSError(errno.EINVAL, "no file")
    return path.read_bytes()


def _is_own(path: Path, identity: str) -> bool:
    try:
        return _note(path)[1:] in ([], [_mark(identity)])
    except (OSError, ValueError):
        return True  # nobody can read it


def _mark(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()


def _difference(theirs: str, ours: str) -> str:
    """The first setting in which two runs differ."""
    try:
        their, own = parse_json(theirs), parse_json(ours)
    except (ValueError, TypeError):
        return "with other settings"
    name = next(name for name in sorted({*their, *own}) if their.get(name) != own.get(name))
    return f"{name} {their.get(name)!r}, here {own.get(name)!r}"


def _reason(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return said or type(error).__name__


def steps_in(folder: Path) -> list[int]:
    """Of its checkpoints, whole or damaged, in order."""
    return _named_in(folder, ("pt",))


def _named_in(folder: Path, kinds: Sequence[str] = ("pt", "sha256")) -> list[int]:
    """Steps with a file of one of these kinds: a checksum that stands alone tells of a checkpoint that is gone."""
    matches = (_NAME.match(p.name) for p in folder.iterdir()) if folder.is_dir() else ()
    return sorted({int(m.group(1)) for m in matches if m and m.group(2) in kinds})


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.pt"


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".sha256")
