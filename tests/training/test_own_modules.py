"""Encoders and objectives of the user's own are trained, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.models.saving import load_encoder
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.training_worker import config


class Pooled(nn.Module):
    """An encoder that says nothing about its width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).relu().mean((2, 3))


def test_a_module_of_the_users_own_is_trained_saved_and_resumed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder, fresh = Pooled(), Pooled()
    start = encoder.conv.weight.clone()
    result = train(config(tmp_path / "run", 8, encoder_options={}), encoder=encoder)
    assert not torch.equal(encoder.conv.weight, start)
    loaded = load_encoder(result.path, into=Pooled())
    assert torch.equal(loaded.conv.weight, encoder.conv.weight)
    (result.path / "checkpoint" / "step-000000008.pt").unlink()
    train(TrainConfig(), resume=result.path, encoder=fresh)
    assert torch.equal(fresh.conv.weight, encoder.conv.weight)


def test_an_encoder_without_flat_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the encoder must return features \[N, d\], got shape \[2, 6, 26, 26\]"):
        train(config(tmp_path / "run", 2), encoder=nn.Conv2d(1, 6, 3))
    assert not (tmp_path / "run").exists()


def test_a_run_with_an_encoder_of_the_users_own_says_so_when_resumed_without_it(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4, encoder_options={}), encoder=Pooled()).path
    with pytest.raises(ValueError, match="the run trained an encoder of your own, got none"):
        train(TrainConfig(), resume=run)


class Margin(flatclr.Objective):
    """The gap of every anchor, as far as it is above a margin."""

    def loss(self, pairs: flatclr.PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, flatclr.ContrastStats]:
        stats = flatclr.stats_of(pairs, inverse_temperature)
        return (stats.gap + 1).relu().mean(), stats


def test_an_objective_of_ones_own_trains_and_resumes(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", 6), objective=Margin(temperature=0.2)).path
    run = train(config(tmp_path / "run", 6), objective=Margin(temperature=0.2)).path
    (run / "checkpoint" / "step-000000006.pt").unlink()
    settings = RunDirectory(run).config()
    assert (settings["objective"], settings["ess_target"], settings["temperature"]) == ("own", None, None)
    with pytest.raises(ValueError, match=r"objective must be passed where it is one of your own, got none; call"):
        train(TrainConfig(), resume=run)
    train(TrainConfig(), resume=run, objective=Margin(temperature=0.2))
    weights = [flatclr.load_network(path).state_dict() for path in (whole, run)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    with pytest.raises(ValueError, match="objective must be passed where it is one of your own"):
        train(config(tmp_path / "none", 2, objective="own"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"pairing": "one_way"}, {}, "must have pairing='one_way' as the config, got 'two_view'; make it with that"),
        ({"negatives_per_anchor": 3}, {}, "negatives_per_anchor must be left to your own objective, got 3; pass it"),
        (
            {"ess_per_anchor": True},
            {},
            r"left to your own objective, got True; make that with temperature=EssControl\(",
        ),
        ({"prefixes": [4]}, {}, r"prefixes must be left to your own objective, got \[4\]; wrap that in Matryoshka"),
        ({"objective_options": {"value": "paper"}}, {}, "objective_options must be left to your own objective"),
        ({"data": "pairs.npz", "encoder": "auto"}, {}, "must have pairing='cross' for paired data, got 'two_view'"),
        ({"data": "pairs.npz", "encoder": "auto"}, {"pairing": "cross"}, None),
    ],
    ids=str,
)
def test_what_a_config_says_of_the_objective_must_agree_with_ones_own(
    settings: dict[str, Any],
    options: dict[str, Any],
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("pairs.npz", x=np.random.rand(40, 3).astype("f"), y=np.random.rand(40, 2).astype("f"))
    given = config(tmp_path / "run", 2, **settings, **({"encoder_options": {}} if "data" in settings else {}))
    if message is None:
        train(given, objective=flatclr.FlatNCE(**options))
        return
    with pytest.raises(ValueError, match=message):
        train(given, objective=flatclr.FlatNCE(**options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("own", ["objective", "encoder"])
def test_a_run_of_this_package_is_not_resumed_with_ones_own(own: str, tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4)).path
    mine = {"objective": flatclr.InfoNCE(0.5), "encoder": nn.Flatten()}
    with pytest.raises(ValueError, match=rf"{own} must be that of the run, '\w+', got one of your own; leave it out"):
        train(TrainConfig(), resume=run, **{own: mine[own]})
