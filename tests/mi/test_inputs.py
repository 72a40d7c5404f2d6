"""What may be passed to `flatclr.mi.estimate`, and what is refused in one line."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from flatclr.mi import FitSettings, estimate, tasks
from flatclr.mi.columns import inspect
from tests.support.mi import PAIR


@pytest.mark.parametrize(
    ("as_given", "y_as_given"),
    [
        (lambda v: v, lambda v: v[:, 0]),
        (torch.from_numpy, torch.from_numpy),
        (lambda v: pd.DataFrame(v, columns=["a", "b"]), lambda v: pd.Series(v[:, 0], name="c")),
        (lambda v: v.tolist(), lambda v: v.tolist()),
        (lambda v: torch.from_numpy(v).requires_grad_(), lambda v: v),
        (lambda v: pd.DataFrame(v).astype("Float64"), lambda v: pd.Series(v[:, 0])),
    ],
    ids=["vector", "torch", "pandas", "lists", "gradient", "nullable"],
)
def test_arrays_tensors_and_frames_give_the_same_number(as_given: object, y_as_given: object):
    x, y = tasks.gaussian_dense(2, 1).sample(200, seed=0)

    assert estimate(as_given(x), y_as_given(y), "gaussian") == estimate(x, y, "gaussian")


def test_bfloat16_tensors_are_read_as_the_numbers_they_hold():
    x, y = (torch.from_numpy(v).bfloat16() for v in PAIR.sample(200, seed=0))

    assert estimate(x, y, "gaussian") == estimate(x.double().numpy(), y.double().numpy(), "gaussian")


GOOD = np.random.default_rng(0).normal(size=(60, 2))

BAD = {
    "lengths": ((GOOD, GOOD[:55]), ValueError, "equally many rows, got x with 60 and y with 55; row i of both"),
    "nan": ((np.where(GOOD > 2, np.nan, GOOD), GOOD), ValueError, r"x must be finite, got NaN or Inf in \d+ of 60 rows, first in row \d+; drop or fill"),
    "few": ((GOOD[:9], GOOD[:9]), ValueError, "at least 10 rows must be given, got 9"),
    "few_to_learn": ((GOOD[:49], GOOD[:49], "doe"), ValueError, "at least 50 rows must be given to method 'doe', got 49"),
    "text": ((np.array([["a", "b"]] * 60), GOOD), TypeError, "x must be numeric, got <U1; encode text"),
    "text_column": ((pd.DataFrame({"a": range(60), "name": ["q"] * 60}), GOOD), TypeError, "x must have numeric columns, got text in 'name'; encode"),
    "rank": ((GOOD[:, :, None], GOOD), ValueError, r"x must have shape \[N\] or \[N, d\], got \[60, 2, 1\]; flatten"),
    "empty": ((GOOD[:, :0], GOOD), ValueError, r"x must have shape \[N\] or \[N, d\], got \[60, 0\]"),
    "dates": ((pd.DataFrame({"a": range(60), "day": pd.date_range("2024-01-01", periods=60)}), GOOD), TypeError, "x must have numeric columns, got dates in 'day'; turn dates into numbers first, e.g. days since"),
    "date_series": ((GOOD, pd.Series(pd.date_range("2024-01-01", periods=60, tz="UTC"), name="day")), TypeError, "y must have numeric columns, got dates in 'day'; turn dates"),
    "date_array": ((np.arange(60).astype("M8[D]"), GOOD), TypeError, r"x must be numeric, got datetime64\[D\]; turn dates"),
    "durations": ((pd.Series(pd.to_timedelta(range(60))), GOOD), TypeError, "x must have numeric columns, got durations in 'x'; turn durations"),
    "complex": ((GOOD + 1j, GOOD), TypeError, "x must be numeric, got complex128; pass real and imaginary parts"),
    "missing": ((pd.Series([None, *range(59)], dtype="Int64"), GOOD), ValueError, "x must be finite, got NaN or Inf in 1 of 60 rows, first in row 0"),
    "method": ((GOOD, GOOD, "ksgg"), ValueError, "method must be one of .* got 'ksgg'; did you mean 'ksg'"),
    "given": ((GOOD, GOOD, "gaussian", GOOD[:50]), ValueError, "equally many rows, got x with 60 and y with 60 and given with 50"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(name: str):
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        estimate(*arguments)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "deep"}, "critic must be one of"),
        ({"folds": 0}, "folds must be a whole number >= 1 and <= 20, got 0"),
        ({"method": "ksg", "k": 60}, "k must be a whole number >= 1 and <= 59, got 60"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        estimate(GOOD, GOOD + 1, **options)


def test_odd_columns_are_named_and_do_no_harm():
    x, y = PAIR.sample(600, seed=0)
    plain = estimate(x, y, "gaussian")
    odd = estimate(np.hstack([x, np.ones((600, 1)), x[:, :1]]), y, "gaussian")

    assert odd.nats == pytest.approx(plain.nats)
    assert "x has 1 constant column(s)" in odd.warnings[0]
    assert "x has 1 duplicated column(s)" in odd.warnings[1]
    assert inspect("y", np.round(y)).discrete
    assert not inspect("y", y).discrete


RNG = np.random.default_rng(5)
NORMAL = RNG.normal(size=(120, 3))

AWKWARD = {
    "equal": (NORMAL, NORMAL),
    "monotone_copies": (np.hstack([NORMAL, 2 * NORMAL[:, :1], -(NORMAL[:, 1:2] ** 3)]), NORMAL + RNG.normal(size=(120, 3))),
    "linear_combinations": (np.hstack([NORMAL, NORMAL.sum(1, keepdims=True)]), NORMAL + RNG.normal(size=(120, 3))),
    "cauchy": (RNG.standard_cauchy(size=(120, 2)) * 1e9, RNG.standard_cauchy(size=(120, 2)) * 1e-9),
    "wide": (RNG.normal(size=(60, 40)), RNG.normal(size=(60, 30))),
    "binary": (RNG.integers(2, size=(120, 2)), RNG.integers(2, size=(120, 2)).astype(bool)),
    "wide_binary": (RNG.integers(2, size=(120, 12)), RNG.integers(2, size=(120, 12))),
    "huge_offset": (NORMAL + 1e12, NORMAL),
}  # fmt: skip


@pytest.mark.parametrize("method", ["auto", "gaussian", "student", "spiral", "ksg", "mixed_ksg", "infonce", "l1out"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_give_finite_numbers(name: str, method: str):
    result = estimate(*AWKWARD[name], method, settings=FitSettings(steps=2, hidden=4))

    assert math.isfinite(result.nats)
    assert result.standard_error >= 0  # infinite where copies share without limit, or rows are fewer than columns
    assert math.isfinite(result.standard_error) or name in ("equal", "wide", "huge_offset")


def test_monotone_copies_of_a_column_are_duplicates():
    seen = inspect("x", AWKWARD["monotone_copies"][0])

    assert seen.rows.shape == (120, 3)
    assert "2 duplicated" in seen.warnings[0]


def test_a_constant_variable_shares_nothing():
    result = estimate(np.ones(100), GOOD.repeat(2, 0)[:100, 0] + np.arange(100))

    assert result.nats == 0
    assert "constant" in result.reason


@pytest.mark.parametrize("constant", [0.1, 0.3, 1e9 + 0.1])
def test_a_column_of_equal_numbers_is_constant_whatever_the_number(constant: float) -> None:
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(500, seed=0)
    padded = np.hstack([x, np.full((500, 1), constant)])
    result = estimate(padded, y, method="gaussian")
    assert "x has 1 constant column(s); they carry no information." in result.warnings
    assert result.nats == pytest.approx(estimate(x, y, method="gaussian").nats)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ksg", "critic": "joint"}, "critic must be None for method 'ksg'"),
        ({"method": "gaussian", "folds": 5}, "folds must be 1 for method 'gaussian'"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_options_a_method_would_ignore_are_refused(options: dict[str, Any], message: str) -> None:
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.8).sample(100, seed=0)
    with pytest.raises(ValueError, match=message):
        estimate(x, y, **options)


def test_folds_of_a_few_rows_are_refused():
    with pytest.raises(ValueError, match="folds must leave at least 10 rows in each, got 20 for 60 rows"):
        estimate(*PAIR.sample(60, seed=0), "interpolated", folds=20)


def test_masked_values_are_missing_ones():
    x, y = PAIR.sample(100, seed=0)
    with pytest.raises(ValueError, match="must be finite, got NaN or Inf in 1 of 100 rows"):
        estimate(np.ma.masked_greater(x[:, 0], np.sort(x[:, 0])[-2]), y)


def test_seeds_of_numpy_are_whole_numbers():
    x, y = PAIR.sample(100, seed=0)
    assert estimate(x, y, "gaussian", seed=np.int64(3)).nats == estimate(x, y, "gaussian", seed=3).nats
