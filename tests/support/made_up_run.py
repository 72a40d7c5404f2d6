"""Runs that never were: rows of metrics with a value for every step, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatclr.doctor.evidence import Evidence

LOGS, EVALUATIONS = 12, 4
SOUND_LOG = {
    "loss": [5 - 0.1 * i for i in range(LOGS)],
    "saturation": 0.3,
    "mi_nats": 1.45,
    "ceiling_nats": 4.844,
    "ess": 0.25,
    "beta": 10.0,
    "embedding_std": 0.7,
    "uniformity": -1.6,
    "update_ratio": 1e-3,
    "gradient_norm": 3.0,
    "bad_steps": 0,
    "data_wait_share": 0.02,
}
SOUND_EVALUATION = {
    "effective_rank": 24.0,
    "head_rank": 18.0,
    "collision_rate": 0.1,
    "knn": [0.6, 0.65, 0.68, 0.7],
    "knn_samples": 1000,
    "pool_mi_best_nats": [0.1, 0.8, 1.1, 1.3],
    "seen_mi_nats": [0.1, 0.8, 1.1, 1.3],
    "held_out_mi_nats": [0.1, 0.8, 1.1, 1.25],
    "dead_units": 0.0,
    "statistics_gap": 0.1,
    "pixel_match": 0.05,
    "pixel_knn": 0.74,
    "near_duplicates": 0.0,
    "split_overlap": 0.0,
    "gradient_snr": [1.2, 0.6, 0.5, 0.45],
}
SETTINGS = {"data": "photos", "objective": "infonce", "temperature": 0.1, "embedding": 32, "batch_size": 64}


def evidence(
    log: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Evidence:
    """A sound run of 300 steps, but for these values; None leaves a metric out."""
    rows = [*_rows("log", {**SOUND_LOG, **(log or {})}, [25 * (i + 1) for i in range(LOGS)])]
    rows += _rows("evaluation", {**SOUND_EVALUATION, **(evaluation or {})}, [100 * i for i in range(EVALUATIONS)])
    return Evidence(rows, {**SETTINGS, **(settings or {})}, run="runs/made-up")


def _rows(kind: str, metrics: Mapping[str, Any], steps: Sequence[int]) -> list[dict[str, Any]]:
    given = {name: value for name, value in metrics.items() if value is not None}
    return [
        {"step": step, "kind": kind, **{n: v[place] if isinstance(v, list) else v for n, v in given.items()}}
        for place, step in enumerate(steps)
    ]
