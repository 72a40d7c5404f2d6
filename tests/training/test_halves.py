"""Runs on two halves of every image: shapes kept, one tower or two, evaluated from either side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flatclr
from flatclr.cli.main import main
from flatclr.data.sources import PairedArrays
from flatclr.models.network import TwoTowers
from flatclr.training.build import build, what_to_know
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


@pytest.fixture
def striped(tmp_path: Path) -> str:
    """Images of four classes, by the brightness of columns that both upper and lower half show."""
    rng = np.random.default_rng(0)
    labels = np.arange(320) % 4
    images = rng.integers(0, 100, (320, 12, 12), dtype=np.uint8)
    for label in range(4):
        images[labels == label, :, 3 * label : 3 * label + 3] += 120
    np.savez(tmp_path / "striped.npz", images=images, labels=labels)
    return str(tmp_path / "striped.npz")


def halves_config(out: Path, data: str, **settings: Any) -> TrainConfig:
    return config(out, 2, data=data, halves="top-bottom", eval_samples=16).changed(**settings)


def test_a_run_on_halves_learns_and_is_evaluated_from_either_side(striped: str, tmp_path: Path) -> None:
    run = train(halves_config(tmp_path / "run", striped, steps=60, batch_size=32)).path
    found = flatclr.evaluate(run, protocol=["retrieval", "knn", "linear"], random_row=False)
    scores = {(row.protocol, row.variant): row.best.value for row in found.rows}
    for side in ("x", "y"):
        assert scores["knn", f"from side {side}"] > 0.9
        assert scores["linear", f"from side {side}"] > 0.9
    assert scores["retrieval", "x to y"] > 2 / 32
    only = flatclr.evaluate(run, protocol="linear", random_row=False)
    assert [row.variant for row in only.rows] == ["from side x", "from side y"]
    for layer in ("all", "nonsense"):
        with pytest.raises(ValueError, match=f"layer must be left out for a network on pairs, got '{layer}'"):
            flatclr.evaluate(run, layer=layer, device="cpu")
    with pytest.raises(ValueError, match="protocol finetune must be for whole images, got their halves"):
        flatclr.evaluate(run, protocol="finetune")


@pytest.mark.parametrize("encoder", ["cnn", "mlp"])
def test_one_tower_for_both_halves_is_one(encoder: str, striped: str, tmp_path: Path) -> None:
    settings = {"towers": "shared", "encoder": encoder, "encoder_options": {"width": 8}}
    run = train(halves_config(tmp_path / "run", striped, **settings)).path
    network = flatclr.load_network(run)
    assert isinstance(network, TwoTowers)
    shape = (2, 72) if encoder == "mlp" else (2, 1, 6, 12)
    half = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    z_x, z_y = network(half, half)
    torch.testing.assert_close(z_x, z_y, rtol=0, atol=0)
    apart = flatclr.load_network(train(halves_config(tmp_path / "apart", striped)).path)
    assert not torch.equal(*apart(torch.rand(2, 1, 6, 12), torch.rand(2, 1, 6, 12)))


def test_pairs_of_images_that_are_not_square_stay_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((16, 1, 6, 12), dtype=np.float32)
    np.savez(tmp_path / "pairs.npz", x=x, y=x[::-1])
    source = build(config(tmp_path / "run", 2, data=str(tmp_path / "pairs.npz"), eval_samples=4)).data.source
    assert isinstance(source, PairedArrays)
    assert source.x.shape[1:] == (1, 6, 12)


def test_images_that_are_not_square_are_said_to_be_cropped(tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((16, 14, 28), np.uint8))
    said = list(what_to_know(build(config(tmp_path / "run", 2, data=str(tmp_path / "wide.npy"), eval_samples=4))))
    assert said == ["images of 14 x 28 are cropped to their middle, 14 x 14."]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"halves": "diagonal"}, "halves must be one of 'top-bottom', 'left-right', got 'diagonal'"),
        ({"views_per_image": 3}, "views_per_image must be 2 for paired data, got 3"),
        ({"views": {"flip": 0.0}}, r"views must be left out for paired data, got \['flip'\]"),
        ({"positives": "class"}, "positives must be 'views' for halves of images, got 'class'"),
        ({"halves": None, "towers": "shared"}, "towers must be left out for images, got 'shared'"),
        ({"towers": "three"}, "towers must be one of 'separate', 'shared', got 'three'"),
    ],
)
def test_settings_that_do_not_fit_halves_are_refused(
    settings: dict[str, Any], message: str, striped: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        build(halves_config(tmp_path / "run", striped).changed(**settings))


def test_the_option_views_takes_a_number_or_halves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[TrainConfig] = []

    class StopHereError(ValueError):
        pass

    def stop(given: TrainConfig, **_: Any) -> None:
        asked.append(given)
        raise StopHereError

    monkeypatch.setattr("flatclr.cli.train.train", stop)
    for text in ("3", "halves", "halves:left-right", "many"):
        monkeypatch.setattr(sys, "argv", ["flatclr", "train", "--views", text])
        with pytest.raises(SystemExit):
            main()
    assert [(one.views_per_image, one.halves) for one in asked] == [(3, None), (2, "top-bottom"), (2, "left-right")]
    assert "--views must be a whole number, or halves, got 'many'" in capsys.readouterr().err
