"""Fixtures of the tests of evaluation."""

from __future__ import annotations

from functools import partial

import pytest

from flatclr.evaluation.finetune import Recipe
from flatclr.evaluation.protocols import finetuning


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "Recipe", partial(Recipe, epochs=1, fewest_steps=4))
