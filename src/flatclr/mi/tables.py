"""Variables from files: CSV, TSV, Parquet, npy and npz."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from flatclr.data.decoding import reason_of
from flatclr.data.unpacking import require_honest_arrays, require_no_bomb
from flatclr.extras import needed
from flatclr.mi.arrays import Array
from flatclr.mi.inputs import as_rows

_NUMPY_ERRORS = (
    *(ValueError, OSError, EOFError, MemoryError, NotImplementedError, SyntaxError, BadZipFile),
    zlib.error,
)


LONGEST_HEADER = 10_000_000  # characters
MOST_LEVELS = 50  # of a text column that is encoded


@dataclass(frozen=True)
class Variables:
    """What a file holds.

    Args:
        values: rows [N, d] of x, y and perhaps given.
        names: what each is called.
        notes: what was done to the columns, a sentence each.
    """

    values: dict[str, Array]
    names: dict[str, str]
    notes: tuple[str, ...] = ()


def read_table(source: str | Path, columns: Mapping[str, Sequence[str]], *, drop_missing: bool = False) -> Variables:
    """The variables of a CSV, TSV, Parquet, npy or npz file, or of two files `x.npy,y.npy`; text is encoded.

    Args:
        source: a file, or two .npy files with a comma between.
        columns: of each variable, {"x": ["a", "b"], "y": ["c"]}.
        drop_missing: whether rows with a missing value in a column that is used are left out.
    """
    paths = [Path(part.strip()) for part in str(source).split(",")]
    if len(paths) == 2 and not Path(source).exists() and all(path.suffix == ".npy" for path in paths):
        return _two_files(paths[0], paths[1], columns, drop_missing)
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".tsv", ".parquet", ".pq"):
        if drop_missing:
            raise ValueError(f"--drop-missing must go with a table, got {path.name}; drop the rows of arrays first.")
        return _named(_from_arrays(path, columns), columns)
    frame = _rows_of(path)
    named = {n: _positions(c, [str(k) for k in frame.columns], path) for n, c in _required(columns, path).items()}
    notes = []
    used = sorted({position for positions in named.values() for position in positions})
    missing = frame.iloc[:, used].isna().any(axis=1)
    if missing.any():
        if not drop_missing:
            first = str(frame.columns[used[int(frame.iloc[:, used].isna().any().to_numpy().argmax())]])
            raise ValueError(
                f"{path.name} must have no missing values in the columns used, got {int(missing.sum())} of "
                f"{len(frame)} rows with some, as in {first!r}; pass --drop-missing to leave them out."
            )
        notes.append(f"{int(missing.sum())} of {len(frame)} rows have missing values and are left out.")
        frame = frame[~missing.to_numpy()]
    values = {}
    for name, positions in named.items():
        encoded, said = _encoded(frame.iloc[:, positions], path)
        values[name] = as_rows(name, encoded)
        notes += said
    return replace(_named(values, columns), notes=tuple(dict.fromkeys(notes)))


def _named(values: dict[str, Array], columns: Mapping[str, Sequence[str]]) -> Variables:
    return Variables(values, {name: ", ".join(columns.get(name) or [name]) for name in values})


def _two_files(x: Path, y: Path, columns: Mapping[str, Sequence[str]], drop_missing: bool) -> Variables:
    for name, given in (("--x", columns.get("x")), ("--y", columns.get("y")), ("--given", columns.get("given"))):
        if given:
            raise ValueError(f"{name} must be left out for two files, got {', '.join(given)}; they are x and y.")
    if drop_missing:
        raise ValueError("--drop-missing must go with a table, got two files of arrays; drop their rows first.")
    for path in (x, y):
        if not path.is_file():
            raise FileNotFoundError(f"the data file must exist, got {path}; check the path.")
    return Variables({n: as_rows(p.name, load_arrays(p)) for n, p in (("x", x), ("y", y))}, {"x": x.stem, "y": y.stem})


def _encoded(frame: Any, path: Path) -> tuple[Any, list[str]]:
    """Text, categories and truth values as columns of 0 and 1, and what was done."""
    import pandas as pd

    columns, notes = [], []
    for place, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, place]
        if getattr(dtype, "kind", "O") in "fiubMmc" and str(dtype) != "category":
            columns.append(column.rename(str(place)))
            continue
        text = column.astype(str)
        levels = sorted(text.unique())
        if len(levels) > min(MOST_LEVELS, len(text) // 5):
            raise ValueError(
                f"{path.name} must have few values in a text column, got {len(levels)} in {len(text)} rows of "
                f"{column.name!r}; leave out what only names a row, or put values together."
            )
        shown = levels[1:] if len(levels) == 2 else levels
        columns += [(text == level).astype(float).rename(f"{place} {level}") for level in shown]
        what = f"{len(shown)} columns" if len(shown) > 1 else "a column"
        listed = ", ".join(levels[:6]) + (", ..." if len(levels) > 6 else "")
        notes.append(f"{column.name} is text with {len(levels)} values ({listed}), encoded as {what} of 0 and 1.")
    return pd.concat(columns, axis=1), notes


def _from_arrays(path: Path, columns: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Columns of an .npy file, or arrays of an .npz file: x and y unless others are named."""
    if not path.is_file():
        raise FileNotFoundError(f"the data file must exist, got {path}; check the path.")
    match path.suffix.lower():
        case ".npz":
            return _from_npz(path, columns)
        case ".npy":
            matrix = as_rows(path.name, load_arrays(path))
            names = [str(i) for i in range(matrix.shape[1])]
            return {n: matrix[:, _positions(c, names, path)] for n, c in _required(columns, path).items()}
    raise ValueError(f"the data file must be .csv, .tsv, .parquet, .npy or .npz, got {path.name}; convert it first.")


