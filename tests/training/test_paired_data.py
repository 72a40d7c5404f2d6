"""Paired data train two towers that find each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import flatclr
from flatclr.data.sources import Dataset, PairedArrays
from flatclr.models.network import TwoTowers
from flatclr.models.saving import load_encoder
from flatclr.runs import RunDirectory
from flatclr.training.build import build
from flatclr.training.events import Event, Warned
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit, train
from tests.support.training import paired_npz
from tests.support.training_worker import config


def test_paired_data_train_two_towers_that_find_each_other(tmp_path: Path) -> None:
    data = str(paired_npz(tmp_path / "pairs.npz"))
    settings = {"data": data, "encoder": "auto", "encoder_options": {"width": 32}, "batch_size": 32, "eval_start": True}
    result = train(config(tmp_path / "run", 120, **settings, learning_rate=3e-3, log_every=60))
    rows = [row for row in RunDirectory.open(result.path).metrics() if row["kind"] == "evaluation"]
    assert rows[0]["retrieval_at_1"] < 0.3
    assert rows[-1]["retrieval_at_1"] > 0.6
    assert rows[-1]["pool_mi_best_nats"] > rows[0]["pool_mi_best_nats"] + 0.5
    x, y = (load_encoder(result.path / f"encoder_{side}") for side in "xy")
    assert x(torch.zeros(3, 12)).shape == y(torch.zeros(3, 6)).shape == (3, 32)
    log = next(row for row in RunDirectory.open(result.path).metrics() if row["kind"] == "log")
    assert log["ceiling_nats"] == pytest.approx(math.log(32))  # cross: 31 negatives and the positive


def test_images_and_rows_may_be_paired(tmp_path: Path) -> None:
    pairs = PairedArrays(torch.rand(64, 1, 16, 16), torch.rand(64, 5))
    parts = build(config(tmp_path, 2, encoder="auto", encoder_options={}), data=Dataset("mixed", pairs, None))
    network = parts.train_step.bare_network
    assert isinstance(network, TwoTowers)
    assert [type(t.encoder).__name__ for t in (network.tower_x, network.tower_y)] == ["SmallCNN", "MLP"]
    fit(Recorder(parts))


def test_the_network_of_a_paired_run_finds_the_partner_of_every_row(tmp_path: Path) -> None:
    """Which the encoders alone do not: the spaces of their features have nothing to do with each other."""
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    y = x @ torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "pairs.npz", x=x.numpy(), y=y.numpy())
    settings = {"data": str(tmp_path / "pairs.npz"), "encoder": "auto", "batch_size": 32, "eval_every": 150}
    run = train(config(tmp_path / "run", 150, **settings, encoder_options={"width": 64}))
    random_state = torch.get_rng_state()
    z_x, z_y = flatclr.load_network(run.path)(x, y)
    assert torch.equal(torch.get_rng_state(), random_state)
    found = (z_x / z_x.norm(dim=1, keepdim=True)) @ (z_y / z_y.norm(dim=1, keepdim=True)).T
    assert (found.argmax(1) == torch.arange(200)).float().mean() > 0.9
    assert run.metrics["retrieval_at_1"] > 0.9


def test_paired_data_have_no_view_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", x=np.random.rand(40, 3).astype("f"), y=np.random.rand(40, 2).astype("f"))
    with pytest.raises(ValueError, match=r"view_size must be None for paired data, got 20"):
        train(config(tmp_path / "run", 3, data=str(tmp_path / "pairs.npz"), encoder="auto", view_size=20))


def test_paired_data_are_compared_across_unless_a_pairing_is_named(tmp_path: Path) -> None:
    pairs = Dataset("pairs", PairedArrays(torch.rand(64, 4), torch.rand(64, 4)), None)
    settings = config(tmp_path / "run", 2, encoder="auto", encoder_options={})
    with pytest.raises(ValueError, match="objective must have pairing='cross' for paired data, got 'two_view'"):
        train(settings, data=pairs, objective=flatclr.InfoNCE(gather=True))
    for own, pairing in ((None, "two_view"), (None, "within"), (flatclr.InfoNCE(gather=True), "two_view")):
        heard: list[Event] = []
        named = settings.changed(pairing=pairing, out=str(tmp_path / f"{pairing}-{own is None}"))
        train(named, data=pairs, objective=own, on_event=[heard.append])
        said = [event.message for event in heard if isinstance(event, Warned)]
        assert (
            f"pairing {pairing!r} compares rows of one side with each other too; for paired data 'cross' is usual."
            in said
        )
