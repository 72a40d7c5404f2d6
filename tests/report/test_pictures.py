"""The picture wall shows a sample of a run's images as its encoder sees them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatclr.report.pictures import _is_copy, _principal, refresh_pictures
from flatclr.training.trainer import train
from tests.support.reports import Elements, new_run
from tests.support.training_worker import config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 60 images of two classes, one of them twice."""
    folder = tmp_path_factory.mktemp("pictures")
    images = np.random.default_rng(0).integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    images[7] = images[3]
    np.savez(folder / "images.npz", images=images, labels=np.arange(60) % 2)
    return train(config(folder / "run", 1, data=str(folder / "images.npz"), eval_samples=8), progress=False).path


def test_the_wall_has_views_neighbours_a_map_collisions_and_duplicates(run: Path) -> None:
    assert refresh_pictures(run) == ""
    wall = json.loads((run / "pictures.json").read_text())
    assert wall["steps"] == 1
    assert len(wall["views"]) == 6
    assert {query["hit"] for query in wall["neighbours"]} == {True, False}
    for query in wall["neighbours"]:
        cosines = [row["cosine"] for row in query["found"]]
        assert cosines == sorted(cosines, reverse=True)
        votes = [row["label"] == query["label"] for row in query["found"]]
        assert sum(votes) >= 4 if query["hit"] else sum(votes) <= 4
    points = len(wall["map"]["colours"])
    assert [len(found) for found in wall["map"]["methods"].values()] == [points]
    assert wall["map"]["names"] == ["0", "1"]
    with Image.open(io.BytesIO(base64.b64decode(wall["map"]["atlas"].partition(",")[2]))) as atlas:
        assert atlas.size == (32 * 12, -(-points // 32) * 12)
    assert wall["copies"]["within"] + wall["copies"]["leaked"] == 1
    shown = [row["images"] for row in (*wall["collisions"], *wall["duplicates"])]
    assert {str(i) for pair in shown for i in pair} <= set(wall["tiles"])


def test_the_page_is_written_again_without_the_data(run: Path) -> None:
    refresh_pictures(run)
    (run.parent / "images.npz").rename(run.parent / "elsewhere.npz")
    try:
        from flatclr.report.page import write_report

        assert refresh_pictures(run) == ""  # nothing has changed
        page = write_report(run).read_text()
        assert refresh_pictures(run, patient=True).startswith("These pictures are of earlier weights: ")
    finally:
        (run.parent / "elsewhere.npz").rename(run.parent / "images.npz")
    Elements(page)
    assert "Worst collisions" in page
    assert page.count("data:image/webp") > 20


def test_a_run_without_an_encoder_says_why_it_has_no_pictures(tmp_path: Path) -> None:
    said = refresh_pictures(new_run(tmp_path / "run", []).path)
    assert said.startswith("No pictures: ")
    assert not (tmp_path / "run" / "pictures.json").exists()


def test_principal_components_keep_what_varies_most() -> None:
    rng = np.random.default_rng(1)
    plane = rng.normal(size=(50, 2)) * [5.0, 2.0]
    rotation, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    found = _principal(np.pad(plane, ((0, 0), (0, 4))) @ rotation, 2)
    centred = plane - plane.mean(0)
    np.testing.assert_allclose(
        np.sort(np.linalg.eigvalsh(found.T @ found)), np.sort(np.linalg.eigvalsh(centred.T @ centred))
    )


def test_a_copy_is_told_by_its_pixels() -> None:
    rng = np.random.default_rng(2)
    image = rng.integers(0, 200, (3, 16, 16), dtype=np.uint8)
    assert _is_copy(image, image + 2)
    assert not _is_copy(image, rng.integers(0, 200, (3, 16, 16), dtype=np.uint8))
