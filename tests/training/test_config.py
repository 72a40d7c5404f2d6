"""Settings that contradict each other or are of the wrong kind are named before any work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from flatclr.cli import train as cli_train
from flatclr.cli.main import app
from flatclr.data.opening import from_anywhere
from flatclr.objectives import OBJECTIVES
from flatclr.training.build_objective import build_objective
from flatclr.training.config import SUPERVISED, TrainConfig
from flatclr.training.recipes import RECIPES
from flatclr.training.trainer import train
from tests.support.training_worker import config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "flatnc"}, "objective must be one of .* did you mean 'flatnce'"),
        ({"objective": "supervized"}, "objective must be one of .* did you mean 'supervised'"),
        ({"batch_sise": 3}, "setting must be one of .* did you mean 'batch_size'"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number > 0, got -1.0"),
        ({"momentum": 0.9}, "pairing must be 'one_way' with a momentum encoder"),
        ({"ess_target": 1.5}, "ess_target must be a finite number > 0 and < 1"),
        ({"precision": "fp8"}, "precision must be one of"),
    ],
)
def test_a_bad_setting_is_named_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig().changed(**settings)


def test_every_objective_that_has_a_name_is_offered() -> None:
    with pytest.raises(ValueError, match="objective must be one of") as refused:
        TrainConfig().changed(objective="nonsense")
    offered = set(re.findall(r"'(\w+)'", str(refused.value))) - {"nonsense"}
    assert offered == {*OBJECTIVES, SUPERVISED}  # one from Python has none
    for name in offered:
        assert TrainConfig().changed(objective=name).objective == name


def test_recipes_are_whole_configs_that_survive_a_round_trip() -> None:
    for make in RECIPES.values():
        assert TrainConfig.from_dict(make().to_dict()) == make()
        build_objective(make())


def test_an_ess_target_takes_the_place_of_a_recipes_temperature() -> None:
    changed = RECIPES["cifar10-infonce"]().changed(ess_target=0.3)
    assert (changed.ess_target, changed.temperature) == (0.3, None)
    assert build_objective(changed).scale.control.target == 0.3  # type: ignore[union-attr]
    assert RECIPES["cifar10-infonce"]().changed(ess_target=None).temperature == 0.5


@pytest.mark.parametrize(
    ("objective", "bounds"),
    [("flatnce", (1.0, 10.0, 100.0)), ("rpc", (0.1 / 128, 1 / 128, 10 / 128)), ("fmicl", (0.2, 2.0, 20.0))],
)
def test_control_begins_at_the_objectives_own_temperature(objective: str, bounds: tuple[float, ...]) -> None:
    control = build_objective(TrainConfig(objective=objective)).scale.control  # type: ignore[union-attr]
    assert (control.minimum, control.inverse_temperature.item(), control.maximum) == pytest.approx(bounds)


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "0.1", "--ess-target", "0.3"],
        ["--temperature", "0.1", "--set", "ess_target=0.3"],
        ["--set", "steps=3", "--epochs", "2"],
    ],
    ids=" ".join,
)
def test_settings_that_contradict_each_other_are_refused_however_they_are_given(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_train, "train", lambda *_, **__: pytest.fail("it must not begin"))
    result = CliRunner().invoke(app, ["train", *flags])
    assert isinstance(result.exception, ValueError)
    assert "must be given, got both; leave one out" in str(result.exception)


def test_a_temperature_among_the_options_of_the_objective_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature must be a setting of its own, .*; use --temperature 0\.3"):
        build_objective(TrainConfig(objective_options={"temperature": 0.3}))


def test_paths_may_be_paths(tmp_path: Path) -> None:
    made = TrainConfig(out=tmp_path / "run", data=tmp_path, data_dir=tmp_path)  # type: ignore[arg-type]
    assert (made.out, made.data, made.data_dir) == (str(tmp_path / "run"), str(tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": "abc"}, "seed must be a whole number, got 'abc'; pass one"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5; pass one"),
        ({"out": 7}, "out must be a path, got 7; put it in quotes"),
        ({"weight_decay": "abc"}, "weight_decay must be a finite number .* got 'abc'; pass 0 or more"),
    ],
    ids=str,
)
def test_settings_of_the_wrong_kind_are_shown(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"steps": 3}}, "config must be a TrainConfig, got dict; pass"),
        ({"data": 3.5}, "data must be a path or name, a flatclr Dataset, .*, got float; pass"),
        ({"encoder": nn.Linear}, "encoder must be a torch.nn.Module, got type; pass an instance"),
        ({"objective": "flatnce"}, "objective must be a flatclr.Objective, got str; name one"),
        ({"on_event": print}, r"on_event must be a list of functions, got .*; pass \[f\]"),
        ({"on_event": [3]}, r"on_event must be a list of functions, got \[3\]; pass"),
        ({"on_event": [lambda trainer, row: None]}, r"on_event must hold functions of one event, got .*; write def"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_the_wrong_kind_are_refused_before_anything_is_written(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=message):
        train(**({"config": config(tmp_path / "run", 2)} | arguments))
    assert not (tmp_path / "run").exists()


def test_paths_are_made_absolute_only_where_they_lead_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.npy", "y.npy", "a.tar", "with,comma"):
        (tmp_path / name).touch()
    for given, expected in {
        "x.npy, y.npy": f"{tmp_path}/x.npy,{tmp_path}/y.npy",
        "*.tar": f"{tmp_path}/*.tar",
        "with,comma": f"{tmp_path}/with,comma",
        "cifar1": "cifar1",
        "hf:mnist": "hf:mnist",
    }.items():
        assert from_anywhere(given) == expected
    with pytest.raises(FileNotFoundError, match="did you mean 'cifar10'"):
        train(config(tmp_path / "run", 2, data="cifar1"))
