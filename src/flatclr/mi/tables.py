"""Variables from files: CSV, Parquet, npy and npz."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from flatclr.data.arrays import require_honest_arrays
from flatclr.data.decoding import reason_of
from flatclr.extras import needed
from flatclr.mi.arrays import Array
from flatclr.mi.inputs import as_rows

_NUMPY_ERRORS = (
    *(ValueError, OSError, EOFError, MemoryError, NotImplementedError, SyntaxError, BadZipFile),
    zlib.error,
)


def read_variables(path: Path, columns: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """The variables named in `columns` ({"x": ["a", "b"], "y": ["c"]}) from a CSV, Parquet, npy or npz file.

    Without columns, an npz file must hold arrays x and y (and perhaps given).
    """
    if not path.is_file():
        raise FileNotFoundError(f"the data file must exist, got {path}; check the path.")
    match path.suffix.lower():
        case ".npz":
            return _from_npz(path, columns)
        case ".npy":
            matrix = as_rows(path.name, _load(path))
            names = [str(i) for i in range(matrix.shape[1])]
            return {n: matrix[:, _positions(c, names, path)] for n, c in _required(columns, path).items()}
        case ".csv" | ".parquet" | ".pq":
            frame = _read_frame(path)
            if len(frame) == 0:
                raise ValueError(f"{path.name} must have rows below its header, got none; check how it was written.")
            names = [str(c) for c in frame.columns]
            return {
                n: as_rows(n, frame.iloc[:, _positions(c, names, path)]) for n, c in _required(columns, path).items()
            }
    raise ValueError(f"the data file must be .csv, .parquet, .npy or .npz, got {path.name}; convert it first.")


def _read_frame(path: Path) -> Any:
    import pandas as pd

    kind = path.suffix.lower().lstrip(".")
    if kind != "csv":
        needed("pyarrow", by=path.name)
    try:
        return pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
    except (ValueError, OSError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path.name} must be a {kind} table, got what is none ({said}); write it again.") from error


def _load(path: Path) -> Any:
    """The array of an .npy file or the open archive of an .npz file."""
    try:
        require_honest_arrays(path)
        found = np.load(path, allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _not_numpys(path, error) from error
    if isinstance(found, np.ndarray) != (path.suffix.lower() == ".npy"):
        raise ValueError(f"{path.name} must hold what its name says, got the other of .npy and .npz; rename it.")
    return found


def _not_numpys(path: Path, error: BaseException) -> ValueError:
    got = reason_of(error) if isinstance(error, ValueError | MemoryError | EOFError) else "something else"
    return ValueError(
        f"{path.name} must hold plain arrays as numpy.save and numpy.savez write them, got {got}; write it again."
    )


def _required(columns: Mapping[str, Sequence[str]], path: Path) -> dict[str, Sequence[str]]:
    missing = [name for name in ("x", "y") if not columns.get(name)]
    if missing:
        raise ValueError(
            f"--x and --y must name columns of {path.name}, got none for {missing[0]}; e.g. --x a,b --y c."
        )
    return {name: named for name, named in columns.items() if named}


def _positions(wanted: Sequence[str], names: list[str], path: Path) -> list[int]:
    for name in wanted:
        if name not in names:
            listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise ValueError(
                f"columns must be among those of {path.name} ({listed}), got {name!r}; check the spelling."
            )
    return [names.index(name) for name in wanted]


def _from_npz(path: Path, columns: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    with _load(path) as arrays:
        named = {name: columns.get(name) or [name] for name in ("x", "y")}
        if columns.get("given") or "given" in arrays:
            named["given"] = columns.get("given") or ["given"]
        found = {}
        for variable, keys in named.items():
            for key in keys:
                if key not in arrays:
                    raise ValueError(
                        f"{path.name} must hold an array {key!r}, got {', '.join(arrays)}; name others with --x, --y."
                    )
            found[variable] = np.hstack([as_rows(key, _member(arrays, key, path)) for key in keys])
        return found


def _member(arrays: Mapping[str, Any], key: str, path: Path) -> Any:
    try:
        return arrays[key]
    except _NUMPY_ERRORS as error:
        raise _not_numpys(path, error) from error
