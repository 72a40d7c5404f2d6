"""Fine-tuning that keeps the classifier."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flatclr.cli.main import app
from flatclr.evaluation import finetune, load_classifier
from flatclr.evaluation.classifier import labels_asked
from flatclr.models import Normalisation, build_encoder, save_encoder
from tests.support.images import write_png


def halves(count: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that are told apart by which half is bright, with noise."""
    labels = torch.arange(count) % 2
    images = torch.randint(0, 100, (count, 3, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[labels == 1, :, :6] += 150
    images[labels == 0, :, 6:] += 150
    return images, labels


def small_encoder() -> torch.nn.Module:
    encoder = build_encoder("cnn", channels=3, image_size=12, width=4)
    encoder.normalisation = Normalisation((0.5,) * 3, (0.25,) * 3)
    return encoder


def test_a_classifier_is_kept_with_its_accuracy_and_predicts_the_same_after_loading(tmp_path: Path) -> None:
    images, labels = halves()
    made = finetune(small_encoder(), (images, labels), labels="30%", device="cpu")
    read = load_classifier(made.save(tmp_path / "new"))

    assert made.accuracy.low <= made.accuracy.value <= made.accuracy.high
    assert made.accuracy.value > 0.9
    assert made.about["labels"] == 32  # of 108, as many of each class
    torch.testing.assert_close(read.scores(images), made.scores(images))
    assert read.predict(images[:4]) == ["0", "1", "0", "1"]
    assert read.about == made.about


@pytest.mark.parametrize(
    ("asked", "share"), [("10%", 0.1), (0.1, 0.1), ("100", 0.5), (100, 0.5), ("1", 1.0), (1.0, 1.0)]
)
def test_labels_are_a_share_or_a_number(asked: str | float, share: float) -> None:
    assert labels_asked(asked, 200) == pytest.approx(share)


@pytest.mark.parametrize("asked", ["", "0", "-5%", "many", "120%", "500", True])
def test_other_numbers_of_labels_are_refused(asked: str | bool) -> None:
    with pytest.raises(ValueError, match="labels must be a share such as 10%, or a number of images up to 200, got"):
        labels_asked(asked, 200)


def test_the_command_says_accuracy_with_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_encoder("encoder", small_encoder(), description={})
    for i, (image, label) in enumerate(zip(*halves(60), strict=True)):
        name = ["lower half", "upper half"][int(label)]
        write_png(tmp_path / "data" / name / "more" / f"{i}.png", image.permute(1, 2, 0).numpy())
    arguments = ["finetune", "encoder", "--data", "data", "--labels", "50%", "--device", "cpu", "--epochs", "20"]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout.splitlines()

    assert said[0].startswith("accuracy ")
    assert said[0].endswith("(95 %) on 6 held-out images, 2 classes, from 28 labels (51.9 %)")
    assert said[1] == "classifier: encoder/finetuned"
    assert load_classifier("encoder/finetuned").classes == ("lower half", "upper half")
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json", "--out", "b"], catch_exceptions=False).stdout)
    assert told["classes"] == ["lower half", "upper half"]


def test_bad_data_is_refused(tmp_path: Path) -> None:
    images, _ = halves(20)
    for data, message in (
        (images, "data must have labelled images, got no labels; sort them into folders"),
        ((images, torch.zeros(20, dtype=torch.int64)), "at least 2 classes"),
        (None, "data must be named"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(small_encoder(), data)
    with pytest.raises(FileNotFoundError, match=r"got no classifier\.json"):
        load_classifier(tmp_path)
    made = finetune(small_encoder(), halves(40), epochs=1, device="cpu").save(tmp_path)
    (made / "classifier.safetensors").write_bytes(np.random.default_rng(0).bytes(100))
    with pytest.raises(ValueError, match="got damaged files; copy them again"):
        load_classifier(made)
