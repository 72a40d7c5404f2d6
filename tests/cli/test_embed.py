"""`flatclr embed` and `flatclr neighbours`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from flatclr.cli.main import app, main
from flatclr.models import build_encoder, save_encoder
from tests.support.images import color_png, write_png


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for i in range(8):
        color_png(tmp_path / "my photos" / f"{i}.png")
    Image.open(tmp_path / "my photos" / "3.png").save(tmp_path / "my photos" / "copy.png")
    save_encoder(tmp_path / "encoder", build_encoder("mlp", channels=3, image_size=8, width=16), description={})
    return tmp_path


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_features_names_and_what_was_written_are_said(folder: Path) -> None:
    line = said("embed", "encoder", "--data", "my photos", "--out", "emb.npz", "--device", "cpu")
    assert line == "emb.npz: 9 images, 16 features each, names, no labels\n"
    told = json.loads(said("embed", "encoder", "--data", "my photos", "--out", "emb.parquet", "--json"))
    assert told == {"embeddings": "emb.parquet", "images": 9, "features": 16, "labels": None}
    with np.load("emb.npz") as read:
        assert read["names"].tolist() == pd.read_parquet("emb.parquet")["name"].tolist()


def test_an_image_finds_its_copy_first_and_not_itself(folder: Path) -> None:
    page = said("neighbours", "encoder", "my photos/3.png", "--data", "my photos", "-k", "4", "--out", "near.png")
    table = pd.read_csv("near.csv")

    assert table["neighbour"][0] == "copy.png"
    assert table["cosine"][0] == pytest.approx(1, abs=1e-3)
    assert len(table) == 4
    assert "3.png" not in set(table["neighbour"])
    assert "copy.png" in page
    with Image.open("near.png") as sheet:
        assert sheet.width > 5 * 160


def test_an_image_from_outside_the_folder_finds_neighbours(folder: Path) -> None:
    write_png(folder / "new.png", np.asarray(Image.open("my photos/5.png")))
    rows = said("neighbours", "encoder", "new.png", "--data", "my photos", "--json").splitlines()
    assert json.loads(rows[0])["neighbour"] == "5.png"
    assert json.loads(rows[-1]) == {"sheet": "neighbours.png", "table": "neighbours.csv", "rows": 8}


def test_duplicates_and_outliers_of_a_folder(folder: Path) -> None:
    said("neighbours", "encoder", "--data", "my photos", "--duplicates", "--threshold", "0.9999", "--out", "dup.html")
    assert pd.read_csv("dup.csv")[["first", "second"]].to_numpy().tolist() == [["3.png", "copy.png"]]
    assert Path("dup.html").read_text().count("<figure") == 2
    said("neighbours", "encoder", "--data", "my photos", "--outliers", "--most", "4", "-k", "1", "--out", "out.html")
    table = pd.read_csv("out.csv")
    assert set(table["image"][-2:]) == {"3.png", "copy.png"}
    assert table["distance"].is_monotonic_decreasing
    assert Path("out.html").read_text().count("<figure") == 4


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    encoder = build_encoder("bigru", channels=32, image_size=1, width=4, hidden=3)
    save_encoder(tmp_path / "encoder", encoder, description={})
    (tmp_path / "book.txt").write_text("The ship sailed. A dog ran off!\n\nThe ship sailed. It sank.")
    (tmp_path / "mine.csv").write_text("text,label\nThe ship sailed.,sea\nA dog ran off!,land\n")
    return tmp_path


def test_sentences_and_their_labels_are_written_and_said(texts: Path) -> None:
    assert said("embed", "encoder", "--data", "book.txt") == (
        "embeddings.npz: 4 sentences, 6 features each, names, no labels\n"
    )
    with np.load("embeddings.npz") as read:
        assert read["names"].tolist() == ["The ship sailed.", "A dog ran off!", "The ship sailed.", "It sank."]
        assert np.array_equal(read["features"][0], read["features"][2])
    told = json.loads(said("embed", "encoder", "--data", "mine.csv", "--out", "mine.parquet", "--json"))
    assert told == {"embeddings": "mine.parquet", "sentences": 2, "features": 6, "labels": 2}
    assert pd.read_parquet("mine.parquet")["label"].tolist() == ["sea", "land"]


def test_sentences_have_neighbours_duplicates_and_outliers_in_a_table_alone(texts: Path) -> None:
    rows = said("neighbours", "encoder", "A ship sailed.", "It sank.", "--data", "book.txt", "-k", "2", "--json")
    *found, told = map(json.loads, rows.splitlines())
    assert [row["sentence"] for row in found] == ["A ship sailed."] * 2 + ["It sank."] * 2
    assert "It sank." not in [row["neighbour"] for row in found[2:]]
    assert told == {"sheet": None, "table": "neighbours.csv", "rows": 4}
    assert "The nearest of 4 sentences of book" in said("neighbours", "encoder", "It sank.", "--data", "book.txt")
    said("neighbours", "encoder", "--data", "book.txt", "--duplicates", "--threshold", "0.99999", "--out", "dup.html")
    assert "The ship sailed." in pd.read_csv("dup.csv")[["first", "second"]].to_numpy()
    said("neighbours", "encoder", "--data", "mine.csv", "--outliers", "-k", "1", "--out", "out.html")
    assert set(pd.read_csv("out.csv")) == {"sentence", "distance", "label"}
    assert not [*texts.glob("*.html"), *texts.glob("*.png")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "encoder", "--data", "empty.txt"], "empty.txt must hold sentences, got none"),
        (["embed", "encoder", "--data", "images"], "the data must be sentences, got images (images)"),
        (["embed", "pictures", "--data", "book.txt"], "the data must be images, got paired sentences (book)"),
        (["embed", "pictures", "--data", "mine.csv"], "the data must be images, got sentences (mine)"),
        (["eval", "pictures", "--data", "mine.csv"], "the data must be images, got sentences (mine)"),
        (["eval", "encoder", "--data", "book.txt"], "the data must be sentences, got paired sentences (book)"),
        (["eval", "encoder", "--data", "images"], "the data must be sentences, got images (images)"),
        (["eval", "encoder", "--data", "mine.csv,mine.csv", "--protocol", "mi"], "protocol mi must be for images"),
        (["finetune", "encoder", "--data", "mine.csv"], "an encoder must take images here, got encoder"),
        (["neighbours", "pictures", "A sentence.", "--data", "images"], "images must be files, got 'A sentence.'"),
    ],
)
def test_images_and_sentences_do_not_go_together(
    arguments: list[str],
    message: str,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (texts / "empty.txt").touch()
    for i in range(3):
        color_png(texts / "images" / f"{i}.png")
    save_encoder(texts / "pictures", build_encoder("mlp", channels=3, image_size=8, width=4), description={})
    monkeypatch.setattr("sys.argv", ["flatclr", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["neighbours", "encoder", "--data", "my photos"],
            "exactly one of images (or sentences), --duplicates and --outliers",
        ),
        (["neighbours", "encoder", "gone.png", "--data", "my photos"], "images must be files, got 'gone.png'"),
        (["neighbours", "encoder", "--outliers", "--out", "a.gif"], "out must end in .png or .html, got 'a.gif'"),
        (["neighbours", "encoder", "--outliers", "-k", "0"], "--neighbours must be a whole number >= 1"),
        (["embed", "encoder", "--out", "a.csv"], "out must end in .npz or .parquet, got 'a.csv'"),
        (["embed", "encoder"], "data must be named for an encoder without a run"),
        (["embed", "gone", "--data", "my photos"], "which does not exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["flatclr", *arguments])
    before = sorted(folder.iterdir())
    with pytest.raises(SystemExit) as stopped:
        main()

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
