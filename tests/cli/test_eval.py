"""`flatclr eval`: what it writes, what it keeps, one line for bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import flatclr
from flatclr.evaluation.results import read_results
from flatclr.models import build_encoder, save_encoder
from tests.support.evaluation import flatclr_eval, pictures, small_encoder
from tests.support.text import labelled, table
from tests.support.training_worker import config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    parts = dict(
        zip(
            ("train_images", "train_labels", "test_images", "test_labels"),
            (*pictures(240, seed=0), *pictures(90, seed=1)),
            strict=True,
        )
    )
    np.savez(folder / "pictures.npz", **{name: part.numpy() for name, part in parts.items()})
    return flatclr.train(config(folder / "run", 6, data=str(folder / "pictures.npz"))).path


def test_the_command_writes_results_and_a_picture_and_keeps_earlier_rows(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", run, "--protocol", "knn")
    text = capsys.readouterr().out
    assert "knn on pictures" in text
    assert "random weights" in text
    folder = run / "evaluation"
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", run, "--protocol", "retrieval", "--layer", "all", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines[-2:]] == ["row", "end"]
    layers = [line["layer"] for line in lines[:-1] if line["weights"] == "trained"]
    assert layers == [*(f"encoder.layer{i}" for i in (1, 2, 3, 4)), "head.linear1", "head.relu1", "head.linear2"]
    found = read_results(folder)
    assert found is not None
    assert {row.protocol for row in found.rows} == {"knn", "retrieval"}
    assert found["knn"].scores["top1"].low < found["knn"].scores["top1"].high


def test_results_under_other_settings_keep_the_earlier_ones_beside_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = ("eval", run, "--no-random-row", "--no-cache", "--out", tmp_path, "--protocol")
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "knn")
    assert "are kept in" not in capsys.readouterr().out
    earlier = (tmp_path / "results.json").read_bytes()
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "retrieval,knn", "--mean", "0.4", "--std", "0.3")
    (kept,) = tmp_path.glob("results-*.json")
    assert kept.read_bytes() == earlier
    assert f"earlier results of other weights or settings are kept in {kept}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "geometry", "--mean", "0.4", "--std", "0.3", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["set_aside"] == ""
    found = read_results(tmp_path)
    assert found is not None
    assert {row.protocol for row in found.rows} == {"retrieval", "knn", "geometry"}
    assert found.set_aside == kept.name
    assert list(tmp_path.glob("results-*.json")) == [kept]


def test_sentences_of_two_tables_are_measured_beside_random_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_encoder(tmp_path, build_encoder("bigru", channels=32, image_size=1, width=4, hidden=3), description={})
    for seed, name in enumerate(("train.csv", "test.csv")):
        (tmp_path / name).write_text(table(*labelled(40, slice(8), seed=seed)))
    data = f"{tmp_path / 'train.csv'},{tmp_path / 'test.csv'}"
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", tmp_path, "--data", data, "--protocol", "knn,linear", "--seed", "3", "--json")
    *lines, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(line["protocol"], line["weights"]) for line in lines] == [
        (protocol, weights) for protocol in ("knn", "linear") for weights in ("trained", "random")
    ]
    assert {line["data"] for line in lines} == {"train+test"}
    assert all(line["scores"]["top1"]["low"] < line["scores"]["top1"]["high"] for line in lines)
    assert end["results"] == str(tmp_path / "evaluation" / "results.json")
    assert len(list((tmp_path / "evaluation" / "features").iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "which does not exist; check the path"),
        (["RUN", "--protocol", "knnn"], "did you mean 'knn'?"),
        (["RUN", "--data", "nowhere"], "data must be an existing path"),
        (["RUN", "--layer", "layer9"], "layer must be one of"),
        (["DAMAGED/encoder.safetensors"], "it is damaged or belongs to another encoder.json"),
        (["UNFINISHED"], "must hold a finished run, got no encoder.json; finish it with flatclr train --resume"),
        (["UNFINISHED", "--layer", "all"], "finish it with flatclr train --resume"),
        (["PAIRED"], "PAIRED/checkpoint"),
        (["timm:resnet18"], "needs timm"),
    ],
)
def test_the_command_answers_bad_input_in_one_line(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    save_encoder(tmp_path / "DAMAGED", small_encoder(), description={})
    weights = tmp_path / "DAMAGED" / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    for unfit, part in (("UNFINISHED", "checkpoint"), ("PAIRED", "encoder_x")):
        (tmp_path / unfit / part).mkdir(parents=True)
        (tmp_path / unfit / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(monkeypatch, "eval", *(str(run) if a == "RUN" else a for a in arguments))
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
