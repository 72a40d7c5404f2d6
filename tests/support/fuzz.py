"""Made-up calls, and what may come of one: a finite result, or one clear error of the package."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import flatclr

PACKAGE = str(Path(flatclr.__file__).parent)
REFUSALS = (ValueError, TypeError, RuntimeError, OSError, ImportError)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, -1, 0.1, 0.5, 1.0, 1e-40, 1e40, math.inf, -math.inf, math.nan, 10**30]),
    st.floats(-100, 100),
    st.integers(-3, 40),
)
ODD = st.sampled_from([None, "", "x", b"x", [], {}, object(), True, 3, 0.5, "\ud800", torch.zeros(()), np.zeros(3)])


@st.composite
def tensors(draw: st.DrawFn, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Small tensors of all kinds: some of odd layouts, with zero rows, equal rows, or values that are not finite."""
    dimensions = draw(st.sampled_from([2, 2, 2, 2, 1, 3, 0]))
    shape = shape if shape is not None else [draw(st.integers(0, 6)) for _ in range(dimensions)]
    dtype = dtype or draw(st.sampled_from(DTYPES))
    made = torch.randn(list(shape), generator=torch.Generator().manual_seed(draw(st.integers(0, 50)))) * 3
    match draw(st.integers(0, 11)):
        case 0 if made.numel():
            made.view(-1)[draw(st.integers(0, made.numel() - 1))] = draw(
                st.sampled_from([math.nan, math.inf, -math.inf])
            )
        case 1:
            made.zero_()
        case 2 if made.dim() and len(made):
            made[:] = made[0].clone()
        case 3 if made.dim() == 2:
            made = made.T.contiguous().T
        case 4 if made.numel():
            return made.to(dtype).to_sparse()
    return made.to(dtype)


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Views and what a call may bring, most of them fitting together."""
    count, d, dtype = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.sampled_from(DTYPES))
    views = [draw(tensors((count, d), dtype)) for _ in range(draw(st.sampled_from([2, 2, 2, 3, 1])))]
    if draw(st.integers(0, 9)) == 0:
        views[-1] = draw(tensors())
    brought: dict[str, Any] = {}
    codes = st.lists(st.integers(-2, 3), min_size=count, max_size=count).map(torch.tensor)
    if draw(st.integers(0, 3)) == 0:
        brought["negatives"] = draw(tensors((draw(st.integers(1, 4)), d), dtype))
    for name in ("labels", "ids"):
        if draw(st.integers(0, 4)) == 0:
            brought[name] = draw(st.one_of(codes, tensors(), ODD))
    if draw(st.integers(0, 5)) == 0:
        brought["hard_negatives"] = draw(st.one_of(tensors((count, 2, d), dtype), tensors()))
    return tuple(views), brought


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "pairing": st.sampled_from(["views", "two_view", "cross", "one_way", "within", "x"]),
        "normalize": st.sampled_from([True, True, False, 1]),
        "negatives_per_anchor": st.one_of(st.integers(-1, 4), ODD),
        "in_batch_negatives": st.booleans(),
        "route": st.sampled_from(["auto", "dense", "streamed", "strips", "fused", 3]),
        "backend": st.sampled_from(["auto", "torch", "triton", "x"]),
        "check_embeddings": st.booleans(),
        "false_negative_margin": st.one_of(st.none(), st.floats(-1, 1), NUMBERS),
    },
)


def require_an_outcome(call: Callable[[], Any], *given: Any) -> None:
    """A result that is finite where all that was given is, or one line that the package itself raised."""
    try:
        result = call()
    except REFUSALS as error:
        problem = _problem(error)
    else:
        silent = all(is_finite(part) for part in given) and not is_finite(result)
        problem = f"not finite: {result!r:.300}" if silent else None
    assert problem is None, problem


def _problem(error: Exception) -> str | None:
    """What is wrong with an error: only a `raise` of the package itself counts as one of its own.

    A builtin or C++ function that raises leaves the line of its call as the last one.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    if not last.filename.startswith(PACKAGE) or not (last.line or "").startswith("raise"):
        return f"raised in {last.filename}, line {last.lineno} ({last.line}): {error!r:.300}"
    return None if len(str(error).splitlines()) == 1 else f"not one line: {error!r:.300}"


def is_finite(value: Any) -> bool:
    return all(
        bool(torch.isfinite(part.to_dense()).all()) if isinstance(part, Tensor) else math.isfinite(part)
        for part in numbers_in(value)
    )


def numbers_in(value: Any) -> Iterator[Tensor | float]:
    match value:
        case Tensor():
            yield value.detach()
        case np.ndarray() if value.dtype.kind in "fiub":
            yield torch.from_numpy(np.ascontiguousarray(value))
        case bool() | int() | str() | bytes():
            return
        case float():
            yield value
        case Mapping():
            for part in value.values():
                yield from numbers_in(part)
        case list() | tuple():
            for part in value:
                yield from numbers_in(part)
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from numbers_in(getattr(value, field.name))
