"""The comparison of batch statistics runs on a CPU and says where each number comes from."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import record, view_statistics


def test_every_source_of_statistics_has_an_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    small = "--steps 2 --batch-size 8 --width 4 --tried 2 --seeds 3 --eval-samples 200"
    monkeypatch.setattr(sys, "argv", ["view_statistics", *small.split()])
    view_statistics.main()
    (line,) = (tmp_path / "view_statistics.jsonl").read_text().splitlines()
    kept = json.loads(line)
    (row,) = kept["rows"]
    assert kept["command"] == f"python -m benchmarks.view_statistics {small}"
    assert (row["views"], row["seed"]) == ("2 of 24 + 4 of 16", 3)
    accuracies = [row[name] for name in ("training", "views of 24", "views of 16", "whole images")]
    assert all(0 < accuracy < 100 for accuracy in accuracies)
    assert len(set(accuracies)) > 1
