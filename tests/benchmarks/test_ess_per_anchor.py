"""What a temperature per anchor costs and gains is measured for both, and kept with its command."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import ess_per_anchor, record


@pytest.mark.slow
def test_both_are_trained_from_the_same_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["ess_per_anchor", *["--accuracy", "--seeds", "2", "--steps", "3", "--eval-samples", "100"]]
    )
    ess_per_anchor.main()
    (line,) = (tmp_path / "ess_per_anchor.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert kept["command"] == "python -m benchmarks.ess_per_anchor --accuracy --seeds 2 --steps 3 --eval-samples 100"
    knn, mi = kept["rows"]
    for row in (knn, mi):
        gains = [float(gain) for gain in row["per anchor less shared, by seed"].split(", ")]
        assert len(gains) == 2
        assert sum(gains) / 2 == pytest.approx(float(row["per anchor"]) - float(row["shared"]), abs=0.02)


def test_the_ratio_is_that_of_the_medians() -> None:
    row = ess_per_anchor.loss_row(8, rounds=4)
    shared, own = (float(row[f"{name} ms"].split()[0]) for name in ("shared", "per anchor"))
    assert float(row["ratio"]) == pytest.approx(own / shared, rel=0.02)
    assert own > shared  # twelve passes more
