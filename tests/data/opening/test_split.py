"""Data without a test part are split the same way every time."""

from pathlib import Path
from typing import Any

import pytest

from flatclr.data.opening import open_dataset
from tests.support.images import numbered
from tests.support.sources import all_images, labels_of

pytestmark = pytest.mark.usefixtures("_nowhere_else")


@pytest.mark.parametrize("value", [1, 1.5, -0.1, float("nan")])
def test_a_test_fraction_outside_the_unit_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"test_fraction must be .*, got {value}"):
        open_dataset(None, test_fraction=value)


@pytest.mark.parametrize("data", ["files", "array.npy"])
def test_the_split_is_deterministic_disjoint_and_complete(tmp_path: Path, data: str) -> None:
    numbered(tmp_path)

    def parts(**options: Any) -> tuple[list[int], list[int]]:
        dataset = open_dataset(tmp_path / data, **options)
        train, test = all_images(dataset.train)[:, 0, 0, 0], all_images(dataset.test)[:, 0, 0, 0]
        if (labels := labels_of(dataset.test)) is not None:
            assert labels == (test % 2).tolist()
        return train.tolist(), test.tolist()

    train, test = parts()
    assert (len(test), sorted(train + test)) == (4, list(range(40)))
    assert parts() == (train, test)
    assert parts(seed=1)[1] != test
    assert len(parts(test_fraction=0.5)[1]) == 20
