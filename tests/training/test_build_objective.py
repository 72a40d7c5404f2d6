"""What a config says of its objective reaches it, or is refused before any work starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import flatclr
from flatclr.objectives import OBJECTIVES
from flatclr.runs import ASKED, CHECKPOINTS, CONFIG, RunDirectory
from flatclr.training.build import build
from flatclr.training.build_objective import build_objective
from flatclr.training.config import TrainConfig
from flatclr.training.recipes import RECIPES
from flatclr.training.step import StepResult
from flatclr.training.trainer import train
from tests.support.training import paired_npz
from tests.support.training_worker import config


def one_step(out: Path, **settings: Any) -> tuple[flatclr.Objective, StepResult]:
    parts = build(config(out, 4, **settings))
    step, batch = next(parts.loader.steps(1, 2))
    return parts.train_step.objective, parts.train_step(batch, step)


def test_every_anchor_of_a_run_meets_the_target_when_asked(tmp_path: Path) -> None:
    objective, result = one_step(
        tmp_path, ess_per_anchor=True, ess_target=0.6, batch_size=32, encoder_options={"width": 8}
    )
    assert (result.stats.ess / 0.6 - 1).abs().max() < 0.01
    assert 1 < float(objective.inverse_temperature) < 100


def test_prefixes_train_under_copies_of_the_objective(tmp_path: Path) -> None:
    objective, result = one_step(tmp_path, prefixes=[4], ess_target=[[0, 0.5], [1, 0.3]])
    assert isinstance(objective, flatclr.Matryoshka)
    assert objective.dims == (4, 16)
    assert len(objective.controls) == 2
    assert result.loss.isfinite()


def test_a_step_says_which_samples_it_holds(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 4, objective="sogclr"))
    step, batch = next(parts.loader.steps(3, 4))
    parts.train_step(batch, step)
    state = parts.train_step.objective.state
    assert state.rows == len(parts.data.source)
    seen = (state.log_average > -torch.inf).nonzero().flatten()
    assert sorted(parts.loader.plan.indices(3).tolist()) == seen.tolist()


def test_a_bad_step_leaves_the_numbers_of_samples_as_they_were(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 4, objective="isogclr"))
    with torch.no_grad():
        next(parts.train_step.network.parameters()).fill_(float("nan"))
    step, batch = next(parts.loader.steps(0, 1))
    before = {name: value.clone() for name, value in parts.train_step.objective.state_dict().items()}
    parts.train_step(batch, step)
    torch.testing.assert_close(parts.train_step.objective.state_dict(), before, rtol=0, atol=0)


def test_room_is_made_in_an_objective_of_ones_own(tmp_path: Path) -> None:
    own = flatclr.SogCLR(0.2, gather=True)
    parts = build(config(tmp_path, 4, objective="own", ess_target=None), objective=own)
    assert own.state.rows == own.state.samples == len(parts.data.source)


@pytest.mark.parametrize("name", ["sogclr", "vicreg", "siglip"])
def test_paired_data_take_them_too(name: str, tmp_path: Path) -> None:
    data = paired_npz(tmp_path / "pairs.npz")
    _, result = one_step(tmp_path / "run", data=str(data), encoder="mlp", encoder_options={"width": 8}, objective=name)
    assert result.loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "vicreg", "queue": 64}, "queue must be 0 for vicreg, got 64; it has no negatives"),
        ({"objective": "vicreg", "temperature": 0.1}, "temperature must be None for vicreg, got 0.1; it has none"),
        ({"objective": "barlow_twins", "pairing": "cross"}, "pairing must be left out for BarlowTwins"),
        ({"objective": "sogclr", "negatives_per_anchor": 3}, "SogCLR must see all negatives"),
        ({"objective": "macl", "ess_per_anchor": True}, "ess_per_anchor must go with ESS control, got objective macl"),
        ({"ess_per_anchor": True, "temperature": 0.1}, "must go with ESS control, got .* temperature 0.1"),
        ({"ess_per_anchor": True, "ess_target": None}, "ess_per_anchor must go with an ess_target, got None"),
        ({"prefixes": [8, 256]}, "prefixes must be of the 128 features of an embedding at most, got 256"),
    ],
    ids=str,
)
def test_what_an_objective_has_no_use_for_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_objective(flatclr.TrainConfig(**settings))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_without_control_starts_at_its_own_temperature(name: str) -> None:
    traits = OBJECTIVES[name].traits
    objective = build_objective(flatclr.TrainConfig(objective=name))
    assert bool(objective.controls) == (traits.accepts_control and traits.temperature is not None)
    if traits.temperature is not None:
        assert float(objective.inverse_temperature) == pytest.approx(1 / traits.temperature, rel=1e-5)


def test_an_ess_target_with_a_critic_is_refused() -> None:
    bilinear = TrainConfig(objective="infonce", objective_options={"critic": "bilinear"})
    for target in (0.25, 0.5, [[0, 0.5], [20, 0.2]]):
        with pytest.raises(ValueError, match="ess_target must be left out with a critic, got"):
            bilinear.changed(ess_target=target)
    with pytest.raises(ValueError, match=r"ess_target must be left out with a critic, got 0\.5"):
        build_objective(replace(bilinear, ess_target=0.5))
    assert isinstance(build_objective(bilinear), flatclr.InfoNCE)  # the default is no wish


WITHOUT_CONTROL: dict[str, dict[str, Any]] = {
    **{
        name: {"objective": name}
        for name, kind in OBJECTIVES.items()
        if kind.traits.temperature is None or not kind.traits.accepts_control
    },
    "supervised": {"objective": "supervised"},
    "fmicl raw_cosine": {"objective": "fmicl", "objective_options": {"divergence": "js", "kernel": "raw_cosine"}},
}


@pytest.mark.parametrize("settings", WITHOUT_CONTROL.values(), ids=WITHOUT_CONTROL)
def test_an_ess_target_is_refused_where_the_objective_has_no_use_for_it(settings: dict[str, Any]) -> None:
    name = settings["objective"]
    for make in RECIPES.values():
        for target in (0.2, TrainConfig.ess_target, [[0, 0.5], [20, 0.2]]):
            with pytest.raises(ValueError, match=rf"ess_target must be None for {name}, got .*; .*: leave it out\."):
                make().changed(**settings, ess_target=target)
    with pytest.raises(ValueError, match=rf"ess_target must be None for {name}, got 0\.2; "):
        build_objective(TrainConfig(**settings, ess_target=0.2), labels=labels_for(name))


@pytest.mark.parametrize("settings", WITHOUT_CONTROL.values(), ids=WITHOUT_CONTROL)
def test_the_ess_target_of_a_recipe_is_no_wish(settings: dict[str, Any]) -> None:
    for make in RECIPES.values():
        changed = make().changed(**settings, temperature=None)
        assert not build_objective(changed, labels=labels_for(settings["objective"])).controls


def test_a_run_records_no_ess_target_that_it_does_not_have(tmp_path: Path) -> None:
    begun = config(tmp_path / "run", 2, objective="siglip")
    assert begun.ess_target is not None
    result = train(begun, progress=False)
    run = RunDirectory(result.path)
    assert run.config()["ess_target"] is None
    assert run.asked()["ess_target"] == begun.ess_target
    assert json.loads((result.path / "encoder.json").read_text())["description"]["ess_target"] is None
    assert train(begun, auto_resume=True, progress=False).steps == 2  # the same settings


def test_a_run_that_passed_over_its_ess_target_still_goes_on(tmp_path: Path) -> None:
    path = train(config(tmp_path / "run", 2, objective="siglip"), progress=False).path
    settings = {name: value for name, value in RunDirectory(path).config().items() if name != ASKED}
    (path / CONFIG).write_text(yaml.safe_dump({**settings, "ess_target": 0.2}))  # as earlier versions wrote it
    (path / CHECKPOINTS).rename(tmp_path / "not of these settings")
    assert train(TrainConfig(), resume=path, progress=False).steps == 2


def labels_for(objective: str) -> torch.Tensor | None:
    return torch.zeros(8, dtype=torch.long) if objective == "supervised" else None
