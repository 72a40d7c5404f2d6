"""Features are computed once, and found again only where nothing has changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import flatclr
from flatclr.data.sources import ResidentImages
from flatclr.evaluation import bench, features
from flatclr.models.network import Normalisation
from tests.support.evaluation import small_data, small_encoder


def count_encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    compute = features.compute_features

    def counted(module: nn.Module, source: Any, prepare: Any, **options: Any) -> dict[str, Tensor]:
        seen.append(source.name)
        return compute(module, source, prepare, **options)

    monkeypatch.setattr(bench, "compute_features", counted)
    return seen


def test_features_are_computed_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_encodings(monkeypatch)
    run = partial(flatclr.evaluate, data=small_data(), random_row=False, cache=tmp_path)
    first = run(small_encoder(), protocol=["knn", "linear", "retrieval"])
    assert seen == ["train", "test"]
    second = run(small_encoder(), protocol="linear")
    assert seen == ["train", "test"]
    assert second["linear"].scores == first["linear"].scores


def test_other_weights_data_or_normalisation_are_encoded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_encodings(monkeypatch)
    run = partial(flatclr.evaluate, protocol="knn", random_row=False, cache=tmp_path)
    run(small_encoder(), small_data())
    changed = small_encoder()
    changed.get_buffer("layer1.norm.running_mean").add_(0.1)  # a statistic, not a weight
    run(changed, small_data())
    other_norm = small_encoder()
    other_norm.normalisation = Normalisation((0.4,), (0.5,))
    run(other_norm, small_data())
    data = small_data()
    assert isinstance(data.train, ResidentImages)
    data.train.images[0, 0, 0, 0] ^= 1
    run(small_encoder(), data)
    assert seen == ["train", "test"] * 3 + ["train"]  # the last test part was known


@pytest.mark.parametrize("damage", ["cut", "flip", "swap", "empty"])
def test_a_damaged_or_foreign_cache_file_is_not_trusted(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partial(flatclr.evaluate, small_encoder(), small_data(), "knn", random_row=False, cache=tmp_path)
    whole = run()
    first, second = sorted(tmp_path.iterdir())
    content = bytearray(first.read_bytes())
    if damage == "cut":
        first.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[-5] ^= 64
        first.write_bytes(content)
    elif damage == "swap":
        first.write_bytes(second.read_bytes())
    else:
        first.write_bytes(b"")
    seen = count_encodings(monkeypatch)
    assert run()["knn"].scores == whole["knn"].scores
    assert len(seen) == 1
    run()
    assert len(seen) == 1  # the file was replaced by a good one


def test_modules_of_unknown_make_are_never_read_from_the_cache(tmp_path: Path) -> None:
    flatclr.evaluate(nn.Sequential(nn.Flatten(), nn.Linear(144, 5)), small_data(), "knn", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_part_changed_after_building_is_encoded_anew(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, data=small_data(), protocol="geometry", random_row=False, cache=tmp_path)
    knn = partial(flatclr.evaluate, data=small_data(), protocol="knn", random_row=False, cache=tmp_path)
    run(small_encoder())
    knn(small_encoder())
    files = len(list(tmp_path.iterdir()))
    changed = small_encoder()
    changed.layer4.act = nn.Tanh()  # type: ignore[assignment]
    knn(changed)
    assert len(list(tmp_path.iterdir())) == 2 * files


def test_data_are_hashed_once_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    fingerprint = ResidentImages.fingerprint
    monkeypatch.setattr(ResidentImages, "fingerprint", lambda self: hashed.append(self.name) or fingerprint(self))
    flatclr.evaluate(small_encoder(), small_data(), ["knn", "linear", "retrieval"], cache=tmp_path)
    assert sorted(hashed) == ["test", "train"]