def _rows_of(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"the data file must exist, got {path}; check the path.")
    frame = read_frame(path)
    if len(frame) == 0:
        raise ValueError(f"{path.name} must have rows below its header, got none; check how it was written.")
    return frame


def read_frame(path: Path) -> Any:
    """The table of a CSV, TSV or Parquet file; one that would fill memory is refused unread."""
    import pandas as pd

    kind = path.suffix.lower().lstrip(".")
    try:
        if kind not in ("parquet", "pq"):
            return _separated(path, "\t" if kind == "tsv" else _separator(path))
        metadata = needed("pyarrow.parquet", by=path.name).read_metadata(path)
        require_no_bomb(8 * metadata.num_rows * metadata.num_columns, packed=path.stat().st_size)
        return pd.read_parquet(path)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path.name} must be a {kind} table, got an empty file; write it again.") from error
    except (ValueError, OSError, NotImplementedError, MemoryError) as error:
        if isinstance(error, UnicodeDecodeError) and _is_text(path):
            raise ValueError(
                f"{path.name} must be in UTF-8, got bytes that are not ({error.reason} at byte {error.start}); convert "
                f"it, say with: iconv -f latin1 -t utf-8 {path.name} > new.{kind}"
            ) from error
        said = " ".join(str(error).split())
        raise ValueError(f"{path.name} must be a {kind} table, got what is none ({said}); write it again.") from error


def _is_text(path: Path) -> bool:
    """Whether it may be text in some encoding: what is packed has zeros."""
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)


def _separator(path: Path) -> str:
    """What stands between the columns: a comma, unless the header has none and has a semicolon or a tab."""
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline(LONGEST_HEADER)
    return "," if "," in header else next((mark for mark in ";\t" if mark in header), ",")


def _separated(path: Path, separator: str) -> Any:
    """The table; with semicolons, a column whose numbers have a decimal comma is one of numbers too."""
    import pandas as pd

    # without None a name that ends in .gz would be unpacked, however large
    frame = pd.read_csv(path, sep=separator, compression=None)
    texts = frame.columns[[not pd.api.types.is_numeric_dtype(dtype) for dtype in frame.dtypes]]
    if separator != ";" or texts.empty:
        return frame
    by_comma = pd.read_csv(path, sep=separator, decimal=",", compression=None)
    for name in texts:
        if pd.api.types.is_numeric_dtype(by_comma[name]):
            frame[name] = by_comma[name]
    return frame


def load_arrays(path: Path) -> Any:
    """The array of an .npy file or the open archive of an .npz file; headers must not claim more than there is."""
    try:
        require_honest_arrays(path)
        found = np.load(path, allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _not_numpys(path, error) from error
    if isinstance(found, np.ndarray) != (path.suffix.lower() == ".npy"):
        if not isinstance(found, np.ndarray):
            found.close()
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
    with load_arrays(path) as arrays:
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
            found[variable] = np.hstack([as_rows(key, array_of(arrays, key, path)) for key in keys])
        return found


def array_of(arrays: Mapping[str, Any], key: str, path: Path) -> Any:
    """One array of the open archive of an .npz file."""
    try:
        return arrays[key]
    except _NUMPY_ERRORS as error:
        raise _not_numpys(path, error) from error
