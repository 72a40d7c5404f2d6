"""Files that appear whole or not at all, and files of lines that may end in a torn one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files next to where they belong, then let each take its name; a failure leaves the old ones alone."""
    with ExitStack() as cleanup:
        for path, data in contents.items():
            part = path.with_name(f".{path.name}.part")  # always the same: what a kill leaves is replaced
            cleanup.callback(part.unlink, missing_ok=True)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            os.replace(path.with_name(f".{path.name}.part"), path)
    for folder in {path.parent for path in contents}:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # a rename lives in the folder
        finally:
            os.close(descriptor)


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


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is appended to, none if there is no file; a torn last line is passed over."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
