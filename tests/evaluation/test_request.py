"""One request behind `flatclr.evaluate` and `flatclr eval`: the same arguments, the same rows."""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import flatclr
from flatclr.cli.eval import eval_command
from flatclr.evaluation.request import EvaluationRequest
from flatclr.evaluation.results import Row
from tests.support.evaluation import flatclr_eval, pictures, small_data, small_encoder
from tests.support.training_worker import config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    parts = (*pictures(120, seed=0), *pictures(60, seed=1))
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(folder / "pictures.npz", **{name: part.numpy() for name, part in zip(names, parts, strict=True)})
    return flatclr.train(config(folder / "run", 4, data=str(folder / "pictures.npz"))).path


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("seconds", "kind")} for row in rows]


def as_printed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    return timeless([json.loads(json.dumps(asdict(row))) for row in rows])


def of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", *arguments, "--json", "--device", "cpu")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return timeless([line for line in lines if line["kind"] == "row"])


@pytest.mark.parametrize("layer", ["all", "layer2", "head.linear1", "output"])
def test_python_and_the_command_give_the_same_rows(
    layer: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = of_the_command(
        monkeypatch, capsys, run, "--layer", layer, "--protocol", "knn,geometry", "--out", tmp_path
    )
    found = flatclr.evaluate(run, protocol=["knn", "geometry"], layer=layer, device="cpu")
    assert as_printed(found.rows) == printed
    layers = {row.layer for row in found.rows}
    if layer == "all":
        assert {"encoder.layer1", "encoder.layer4", "head.linear1", "head.linear2"} <= layers
    else:
        assert layers == {{"layer2": "encoder.layer2"}.get(layer, layer)}


def test_a_loaded_network_gives_the_rows_of_its_run(run: Path) -> None:
    data = str(run.parent / "pictures.npz")
    of_run = flatclr.evaluate(run, data, "knn", layer="all", device="cpu")
    of_network = flatclr.evaluate(flatclr.load_network(run), data, "knn", layer="all", device="cpu")
    assert as_printed(of_network.rows) == as_printed(of_run.rows)
    output = flatclr.evaluate(flatclr.load_network(run), data, "knn", device="cpu")
    assert as_printed(output.rows) == as_printed(flatclr.evaluate(run, data, "knn", device="cpu").rows)


def test_a_run_without_checkpoints_has_the_layers_of_its_encoder(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(run, bare, ignore=shutil.ignore_patterns("checkpoint"))
    found = flatclr.evaluate(bare, protocol="knn", layer="all", random_row=False, device="cpu")
    assert [row.layer for row in found.rows] == ["layer1", "layer2", "layer3", "layer4"]


def test_a_head_that_is_passed_takes_the_place_of_the_runs_own(run: Path) -> None:
    features = flatclr.load_encoder(run).features
    found = flatclr.evaluate(
        run, protocol="knn", layer="head", head=nn.Linear(features, 3), random_row=False, device="cpu"
    )
    assert [row.layer for row in found.rows] == ["head"]


def test_evaluate_takes_what_a_request_holds() -> None:
    assert list(inspect.signature(flatclr.evaluate).parameters) == [field.name for field in fields(EvaluationRequest)]
    found = flatclr.evaluate(run_or_encoder=small_encoder(), data=small_data(), protocol="knn", random_row=False)
    assert len(found.rows) == 1


def test_the_command_has_an_option_for_every_plain_field_and_its_default() -> None:
    options = inspect.signature(eval_command).parameters
    of_python = {"run_or_encoder", "into", "head", "progress", "on_row"}
    other_form = {"normalisation", "protocol", "cache"}  # --mean and --std, all by default, beside the encoder
    for field in fields(EvaluationRequest):
        if field.name not in of_python | other_form:
            assert field.default is not MISSING
            assert options[field.name].default == field.default, field.name


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, r"evaluate\(\) missing a required argument: 'run_or_encoder'"),
        ((nn.Flatten(),), {"layr": "all"}, r"evaluate\(\) got an unexpected keyword argument 'layr'"),
        ((nn.Flatten(), None, "knn", "all"), {}, r"evaluate\(\) too many positional arguments"),
    ],
)
def test_an_argument_that_evaluate_does_not_know_is_named(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        flatclr.evaluate(*arguments, **options)
