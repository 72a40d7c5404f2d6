"""The table of wide embeddings in docs/benchmarks.md is the kept measurement, and the benchmark's loss is CLIP's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import flatclr
from benchmarks import loss_widths

ROOT = Path(__file__).resolve().parents[2]


def shown_ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def test_the_docs_hold_the_kept_rows() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text().partition("## Wide embeddings on a GPU")[2]
    lines = (ROOT / "results" / "loss_widths.jsonl").read_text().splitlines()
    runs = [json.loads(line)["rows"] for line in lines]
    widths: dict[str, dict[tuple[int, int], Any]] = {dtype: {} for dtype in loss_widths.DTYPES}
    for row in (row for rows in runs for row in rows if "pairs" in row):
        widths[row.get("dtype", "bfloat16")][row["pairs"], row["d"]] = row
    shown = [row for row in widths["bfloat16"].values() if row["pairs"] >= 32768]
    assert shown
    for row in shown:
        times = [row[f"{way} ms"] for way in ("plain", "fused", "strips", "strips of 1.5 GiB")]
        times.append(widths["float16"][row["pairs"], row["d"]]["auto ms"])
        sizes = [str(row[f"{way} MiB"]) for way in ("plain", "fused", "strips")]
        cells = [str(row["pairs"]), str(row["d"]), *map(shown_ms, times), *sizes]
        assert f"| {' | '.join(cells)} |" in text
    (kept,) = [rows for rows in runs if any("relation" in row for row in rows)][-1:]
    for row in kept:
        if "relation" in row:
            assert f"| {row['relation']} | {shown_ms(row['ms'])} | {row['per score']:.3g} | {row['MiB']} |" in text


def test_the_plain_loss_is_the_one_that_is_timed() -> None:
    views = torch.randn(2, 9, 5, dtype=torch.float64)
    ours = flatclr.InfoNCE(0.1, pairing="cross")(*views)
    assert loss_widths.plain(*views).item() == pytest.approx(ours.item(), rel=1e-5)
