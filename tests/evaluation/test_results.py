"""Results are kept beside earlier ones, and never mixed with those of other weights or data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

import flatclr
from flatclr.evaluation.figures import draw
from flatclr.evaluation.protocols import finetuning
from flatclr.evaluation.results import read_results
from tests.support.evaluation import CLASSES, pictures, small_data, small_encoder, with_test_part


def test_results_of_other_weights_are_not_mixed(tmp_path: Path) -> None:
    flatclr.evaluate(small_encoder(seed=0), small_data(), "knn", out=tmp_path, random_row=False)
    flatclr.evaluate(small_encoder(seed=1), small_data(), "retrieval", out=tmp_path, random_row=False)
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["retrieval"]
    (tmp_path / "results.json").write_text("{torn")
    assert read_results(tmp_path) is None
    again = flatclr.evaluate(small_encoder(seed=1), small_data(), "knn", out=tmp_path, random_row=False)
    assert read_results(tmp_path) is not None
    assert (tmp_path / again.set_aside).read_text() == "{torn"


def test_results_are_written_after_each_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise ValueError("stop")

    monkeypatch.setattr(finetuning, "finetune", broken)
    with pytest.raises(ValueError, match="stop"):
        flatclr.evaluate(small_encoder(), small_data(), ["knn", "finetune"], out=tmp_path, random_row=False)
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["knn"]


def test_results_of_callables_are_never_mixed(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, data=small_data(), out=tmp_path)
    run(lambda x: x.flatten(1), protocol="knn")
    earlier = (tmp_path / "results.json").read_text()
    second = run(lambda x: -x.flatten(1), protocol=["retrieval", "geometry"])
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["retrieval", "geometry"]
    (kept,) = tmp_path.glob("results-*.json")
    assert kept.name == second.set_aside
    assert kept.read_text() == earlier


def test_data_of_the_same_name_have_rows_of_their_own(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, small_encoder(), protocol="knn", out=tmp_path, random_row=False)
    run(small_data())
    images, labels = pictures(60, seed=9)
    run(with_test_part(images, labels, CLASSES))
    found = read_results(tmp_path)
    assert found is not None
    assert len({row.data_sha256 for row in found.rows}) == 2
    ticks = [tick.get_text() for tick in draw(found).axes[0].get_yticklabels()]
    assert ticks == ["knn on pictures"] * 2
