"""Transfer to other images: adapted in size and channels, to digits where they are at hand."""

from __future__ import annotations

import sys

import pytest

import flatclr
from tests.support.evaluation import small_data, small_encoder


def test_without_scikit_learn_only_the_transfer_to_digits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    found = flatclr.evaluate(small_encoder(), small_data(), ["transfer", "knn"], random_row=False)
    assert [row.protocol for row in found.rows] == ["knn"]
    assert dict(found.skipped)["transfer"].startswith(
        "data of handwritten digits needs sklearn, which is not installed; pip install"
    )


def test_transfer_adapts_size_and_channels() -> None:
    colour = small_encoder(size=16, channels=3)
    found = flatclr.evaluate(colour, small_data(size=16, channels=3), "transfer", random_row=False)
    assert found["transfer"].data == "digits"
    assert found["transfer"].best.value > 0.5
    grey = flatclr.evaluate(
        small_encoder(), small_data(), "transfer", transfer_data=small_data(size=9, channels=3), random_row=False
    )
    assert grey["transfer"].data == "pictures"


def test_transfer_fine_tunes_the_output_only() -> None:
    options = {"transfer_data": small_data(), "random_row": False}
    probed = flatclr.evaluate(small_encoder(), small_data(), "transfer", layer="all", **options)  # type: ignore[arg-type]
    assert {row.variant for row in probed.rows} == {"linear"}
    whole = flatclr.evaluate(small_encoder(), small_data(), "transfer", layer="output", **options)  # type: ignore[arg-type]
    assert [(row.variant, row.layer) for row in whole.rows] == [("linear", "output"), ("finetune", "output")]


def test_digits_are_data_like_any_other() -> None:
    found = flatclr.evaluate(small_encoder(), "digits", "knn", random_row=False)
    assert found["knn"].data == "digits"
    assert found["knn"].best.value > 0.5
