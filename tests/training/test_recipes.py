"""Recipes train on the data they are meant for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flatclr.runs import RunDirectory
from flatclr.training.recipes import RECIPES
from flatclr.training.trainer import train
from tests.support.layouts import Made, write_cifar10_binary, write_cifar100_binary, write_cifar100_pickled


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("cifar100", write_cifar100_binary),
        ("cifar100", write_cifar100_pickled),
        ("cifar10", write_cifar10_binary),
    ],
)
def test_small_images_trains_on_any_of_them(name: str, write: Callable[[Path, Made], Path], tmp_path: Path) -> None:
    write(tmp_path, Made(20, 10, (3, 32, 32), classes=10))
    small = {"batch_size": 8, "steps": 2, "log_every": 1, "precision": "fp32", "device": "cpu"}
    config = RECIPES["small-images"]().changed(
        data=name, data_dir=str(tmp_path), encoder_options={"width": 4}, out=str(tmp_path / "run"), **small
    )
    result = train(config)
    assert 0 <= result.metrics["knn"] <= 1
    (log, *_) = (row for row in RunDirectory(result.path).metrics() if row["kind"] == "log")
    assert log["views_per_second"] == pytest.approx(8 * log["images_per_second"])


def test_the_fast_recipe_is_the_general_one_on_cifar10() -> None:
    """But for its length, and how often it looks at itself."""
    general, fast = RECIPES["small-images"]().to_dict(), RECIPES["cifar10-fast"]().to_dict()
    looks = {"log_every", "eval_every", "eval_start", "eval_samples", "checkpoint_every"}
    assert {name for name in fast if fast[name] != general[name]} == {"data", "epochs"} | looks
