"""An objective is one file: written in ten lines, it trains by name, and everybody asks its traits."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast import ContrastStats, PairSet, stats_of
from flatclr.contrast.options import Options, SharedOptions
from flatclr.objectives import OBJECTIVES, Objective, Traits, register
from flatclr.training.build_objective import build_objective


@pytest.fixture
def _margin_loss() -> Iterator[None]:
    @register("margin", Traits("a hinge on the gap", temperature=0.2, pairing="cross", bounded_scores=True))
    class Margin(Objective):
        def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats]:
            stats = stats_of(pairs, inverse_temperature)
            return stats.mean(torch.relu(stats.gap + 1)), stats

    yield
    del OBJECTIVES["margin"]


@pytest.mark.usefixtures("_margin_loss")
def test_an_objective_of_ten_lines_trains_by_name(tmp_path: Path) -> None:
    config = flatclr.TrainConfig(
        objective="margin",
        temperature=0.2,
        steps=40,
        log_every=5,
        eval_start=False,
        eval_samples=200,
        device="cpu",
        out=str(tmp_path / "run"),
    )
    result = flatclr.train(config)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert result.steps == 40
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.usefixtures("_margin_loss")
def test_the_controller_begins_at_the_temperature_of_the_traits() -> None:
    objective = build_objective(flatclr.TrainConfig(objective="margin"))
    assert float(objective.inverse_temperature) == pytest.approx(5.0)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="must have a name of its own, got 'infonce' again"):
        register("infonce")(flatclr.InfoNCE)


def test_every_registered_objective_says_what_it_is_and_builds_with_its_traits() -> None:
    for name, kind in OBJECTIVES.items():
        assert kind.traits.summary, name
        config = flatclr.TrainConfig(objective=name, ess_target=None, temperature=kind.traits.temperature)
        objective = build_objective(config)
        assert objective.options.get("pairing", "two_view") == kind.traits.pairing, name
        if kind.traits.bounded_scores:
            with pytest.raises(ValueError, match="must have bounded scores"):
                kind(normalize=False)


def test_options_are_named_once_for_types_and_once_with_defaults() -> None:
    assert set(Options.__dataclass_fields__) == {*SharedOptions.__annotations__, "shared_loss", "with_ess"}
