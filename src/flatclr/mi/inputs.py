"""What users bring: arrays, tensors, frames and files, checked and turned into float64 rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from flatclr.mi.tasks import Array

FEWEST_ROWS = 50
_NUMPY_ERRORS = (ValueError, OSError, BadZipFile)
_NUMERIC = "fiub"  # kinds of NumPy's types
_KINDS = {"M": "dates", "m": "durations", "c": "complex numbers"}
_ENCODE = "encode text as numbers first."
_ADVICE = {
    "M": "turn dates into numbers first, e.g. days since the first.",
    "m": "turn durations into numbers first, e.g. seconds.",
    "c": "pass real and imaginary parts as columns.",
}
_TIED_SHARE = 0.05  # of rows that share their value, above which a column counts as discrete or rounded
_FEW_LEVELS = 50
_ATOM_SHARE = 0.05  # of rows that have one and the same value


def as_rows(name: str, value: Any) -> Array:
    """[N, d] in float64; a vector is one column."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()  # NumPy knows no bfloat16
    elif type(value).__module__.split(".")[0] == "pandas":
        value = _from_pandas(name, value)
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind in _NUMERIC:
        value = np.ma.filled(value.astype(np.float64), np.nan)
    rows = np.asarray(value)
    if rows.dtype.kind not in _NUMERIC:
        raise TypeError(f"{name} must be numeric, got {rows.dtype}; {_ADVICE.get(rows.dtype.kind, _ENCODE)}")
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"{name} must have shape [N] or [N, d], got {list(rows.shape)}; flatten its rows.")
    rows = rows.astype(np.float64)
    bad_rows = ~np.isfinite(rows).all(1)
    if bad_rows.any():
        raise ValueError(
            f"{name} must be finite, got NaN or Inf in {int(bad_rows.sum())} of {len(rows)} rows, first in row "
            f"{int(bad_rows.argmax())}; drop or fill these rows."
        )
    return rows


def _from_pandas(name: str, value: Any) -> Array:
    """A frame or series without its labels; missing values become NaN."""
    frame = value if hasattr(value, "columns") else value.to_frame(name if value.name is None else value.name)
    for column, dtype in zip(frame.columns, frame.dtypes, strict=True):
        kind = getattr(dtype, "kind", "O")
        if kind not in _NUMERIC:
            found = _KINDS.get(kind, "categories" if str(dtype) == "category" else "text")
            advice = _ADVICE.get(kind, _ENCODE)
            raise TypeError(f"{name} must have numeric columns, got {found} in {str(column)!r}; {advice}")
    rows: Array = frame.to_numpy(dtype=float, na_value=np.nan)
    return rows


def require_same_rows(**variables: Array) -> None:
    lengths = {name: len(rows) for name, rows in variables.items()}
    if len(set(lengths.values())) > 1:
        listed = " and ".join(f"{name} with {length}" for name, length in lengths.items())
        raise ValueError(f"x and y must have equally many rows, got {listed}; row i of both must belong together.")
    length = next(iter(lengths.values()))
    if length < FEWEST_ROWS:
        raise ValueError(
            f"at least {FEWEST_ROWS} rows must be given, got {length}; no estimate from so few rows means anything."
        )


@dataclass(frozen=True)
class Inspected:
    """Columns that carry something, and what is odd about them."""

    rows: Array
    tied: bool
    discrete: bool  # tied, and by more than rounding
    warnings: tuple[str, ...]


def inspect(name: str, rows: Array) -> Inspected:
    """Drop constant and duplicated columns, which add no information, and look for ties."""
    warnings = []
    varying = (rows != rows[0]).any(0)  # a standard deviation of many equal numbers need not be 0
    if not varying.all():
        warnings.append(f"{name} has {int((~varying).sum())} constant column(s); they carry no information.")
        rows = rows[:, varying]
    kept = _one_of_each_order(rows)
    if len(kept) < rows.shape[1]:
        warnings.append(f"{name} has {rows.shape[1] - len(kept)} duplicated column(s); they were left out.")
        rows = rows[:, kept]
    tied = sum(is_tied(column) for column in rows.T)
    if tied:
        warnings.append(f"{name} has {tied} discrete or tied column(s); methods for continuous data may misread.")
    return Inspected(rows, tied > 0, any(is_discrete(column) for column in rows.T), tuple(warnings))


def is_tied(column: Array) -> bool:
    """Whether many rows share their value: the column is discrete, or continuous but rounded."""
    return tied_share(column) > _TIED_SHARE


def is_discrete(column: Array) -> bool:
    """Whether a tied column has few levels, or a level that many rows are at, as rounding alone does not make them.

    >>> rows = np.random.default_rng(0).normal(size=2000)
    >>> is_discrete(np.round(rows, 2)), is_discrete(np.round(rows)), is_discrete(np.maximum(rows, 0))
    (False, True, True)
    """
    _, counts = np.unique(column, return_counts=True)
    return is_tied(column) and bool(len(counts) <= _FEW_LEVELS or counts.max() > _ATOM_SHARE * len(column))


def dithered(rows: Array, rng: np.random.Generator) -> Array:
    """Tied columns moved at random towards their next level: no information is lost, as the level can still be read.

    >>> dithered(np.array([[0.0], [0.0], [1.0], [1.0]]), np.random.default_rng(0)).round(1).tolist()
    [[0.6], [0.3], [1.0], [1.0]]
    """
    columns = []
    for column in rows.T:
        levels, numbers = np.unique(column, return_inverse=True)
        gaps = np.diff(levels, append=2 * levels[-1] - levels[-2])
        columns.append(column + is_tied(column) * rng.uniform(size=len(column)) * gaps[numbers])
    return np.stack(columns, axis=1)


def _one_of_each_order(rows: Array) -> list[int]:
    """Columns of which none orders the rows as an earlier one does, or in reverse: those would be monotone copies."""
    seen: dict[bytes, int] = {}
    for column, values in enumerate(rows.T):
        ranks = np.unique(values, return_inverse=True)[1]
        reverse = ranks.max() - ranks
        if ranks.tobytes() not in seen and reverse.tobytes() not in seen:
            seen[ranks.tobytes()] = column
    return list(seen.values())


def tied_share(column: Array) -> float:
    """Share of rows whose value another row has too.

    >>> tied_share(np.array([1.0, 1.0, 2.0, 3.0]))
    0.5
    """
    _, counts = np.unique(column, return_counts=True)
    return float(counts[counts > 1].sum() / len(column))


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
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f'{path.name} needs pandas, got no such module; pip install "flatclr[mi]".') from error
    kind = path.suffix.lower().lstrip(".")
    try:
        return pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
    except (ValueError, OSError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path.name} must be a {kind} table, got what is none ({said}); write it again.") from error


def _load(path: Path) -> Any:
    """The array of an .npy file or the open archive of an .npz file."""
    try:
        found = np.load(path, allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _not_numpys(path) from error
    if isinstance(found, np.ndarray) != (path.suffix.lower() == ".npy"):
        raise ValueError(f"{path.name} must hold what its name says, got the other of .npy and .npz; rename it.")
    return found


def _not_numpys(path: Path) -> ValueError:
    return ValueError(
        f"{path.name} must hold plain arrays as numpy.save and numpy.savez write them, got something else; write it "
        "again."
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
        raise _not_numpys(path) from error
