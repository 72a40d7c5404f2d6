"""The benchmark of streaming says what bounds it, and runs on a CPU."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import streaming_gpu


def decoded_row(workers: int, rate: int, busy: float = 0.1) -> dict[str, Any]:
    return {"workers": workers, "by": "processes", "images/s": rate, "cores busy in the main process": busy}


def trained_row(images: str, rate: int, waits: float, replay: float | str = "") -> dict[str, Any]:
    row = {"batch": 64, "images": images, "step": "graph", "images/s": rate, "waiting for data %": waits}
    return {**row, "ms of a replay": replay}


@pytest.mark.parametrize(
    ("streamed", "waits", "expected"),
    [
        (500, 45.0, r"reaches 50% of resident images and is bound by data, for which it waits 45 % .* alone gives 900"),
        (990, 0.5, r"reaches 99% of resident images and is bound by the step: it waits for data 0\.5 %"),
        (700, 1.0, r"reaches 70% .* not waiting for data \(1 %\), yet slower"),
    ],
)
def test_the_benchmark_says_what_bounds_training(streamed: int, waits: float, expected: str) -> None:
    trained = [trained_row("streamed", streamed, waits), trained_row("resident", 1000, 0.0)]
    said, _ = streaming_gpu.what_bounds([decoded_row(8, 800), decoded_row(16, 900)], trained)
    assert re.search(expected, said)


@pytest.mark.parametrize(
    ("replay", "expected"),
    [
        ("", "beside decoding the steps themselves take longer"),
        (85.0, "takes 91.43 ms instead of 64.00, its replay 85 instead of 60: lost in the replay"),
        (61.0, "its replay 61 instead of 60: lost between replays, on the host and in copying"),
    ],
)
def test_the_benchmark_says_where_a_slower_step_loses_its_time(replay: float | str, expected: str) -> None:
    trained = [trained_row("streamed", 700, 1.0, replay), trained_row("resident", 1000, 0.0, 60.0)]
    said, _ = streaming_gpu.what_bounds([decoded_row(8, 800), decoded_row(16, 900)], trained)
    assert expected in said


@pytest.mark.parametrize(
    ("rate", "busy", "expected"),
    [(1900, 0.9, "the number of workers"), (1100, 0.9, "the main process"), (1100, 0.2, "the cores")],
)
def test_the_benchmark_says_what_bounds_decoding(rate: int, busy: float, expected: str) -> None:
    rows = [decoded_row(8, 1000), decoded_row(16, rate, busy)]
    assert f"bound by {expected}" in streaming_gpu.what_bounds_decoding(rows)


def test_the_streaming_benchmark_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["streaming_gpu", "--quick", "--device", "cpu", "--out", str(out)])
    streaming_gpu.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["workers"] for row in rows if "workers" in row] == [1, 2]
    trained = [row for row in rows if "batch" in row]
    assert [row["images"] for row in trained] == ["streamed", "resident"]
    assert all(row["images/s"] > 0 for row in rows if "images/s" in row)
    assert rows[-1]["bound"].startswith("decoding: 1 to 2 workers")
