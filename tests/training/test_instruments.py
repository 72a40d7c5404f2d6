"""The gauges of a step are numbers whatever the objective leaves out."""

import json
import math
from pathlib import Path

import flatclr


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
