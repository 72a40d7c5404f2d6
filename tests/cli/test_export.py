"""`flatclr export`: both forms with the measured accuracies, one line for bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import flatclr
from flatclr.cli.main import main
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.models.export import export_folder
from flatclr.models.saving import save_encoder
from tests.support.networks import ABOUT, encoder


def command(monkeypatch: pytest.MonkeyPatch, code: int, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", "export", *map(str, arguments)])
    with pytest.raises(SystemExit, match=str(code)):
        main()


def noisy_images(samples: int, name: str) -> ResidentImages:
    images = torch.randint(0, 256, (samples, 3, 16, 16), dtype=torch.uint8)
    return ResidentImages(images, torch.arange(samples) % 2, name=name)


def test_the_command_writes_both_with_the_measured_accuracies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = encoder(width=4)
    save_encoder(tmp_path, made, description=ABOUT)
    noise = Dataset("noise", *(noisy_images(samples, name) for samples, name in ((40, "train"), (20, "test"))))
    flatclr.evaluate(tmp_path, noise, "knn", out=tmp_path / "evaluation")
    flatclr.evaluate(tmp_path, noise, "retrieval", out=tmp_path)
    command(monkeypatch, 0, tmp_path, "--onnx", tmp_path / "e.onnx", "--folder", tmp_path / "hub", "--json")
    written = json.loads(capsys.readouterr().out)
    assert written["largest_difference"] <= 1e-4
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "| knn v2 | noise | output | top1 | " in card
    assert "| retrieval v2 | noise | output | recall_at_1 | " in card
    with torch.no_grad():
        next(made.parameters()).add_(1)
    save_encoder(tmp_path, made, description=ABOUT)  # other weights: the results are not theirs
    command(monkeypatch, 0, tmp_path, "--folder", tmp_path / "hub")
    assert "| knn v2 |" not in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "config.json", "notes.txt"])
def test_a_folder_of_others_is_not_exported_into(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_encoder(tmp_path / "encoder", encoder(width=4), description=ABOUT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"model_type": "bert"}')
    command(monkeypatch, 2, tmp_path / "encoder", "--onnx", tmp_path / "e.onnx", "--folder", tmp_path / "mine")
    error = capsys.readouterr().err
    assert "must go to a new or empty folder or replace a former export, got" in error
    assert error.count("\n") == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == '{"model_type": "bert"}'
    assert not (tmp_path / "e.onnx").exists()
    with pytest.raises(FileExistsError, match="a folder with other files; pass another folder"):
        export_folder(encoder(width=4), tmp_path / "mine")
    with pytest.raises(FileExistsError, match=r"a file; pass another folder"):
        export_folder(encoder(width=4), tmp_path / "mine" / name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--onnx", "e.onnx"], "encoder must be"),
        (["."], "got neither --onnx nor --folder; pass one or both"),
        (["nowhere", "--onnx", "."], "must have a name of its own, got the folder .; pass encoder.onnx."),
        (["UNFINISHED", "--onnx", "e.onnx"], "got no encoder.json; finish it with flatclr train --resume UNFINISHED."),
        (["PAIRED", "--folder", "hub"], "one for each side; pass PAIRED/encoder_x or encoder_y."),
    ],
)
def test_the_command_answers_bad_input_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for run, part in (("UNFINISHED", "checkpoint"), ("PAIRED", "encoder_x")):
        (tmp_path / run / part).mkdir(parents=True)
        (tmp_path / run / "config.yaml").write_text("seed: 0\n")
    command(monkeypatch, 2, *arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
