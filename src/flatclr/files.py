"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files next to where they belong, then let each take its name; a failure leaves the old ones alone."""
    with ExitStack() as cleanup:
        for path, data in contents.items():
            part = path.with_name(f".{path.name}.part")  # always the same: what a kill leaves, the next save overwrites
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
