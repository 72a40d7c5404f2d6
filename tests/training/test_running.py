"""What a person who runs the trainer meets: settings that contradict, numbers that are not finite, stops, second runs."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import flatclr
from flatclr.cli import train as cli_train
from flatclr.cli.display import JsonLines, LiveDisplay
from flatclr.cli.main import app
from flatclr.data.opening import from_anywhere
from flatclr.data.sources import SkippedImagesWarning
from flatclr.runs import RunDirectory
from flatclr.training.build import build, what_to_know
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Logged, Started, Warned
from flatclr.training.parts import build_objective
from flatclr.training.recipes import RECIPES
from flatclr.training.trainer import train
from tests.support.training_worker import config

LOGGED = {"mi_nats": 1.0, "ceiling_nats": 2.0, "ess": 0.2, "beta": 3.0, "images_per_second": 9.0}


def started(tmp_path: Path) -> tuple[LiveDisplay, RunDirectory]:
    """A display that was told of a run."""
    run = RunDirectory.create(tmp_path / "run", {})
    display = LiveDisplay()
    display(Started(step=0, total_steps=2, run=run.path, network=nn.Identity()))
    return display, run


def test_listeners_get_numbers_and_files_get_text_where_a_loss_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Event] = []
    display = LiveDisplay()
    broken = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    nn.init.constant_(broken[1].weight, math.nan)
    settings = config(tmp_path / "run", 4, log_every=2, max_bad_steps=4)
    with display, pytest.raises(TrainingStoppedError, match="bad steps in a row"):
        train(settings, encoder=broken, on_event=[display, JsonLines(), heard.append])
    (logged,) = [event for event in heard if isinstance(event, Logged)]
    assert math.isnan(logged.metrics["loss"])
    assert [row["loss"] for row in RunDirectory(tmp_path / "run").metrics() if row["kind"] == "log"] == ["nan"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["loss"] for line in lines if line["kind"] == "log"] == ["nan"]


def test_an_ess_target_takes_the_place_of_a_recipes_temperature() -> None:
    changed = RECIPES["cifar10-infonce"]().changed(ess_target=0.3)
    assert (changed.ess_target, changed.temperature) == (0.3, None)
    assert build_objective(changed).scale.control.target == 0.3  # type: ignore[union-attr]
    assert RECIPES["cifar10-infonce"]().changed(ess_target=None).temperature == 0.5


@pytest.mark.parametrize(
    ("objective", "bounds"),
    [("flatnce", (1.0, 10.0, 100.0)), ("rpc", (0.1 / 128, 1 / 128, 10 / 128)), ("fmicl", (1.0, 10.0, 100.0))],
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


def test_a_run_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory(train(config(tmp_path / "run", 6)).path)
    (run.path / "checkpoint" / "step-000000006.pt").unlink()
    before = run.metrics()
    with run.kept_to_oneself(), pytest.raises(ValueError, match=r"by one process at a time, got .*run, where one is"):
        train(TrainConfig(), resume=run.path)
    assert run.metrics() == before
    with run.kept_to_oneself():
        pass  # the one that was refused holds nothing


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ([4, 12], "from the checkpoint of step 12 go on with: flatclr train --resume"),
        ([], "before the first checkpoint"),
    ],
)
def test_an_interrupted_run_says_how_to_go_on(
    saved: list[int], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display, run = started(tmp_path)
    run.checkpoints.mkdir()
    for step in saved:
        (run.checkpoints / f"step-{step:09d}.pt").touch()
    display.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert said in " ".join(capsys.readouterr().out.split())


def test_an_alarm_is_said_when_it_begins_and_when_it_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display, _ = started(tmp_path)
    for step, collapsed in enumerate([False, True, True, False, False], 1):
        display(Logged(step, epoch=0.1, metrics={"loss": math.nan, "collapsed": collapsed, **LOGGED}))
    said = [line for line in capsys.readouterr().out.splitlines() if ": alarm, " in line]
    assert [line.strip() for line in said] == ["step 2: alarm, collapsed", "step 4: alarm, collapsed is over"]


def test_damaged_files_of_a_run_are_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {"steps": 3})
    (run.path / "environment.json").write_text("{")
    assert run.differences() == [f"{run.path / 'environment.json'} is damaged"]
    (run.path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    assert run.metrics() == []
    for damage in (b"a: [", b"\xff\xfe"):
        (run.path / "config.yaml").write_bytes(damage)
        with pytest.raises(ValueError, match=r"config\.yaml must hold named settings, got a damaged file; restore it"):
            run.config()


def test_a_file_in_the_place_of_the_output_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match=r"must not be a file, got .*taken; choose another --out"):
        train(config(tmp_path / "taken", 2))


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
        ({"data": torch.zeros(4, 1, 8, 8)}, "data must be a Dataset, got Tensor; pass"),
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


@pytest.mark.parametrize(("micro_batch", "warned"), [(4, True), (8, False), (16, False)])
def test_only_a_batch_that_is_cut_is_said_to_be_normalised_in_parts(
    micro_batch: int, warned: bool, tmp_path: Path
) -> None:
    settings = {"micro_batch": micro_batch, "encoder_options": {"norm": "batch", "width": 8}}
    said = list(what_to_know(build(config(tmp_path, 2, **settings))))
    assert any("goes by micro-batches" in message for message in said) == warned


def test_the_command_says_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"flatclr {flatclr.__version__}\n")


def test_unreadable_images_are_said_once_and_the_first_is_named(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(24):
        Image.new("L", (12, 12), 10 * i).save(folder / f"{i:02d}.png")
    (folder / "07.png").write_bytes(b"no image")
    events: list[Event] = []
    train(config(tmp_path / "run", 2, data=folder), on_event=[events.append])
    heard = [event.message for event in events if isinstance(event, Warned)]
    assert [message for message in heard if "unreadable" in message] == [
        next(message for message in heard if re.search(r"^1 images are unreadable .* the first .*07\.png: ", message))
    ]
    assert not recwarn.list


def test_a_run_on_a_relative_path_is_resumed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.random.default_rng(0).integers(0, 256, (40, 12, 12), dtype=np.uint8))
    run = train(config(Path("run"), 6, data="images.npy")).path.absolute()
    (run / "checkpoint" / "step-000000006.pt").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train(TrainConfig(), resume=run).steps == 6
    assert RunDirectory(run).config()["data"] == str(tmp_path / "images.npy")


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


@pytest.mark.parametrize("reason", [errno.EBADF, errno.ENOSYS, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_file_system_without_holds_does_not_keep_a_run_from_starting(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, "no holds here")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert train(config(tmp_path / "run", 2)).steps == 2


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"pairing": "one_way"}, {}, "must have pairing='one_way' as the config, got 'two_view'; make it with that"),
        ({"negatives_per_anchor": 3}, {}, "negatives_per_anchor must be left to your own objective, got 3; pass it"),
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


@pytest.mark.parametrize(("ess_target", "expected"), [(None, 0.2), (0.3, None)])
def test_a_temperature_among_the_options_of_an_earlier_run_is_understood(
    ess_target: float | None, expected: float | None
) -> None:
    settings = {"objective_options": {"temperature": 0.2, "value": "paper"}, "ess_target": ess_target}
    read = TrainConfig.from_dict(settings)
    assert (read.temperature, dict(read.objective_options)) == (expected, {"value": "paper"})
    build_objective(read)


def test_unreadable_images_are_warned_of_where_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(24):
        Image.new("L", (12, 12), 10 * i).save(tmp_path / "images" / f"{i:02d}.png")
    (tmp_path / "images" / "07.png").write_bytes(b"no image")
    with pytest.warns(SkippedImagesWarning):
        train(config(tmp_path / "run", 2, data=tmp_path / "images"))


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
