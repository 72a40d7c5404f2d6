"""Files that appear whole or not at all, and files of lines that may end in a torn one."""

from __future__ import annotations

import json
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


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is appended to, none if there is no file; a torn last line is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
