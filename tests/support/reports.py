"""Runs as a report finds them, and a reader of its page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from flatclr.report.page import write_report
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig


def log_row(step: int, **changed: Any) -> dict[str, Any]:
    row = {
        "step": step, "kind": "log", "loss": 3 / step, "mi_nats": 2.0 + step / 100, "ceiling_nats": 4.14,
        "ess": 0.3 - step / 1000, "ess_quantiles": [0.1, 0.25, 0.4 + step / 1000], "beta": 9.0 + step,
        "alignment": 0.5, "uniformity": -2.0, "gradient_norm": 1.5, "bad_steps": 0,
        "beta_clamped": False, "collapsed": False, "data_wait_share": 0.2,
        "images_per_second": 1000.0 + step, "views_per_second": 8000.0 + 8 * step, "learning_rate": 0.001,
        "update_ratio": 0.002, "embedding_std": 0.08,
    }  # fmt: skip
    return row | changed


def evaluation_row(step: int, knn: float, **changed: Any) -> dict[str, Any]:
    row = {
        "step": step, "kind": "evaluation", "knn": knn, "effective_rank": 40.25, "pool_mi_nats": 3.125,
        "pool_mi_best_nats": 3.5, "pool_ceiling_nats": 8.07, "collision_rate": 0.1, "retrieval_at_1": 0.5,
        "gradient_snr": 0.3, "linear": knn + 0.01, "held_out_mi_nats": 2.0, "seen_mi_nats": 2.5,
        "dead_units": 0.0, "statistics_gap": 0.1, "pixel_match": 0.3, "split_overlap": 0.0, "near_duplicates": 0.001,
    }  # fmt: skip
    return row | changed


ROWS = [evaluation_row(0, 0.7531), log_row(10), log_row(20), evaluation_row(20, 0.8124, effective_rank=51.5)]


def new_run(path: Path, rows: list[dict[str, Any]], **settings: Any) -> RunDirectory:
    run = RunDirectory.create(path, TrainConfig().to_dict() | settings)
    for row in rows:
        run.append_metrics(row)
    return run


def only(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A row with these keys alone."""
    return {key: row[key] for key in ("kind", "step", *keys) if key in row}


DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def pictures() -> dict[str, Any]:
    """A wall of four images, as pictures.json keeps it."""
    pair = {"images": [0, 1], "cosine": 0.99, "labels": ["cat", "dog"]}
    found = [{"image": 1, "cosine": 0.9, "label": "cat"}, {"image": 2, "cosine": 0.8, "label": "dog"}]
    return {
        "steps": 20, "patient": True, "data": "photos", "sampled": 4, "of": 9,
        "views": [{"image": DOT, "views": [DOT, DOT]}],
        "neighbours": [{"image": 0, "label": "cat", "hit": True, "found": found}],
        "map": {
            "methods": {"PCA": [[0, 0], [1, 0], [0, 1], [1, 1]]}, "colours": [0, 0, 1, 1], "names": ["cat", "dog"],
            "by": "class", "labels": ["cat", "cat", "dog", "dog"], "atlas": DOT, "columns": 32, "tile": 1,
        },
        "collisions": [pair], "duplicates": [pair], "copies": {"searched": 9, "within": 1, "leaked": 0},
        "tiles": dict.fromkeys("0123", DOT),
    }  # fmt: skip


def page_of(run: RunDirectory) -> str:
    return write_report(run.path).read_text()


class Elements(HTMLParser):
    """Every element with its attributes; fails on a page whose tags do not nest."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
