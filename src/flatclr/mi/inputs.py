"""What users bring: arrays, tensors and frames, checked and turned into float64 rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flatclr.mi.arrays import Array

FEWEST_ROWS = 10
FEWEST_ROWS_TO_LEARN = 50  # from; below, the default reads correlations alone
CALIBRATED_ROWS = 500  # from which intervals of the default cover for dependence without a family too
_FEW, _ROWS_PER_COLUMN = 500, 20
_NUMERIC = "fiub"  # kinds of NumPy's types
_KINDS = {"M": "dates", "m": "durations", "c": "complex numbers"}
_ENCODE = "encode text as numbers first."
_ADVICE = {
    "M": "turn dates into numbers first, e.g. days since the first.",
    "m": "turn durations into numbers first, e.g. seconds.",
    "c": "pass real and imaginary parts as columns.",
}


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


def few_rows(rows: int, columns: int) -> bool:
    """Whether so many rows of so many columns, of both variables together, make only a rough estimate.

    >>> few_rows(400, columns=2), few_rows(600, columns=2), few_rows(600, columns=40)
    (True, False, True)
    """
    return rows < max(_FEW, _ROWS_PER_COLUMN * columns)
