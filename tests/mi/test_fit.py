"""Settings of a fit are checked when they are made."""

from typing import Any

import pytest

from flatclr.mi.fit import FitSettings

BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1}, "steps must be a whole number >= 0, got -1"),
    ({"steps": "x"}, "steps must be a whole number >= 0, got 'x'"),
    ({"steps": 1.5}, "steps must be a whole number >= 0, got 1.5"),
    ({"hidden": -1}, "hidden must be a whole number >= 1"),
    ({"check_every": 0}, "check_every must be a whole number >= 1"),
    ({"patience": -1}, "patience must be a finite number > -1"),
    ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
    ({"learning_rate": float("nan")}, "learning_rate must be a finite number > 0"),
    ({"weight_decay": -1.0}, "weight_decay must be a finite number"),
    ({"device": "tpu9"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'tpu9'"),
    ({"device": "cuda:99"}, "device must be one of the . CUDA devices here, got 'cuda:99'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        FitSettings(**settings)
