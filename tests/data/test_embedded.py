"""The embedded images: balanced, small, quick, in two parts that share none."""

import time
from importlib import resources

import pytest

from flatclr.data.opening import fashion_mnist_small, open_dataset
from flatclr.data.sources import ResidentImages
from tests.support.sources import all_images

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_the_embedded_set_is_balanced_small_and_quick() -> None:
    start = time.perf_counter()
    dataset = open_dataset()
    seconds = time.perf_counter() - start
    assert seconds < 2
    for source, count in ((dataset.train, 10_000), (dataset.test, 2_000)):
        assert isinstance(source, ResidentImages)
        assert source.images.shape == (count, 1, 28, 28)
        assert source.images.is_contiguous()
        assert source.labels is not None
        assert source.labels.bincount().tolist() == [count // 10] * 10
        assert source.classes[:2] == ("T-shirt/top", "Trouser")
        assert 60 < source.images.float().mean() < 85  # all of Fashion-MNIST: 73
    assert dataset.name == "fashion-mnist-small"
    files = list((resources.files("flatclr.data") / "files").iterdir())
    assert sum(len(file.read_bytes()) for file in files) <= 6_000_000
    assert any("Permission is hereby granted" in file.read_text() for file in files if "LICENSE" in file.name)


def test_the_embedded_set_has_no_image_in_both_parts() -> None:
    dataset = fashion_mnist_small()
    train, test = ({image.numpy().tobytes() for image in all_images(part)} for part in (dataset.train, dataset.test))
    assert not train & test


def test_the_embedded_set_comes_in_other_sizes() -> None:
    assert open_dataset("fashion-mnist-small", image_size=32).train.image_size == 32  # type: ignore[union-attr]
