"""Events: one JSON line each, and not to be changed by who hears them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from torch import nn

from flatclr.training import Evaluated, Event, Finished, Forecast, Logged, Saved, Started, Warned
from flatclr.training.display import JsonLines

EVERY_EVENT: list[tuple[Event, dict[str, object]]] = [
    (
        Started(0, 9, Path("run"), nn.Identity(), "9 images"),
        {"kind": "start", "step": 0, "total_steps": 9, "run": "run", "summary": "9 images", "seconds": None},
    ),
    (
        Started(0, 9, None, nn.Identity(), seconds=9.5),
        {"kind": "start", "step": 0, "total_steps": 9, "run": None, "summary": "", "seconds": 9.5},
    ),
    (Forecast(3, 9.5, "soon"), {"kind": "forecast", "step": 3, "seconds": 9.5, "message": "soon."}),
    (
        Forecast(3, 9.5, "late", "do less"),
        {"kind": "forecast", "step": 3, "seconds": 9.5, "message": "late; do less."},
    ),
    (Logged(3, 0.5, {"loss": 2.0}), {"kind": "log", "step": 3, "epoch": 0.5, "loss": 2.0}),
    (Evaluated(3, 0.5, {"knn": 0.9}), {"kind": "evaluation", "step": 3, "epoch": 0.5, "knn": 0.9}),
    (Saved(4), {"kind": "checkpoint", "step": 4}),
    (Warned(4, "mind."), {"kind": "warning", "step": 4, "message": "mind."}),
    (
        Finished(9, (Path("run/encoder.safetensors"),), {"knn": 0.9}),
        {"kind": "end", "step": 9, "encoders": ["run/encoder.safetensors"], "knn": 0.9},
    ),
]


@pytest.mark.parametrize(("event", "row"), EVERY_EVENT, ids=lambda value: getattr(value, "kind", ""))
def test_every_event_is_one_json_line_with_its_keys(
    event: Event, row: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    JsonLines()(event)
    assert json.loads(capsys.readouterr().out) == row
    assert list(event.row()) == list(row)


def test_events_cannot_be_changed_by_who_hears_them() -> None:
    for event, _ in EVERY_EVENT:
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.step = 7  # type: ignore[misc]
