from __future__ import annotations

import ast
import math
import shlex
from typing import Any

import pytest
import torch
import typer.main

import flatclr
from flatclr.cli.main import app
from flatclr.cli.options import parsed_setting
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.examination import diagnose
from flatclr.doctor.remedies import (
    IN_A_LOOP,
    WITH_OPTION,
    another_rate,
    code_for,
    milder_views,
    stronger_views,
    train_command,
)
from flatclr.doctor.rules import RULES
from flatclr.training.config import TrainConfig
from tests.doctor.test_rules import EDGES

PHOTOS = {**TrainConfig().to_dict(), "data": "my photos", "objective": "infonce", "temperature": 0.1, "out": "runs/a"}


def options_of(word: str) -> set[str]:
    command: Any = typer.main.get_command(app).commands[word]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in parameter.opts}


def test_settings_with_an_option_are_those_of_flatclr_train() -> None:
    flags = options_of("train")
    assert {f"--{name.replace('_', '-')}" for name in WITH_OPTION} <= flags


def test_a_command_has_what_differs_from_the_defaults_and_the_changes() -> None:
    command = train_command(Evidence([], PHOTOS), ess_target=0.25)
    assert command == "flatclr train --data 'my photos' --objective infonce --ess-target 0.25"


@pytest.mark.parametrize(
    ("optimizer", "rate", "advised"), [("adamw", 1000.0, 1e-3), ("adamw", 5e-3, 5e-4), ("sgd", 1000.0, 10.0)]
)
def test_a_rate_that_is_far_too_high_is_brought_back_to_what_the_optimizer_takes(
    optimizer: str, rate: float, advised: float
) -> None:
    """A thousand was to be lowered to twenty."""
    rows = [{"step": 1, "update_ratio": 0.1 if optimizer == "sgd" else 0.01}]
    evidence = Evidence(rows, {**PHOTOS, "optimizer": optimizer, "learning_rate": rate})
    assert another_rate("learning_rate_too_high", evidence, rate) == advised


def test_what_was_left_to_the_run_is_left_to_the_next() -> None:
    evidence = Evidence(
        [], {**PHOTOS, "data": "fashion", "image_size": 28}, left_open=frozenset({"data", "image_size"})
    )
    assert (
        train_command(evidence, batch_size=64) == "flatclr train --objective infonce --temperature 0.1 --batch-size 64"
    )


def test_what_came_from_python_has_no_command() -> None:
    for settings in ({"data": None}, {"encoder": "own"}, {"objective": "own"}):
        assert train_command(Evidence([], {**PHOTOS, **settings}), batch_size=64) is None


def config_of(command: str) -> TrainConfig:
    """What `flatclr train` makes of a command line; each option must exist."""
    program, word, *words = shlex.split(command)
    assert (program, word) == ("flatclr", "train")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    assert {flag for flag, _ in pairs} <= options_of("train")
    texts = [value if flag == "--set" else f"{flag[2:]}={value}" for flag, value in pairs]
    settings = dict(map(parsed_setting, texts))
    for one, other in (("temperature", "ess_target"), ("steps", "epochs")):
        assert not {one, other} <= set(settings)  # which are refused together
    return TrainConfig().changed(**settings)


WHOLE = {**TrainConfig().to_dict(), "data": "my photos", "encoder": "cnn"}
RUNS = {
    "infonce": {**WHOLE, "objective": "infonce", "temperature": 0.1, "workers": 2, "eval_samples": 100},
    "sogclr": {**WHOLE, "objective": "sogclr", "temperature": 5.0, "epochs": 3.0, "steps": 100},
    "by default": {**WHOLE, "eval_samples": 10_000},
    "timm": {**WHOLE, "encoder": "timm:vit_tiny", "objective": "debiased", "views": {"flip_probability": 0.0}},
}


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("run", RUNS)
def test_every_finding_has_a_command_that_is_understood_and_changes_something(name: str, run: str) -> None:
    if name.startswith("temperature") and RUNS[run]["temperature"] is None:
        return  # which control sets
    for edge in (tripped for tried, tripped, _ in EDGES if tried == name):
        found = RULES[name].look(Evidence(edge.rows, RUNS[run], run="runs/my run"))
        if found is None:
            # of objectives that do not have it, and of a target that is met
            assert name in ("bound_saturated", "temperature_too_low", "controller_clamped")
            continue
        assert found.command is not None
        program, word, *words = shlex.split(found.command)
        assert program == "flatclr"
        if word == "train":
            assert config_of(found.command) != TrainConfig.from_dict(RUNS[run])
        else:
            assert words[0] == "runs/my run"
            assert {word for word in words if word.startswith("--")} <= options_of(word)


