"""The table of wide embeddings in docs/benchmarks.md is the kept measurement, and the benchmark's loss is CLIP's."""

import json
from pathlib import Path

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
    runs = [[row for row in json.loads(line)["rows"] if row.get("dtype", "bfloat16") == "bfloat16"] for line in lines]
    last = {(row["pairs"], row["d"]): row for rows in runs for row in rows if "pairs" in row}
    (kept,) = [rows for rows in runs if any("relation" in row for row in rows)][-1:]
    shown = [row for row in last.values() if row["pairs"] >= 32768]
    assert shown
    for row in shown:
        times = " | ".join(shown_ms(row[f"{way} ms"]) for way in ("plain", "fused", "strips"))
        sizes = " | ".join(str(row[f"{way} MiB"]) for way in ("plain", "fused", "strips"))
        assert f"| {row['pairs']} | {row['d']} | {times} | {sizes} |" in text
    for row in kept:
        if "relation" in row:
            assert f"| {row['relation']} | {shown_ms(row['ms'])} | {row['per score']:g} | {row['MiB']} |" in text


def test_the_plain_loss_is_the_one_that_is_timed() -> None:
    views = torch.randn(2, 9, 5, dtype=torch.float64)
    ours = flatclr.InfoNCE(0.1, pairing="cross")(*views)
    assert loss_widths.plain(*views).item() == pytest.approx(ours.item(), rel=1e-5)
