"""Files that appear whole or not at all, that say whether they were changed since, or that may end in a torn line."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files next to where they belong, then let each take its name; a failure leaves the old ones alone."""
    with ExitStack() as cleanup:
        for path, data in contents.items():
            part = path.with_name(f".{path.name}.part")  # always the same: what a kill leaves is replaced
            cleanup.callback(part.unlink, missing_ok=True)
            with naming(path), part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            with naming(path):
                os.replace(path.with_name(f".{path.name}.part"), path)
    for folder in {path.parent for path in contents}:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # a rename lives in the folder
        finally:
            os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system name this file or folder: a full disk names none, a part of a file one that nobody knows."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # Python makes it the kind of its number


FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
SHUT = (errno.EROFS, errno.EACCES, errno.EPERM)


def told_of_system(error: OSError) -> str:
    """One line for an error of the system, in the user's terms; the words of one that was written for people.

    >>> told_of_system(OSError(errno.ENOSPC, "No space left on device", "run/features.npz"))
    'run/features.npz must be writable, got a full disk; free some space, or name a place on another disk.'
    >>> told_of_system(FileNotFoundError("the data file must exist, got a.csv; check the path."))
    'the data file must exist, got a.csv; check the path.'
    """
    if error.errno is None or not error.strerror:
        return str(error)
    name = "a file" if error.filename is None else os.fsdecode(error.filename)
    if error.errno in FULL:
        return f"{name} must be writable, got a full disk; free some space, or name a place on another disk."
    got = error.strerror[:1].lower() + error.strerror[1:]
    if error.errno in SHUT:
        return f"{name} must be open to you, got {got!r}; restore the permission, or name another place."
    return str(error) if error.filename is None else f"{name} must be usable, got {got!r}; check the path."


def require_place(target: str | Path) -> Path:
    """The path of a file or folder to write, refused before any work where it would stand in a file."""
    path = Path(target).expanduser()
    if not str(target):
        raise ValueError(f"a file or folder to write must be named, got {str(target)!r}; pass a path.")
    try:
        str(target).encode()
    except UnicodeEncodeError:  # TensorBoard and others take no such names
        raise ValueError(f"a file or folder to write must have a name in UTF-8, got {str(target)!a}.") from None
    above = next((folder for folder in path.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise NotADirectoryError(f"{path} must stand in a folder, got the file {above}; pass another path.")
    return path


class UncheckedWarning(UserWarning):
    """Something was written by a version that left no checksum or identity, so that damage could not be looked for."""


def warn_unchecked(folder: Path) -> None:
    """Say so in the same words from everywhere: what is read of one folder in several places is told once."""
    message = f"{folder} could not be checked for damage: it has no checksum, as what earlier versions wrote."
    warnings.warn(message, UncheckedWarning, stacklevel=1)


SEAL = "# sha256: "


def sealed(text: str) -> str:
    """Lines of YAML with their checksum as a comment at the end.

    >>> read_sealed(sealed("steps: 3\\n"))
    ('steps: 3\\n', True)
    """
    return f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"


def read_sealed(text: str) -> tuple[str, bool | None]:
    """The lines, and whether they are those that were sealed; None where they never were.

    A digest at the end is left of a seal, even where the words before it are damaged.
    """
    content, seal, digest = text.rpartition(SEAL)
    if not seal:
        return text, False if re.search(r"[0-9a-f]{64}\s*$", text) else None
    return content, hashlib.sha256(content.encode()).hexdigest() == digest.strip()


def parse_json(content: str | bytes) -> Any:
    """What JSON says; every way in which it can be wrong is a ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("values nested too deeply") from None


MOST_VALUES = 100_000  # of what people write by hand


def require_few_values(value: Any) -> Any:
    """The same, unless its lists and mappings hold more than any settings do: YAML can name one part many times over.

    >>> require_few_values({"steps": [1, 2]})
    {'steps': [1, 2]}
    """
    waiting, seen = [value], 0
    while waiting:
        part = waiting.pop()
        inside = [*part, *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else []
        waiting += inside
        seen += len(inside)
        if seen > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values")
    return value


def json_ready(value: Any) -> Any:
    """The same with text for numbers that are not finite: JSON knows none of these.

    >>> json_ready({"loss": float("nan"), "step": 3})
    {'loss': 'nan', 'step': 3}
    """
    if isinstance(value, dict):
        return {name: json_ready(part) for name, part in value.items()}
    if isinstance(value, list):
        return [json_ready(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def json_read(value: Any) -> Any:
    """The same with numbers for the text that `json_ready` gives those that are not finite.

    >>> json_read({"loss": "nan", "kind": "log", "range": [0.5, "inf"]})
    {'loss': nan, 'kind': 'log', 'range': [0.5, inf]}
    """
    if isinstance(value, dict):
        return {name: json_read(part) for name, part in value.items()}
    if isinstance(value, list):
        return [json_read(part) for part in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is appended to, none if there is no file; others than objects are passed over."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