def test_a_line_is_never_what_the_run_has() -> None:
    own = {**TrainConfig().to_dict(), "encoder": "own", "objective": "flatnce", "ess_target": 0.25}
    for name in ("collapse", "dimensional_collapse"):
        assert str(code_for(name, Evidence([], own))).startswith("for group in optimizer.param_groups: group['lr'] = ")
        assert "EssControl" in str(code_for(name, Evidence([], {**own, "objective": "infonce"})))
    assert code_for("controller_clamped", Evidence([], own)) == "objective = flatclr.FlatNCE(temperature=0.1)"
    assert "target=0.25" in str(code_for("controller_clamped", Evidence([], {**own, "ess_target": 0.9})))


@pytest.mark.parametrize("name", sorted(IN_A_LOOP))
def test_a_line_for_a_loop_of_ones_own_runs_in_one(name: str) -> None:
    seen = Evidence(next(tripped for tried, tripped, _ in EDGES if tried == name).rows)
    line = code_for(name, seen)
    assert line is not None
    assert [finding.code for finding in diagnose(seen).findings if finding.name == name] == [line]
    if "torchvision" in line:
        ast.parse(line)  # of a package that need not be there
        return
    weight, dataset = torch.nn.Parameter(torch.ones(3)), torch.utils.data.TensorDataset(torch.ones(40, 3))
    loop: dict[str, Any] = {"flatclr": flatclr, "torch": torch, "math": math, "dataset": dataset, "size": 32}
    loop |= {"optimizer": torch.optim.SGD([weight], lr=0.5), "batch_size": 4, "workers": 0, "channels": 48}
    loop |= {"z_a": torch.randn(4, 8), "z_b": torch.randn(4, 8), "ids": torch.tensor([0, 0, 1, 2])}
    loop |= {"objective": flatclr.InfoNCE()}
    exec(line, loop)
    if "objective =" in line:
        assert torch.isfinite(loop["objective"](loop["z_a"], loop["z_b"]))
    if "loader =" in line:
        assert len(next(iter(loop["loader"]))[0]) in (4, 32)
    if "ids" in line:
        assert loop["loss"] < flatclr.InfoNCE()(loop["z_a"], loop["z_b"])  # with fewer negatives
    if name.startswith("learning_rate"):
        assert loop["optimizer"].param_groups[0]["lr"] != 0.5


def test_what_changes_nothing_is_no_command() -> None:
    by_default = Evidence([], RUNS["by default"])
    assert train_command(by_default, objective="flatnce", objective_options=None, head_width=None) is None
    assert train_command(by_default, learning_rate=1e-4) is not None


def test_no_control_stays_none() -> None:
    command = train_command(Evidence([], {**WHOLE, "ess_target": None}), batch_size=64)
    assert command is not None
    assert config_of(command) == TrainConfig(data="my photos", encoder="cnn", ess_target=None, batch_size=64)


def test_views_keep_what_only_the_data_knows() -> None:
    digits = Evidence([], {"views": {"flip_probability": 0.0, "crop_scale": [0.9, 1.0], "hue": 0.0}})
    assert stronger_views(digits) == {"flip_probability": 0.0, "crop_scale": [0.2, 1.0]}
    assert stronger_views(Evidence([])) == {"crop_scale": [0.08, 1.0]}
    assert milder_views(Evidence([])) == {"crop_scale": [0.5, 1.0]}
    assert milder_views(Evidence([], {"views": {"crop_scale": [0.05, 0.1]}})) == {"crop_scale": [0.2, 1.0]}
