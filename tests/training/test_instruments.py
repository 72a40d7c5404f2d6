"""The gauges of a step are numbers whatever the objective leaves out."""

import json
import math
from pathlib import Path

import pytest

import flatclr
from flatclr.training.build import build
from flatclr.training.instruments import matrices_of, update_ratio


def test_a_margin_that_leaves_anchors_without_negatives_keeps_the_gauges_numbers(tmp_path: Path) -> None:
    settings = flatclr.TrainConfig(
        objective="infonce",
        temperature=0.2,
        ess_target=None,
        objective_options={"false_negative_margin": -0.5},
        batch_size=8,
        steps=4,
        log_every=2,
        eval_start=False,
        eval_samples=100,
        device="cpu",
        out=str(tmp_path / "run"),
    )
    flatclr.train(settings)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if "loss" in row]
    assert len(logged) == 2
    for row in logged:
        assert all(math.isfinite(row[name]) for name in ("loss", "ess", "ceiling_nats", "saturation"))
        assert row["ceiling_nats"] < math.log(15)  # of the 14 others the margin left out some
        assert row["anchors_left_out"] > 0
        assert row["mi_nats"] == "nan"  # no bound where scores choose the negatives


def test_the_update_ratio_is_the_median_of_how_far_matrices_moved() -> None:
    config = flatclr.TrainConfig(
        encoder="cnn",
        encoder_options={"width": 4, "norm": "none"},
        embedding=8,
        batch_size=8,
        steps=1,
        optimizer="sgd",
        weight_decay=0.0,
        warmup_epochs=0,
        learning_rate=0.01,
        eval_samples=8,
        device="cpu",
    )
    parts = build(config)
    before, plain = matrices_of(parts.train_step), dict(parts.train_step.bare_network.named_parameters())
    weights = {name: weight.detach().double().clone() for name, weight in plain.items() if weight.dim() > 1}
    rate = parts.schedule.apply(parts.train_step, 0)
    parts.train_step(next(iter(parts.loader.steps(0, 1)))[1], 0)
    moved = []
    for name, old in weights.items():
        gradient = plain[name].grad
        assert gradient is not None
        moved.append(float(rate * gradient.double().norm() / old.norm()))  # the first step of SGD has no momentum yet
    middle = sorted(moved)[(len(moved) - 1) // 2]
    assert update_ratio(parts.train_step, before) == pytest.approx(middle, rel=1e-3)
