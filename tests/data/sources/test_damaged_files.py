"""Damaged images among good ones: left out or replaced, counted, and reported once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import flatclr
from flatclr.data.opening import open_dataset
from flatclr.data.sources import FileImages, SkippedImagesWarning, TransparentImagesWarning
from flatclr.training.events import Event, Warned
from tests.support.images import color_png, shorten
from tests.support.sources import assert_holds
from tests.support.training_worker import config

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_a_file_that_is_no_image_is_left_out_counted_and_reported(tmp_path: Path) -> None:
    images = [color_png(tmp_path / name) for name in ("a/1.png", "a/3.png", "b/1.png")]
    (tmp_path / "a" / "2.png").write_text("not an image")
    (tmp_path / "b" / "0.jpg").write_bytes(b"")
    with pytest.warns(SkippedImagesWarning, match=r"2 of 5 files are no readable images .*2\.png: .*`skipped`") as seen:
        train = open_dataset(tmp_path).train
    assert len(seen) == 1
    assert_holds(train, np.stack(images), [0, 0, 1])
    assert isinstance(train, FileImages)
    assert [Path(path).name for path, _ in train.skipped] == ["2.png", "0.jpg"]


def damaged_folder(folder: Path) -> tuple[FileImages, list[np.ndarray]]:
    """Two classes of three; the second and third image of the first have good headers and no end."""
    images = [color_png(folder / name, size=32) for name in ("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png")]
    shorten(folder / "a" / "2.png", by=2000)
    shorten(folder / "a" / "3.png", by=1000)
    train = open_dataset(folder, test_fraction=0).train
    assert isinstance(train, FileImages)
    return train, images


def test_a_damaged_image_is_replaced_by_one_of_its_class_and_reported_once(tmp_path: Path) -> None:
    train, images = damaged_folder(tmp_path)
    expected = np.stack([images[i] for i in (0, 0, 0, 3, 4)])
    with pytest.warns(SkippedImagesWarning, match=r"a damaged image is left out.*2\.png") as seen:
        assert_holds(train, expected, [0, 0, 0, 1, 1])
    assert_holds(train, expected, [0, 0, 0, 1, 1])
    assert len(seen) == 1
    assert [Path(path).name for path, _ in train.skipped] == ["2.png", "3.png"]


def test_decoding_into_memory_drops_damaged_images(tmp_path: Path) -> None:
    train, images = damaged_folder(tmp_path)
    need = 5 * 3 * 32 * 32
    assert train.resident(need - 1) is None
    steps: list[tuple[int, int]] = []
    with pytest.warns(SkippedImagesWarning):
        resident = train.resident(need, progress=lambda _, done, total: steps.append((done, total)))
    assert_holds(resident, np.stack([images[i] for i in (0, 3, 4)]), [0, 1, 1])
    assert steps == [(5, 5)]


def test_a_class_of_damaged_images_only_is_an_error(tmp_path: Path) -> None:
    train, _ = damaged_folder(tmp_path)
    shorten(tmp_path / "a" / "1.png", by=1500)
    with (
        pytest.warns(SkippedImagesWarning),
        pytest.raises(ValueError, match=r"must have a readable image of class 'a', got 0 of 3 .*; check these files"),
    ):
        train.batch(torch.tensor([0]))


def test_a_16_bit_pgm_is_read_by_its_upper_bits(tmp_path: Path) -> None:
    levels = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    for i in range(3):
        (tmp_path / f"{i}.pgm").write_bytes(b"P5 8 8 65535\n" + levels.astype(">u2").tobytes())
    train = open_dataset(tmp_path, test_fraction=0).train
    assert train.channels == 1
    assert np.array_equal(train.batch(torch.tensor([0]))[0, 0].numpy(), levels >> 8)


def test_transparent_pixels_are_white_whatever_colour_they_hide(tmp_path: Path) -> None:
    hidden = np.zeros((8, 8, 4), np.uint8)
    hidden[..., 0] = 200
    hidden[:4, :, 3] = 255
    hidden[4:6, :, 3] = 51
    for i, mode in enumerate(("RGBA", "RGBA", "LA", "PA")):
        image = Image.fromarray(hidden)
        image = image if mode == "RGBA" else Image.merge("LA", (image.getchannel(0), image.getchannel(3)))
        image.save(tmp_path / f"{i}.png")
    Image.new("RGB", (8, 8), (10, 20, 30)).save(tmp_path / "9.png")
    with pytest.warns(
        TransparentImagesWarning, match="4 of 5 images have an alpha channel and are put on white"
    ) as seen:
        train = open_dataset(tmp_path, test_fraction=0).train
    assert len(seen) == 1
    colour, gray, opaque = train.batch(torch.tensor([0, 2, 4])).unbind()
    assert colour[:, 0, 0].tolist() == [200, 0, 0]
    assert colour[:, 7, 7].tolist() == gray[:, 7, 7].tolist() == [255, 255, 255]
    assert colour[:, 5, 0].tolist() == [244, 204, 204]  # a fifth of the colour, four fifths of white
    assert gray[:, 0, 0].tolist() == [200, 200, 200]
    assert opaque[:, 0, 0].tolist() == [10, 20, 30]


def test_a_run_says_once_that_images_are_put_on_white_wherever_they_come_from(tmp_path: Path) -> None:
    for part, count in (("train", 8), ("test", 4)):
        (tmp_path / "images" / part).mkdir(parents=True)
        for i in range(count):
            Image.new("RGBA", (8, 8), (i, 0, 0, 10)).save(tmp_path / "images" / part / f"{i}.png")
    items = [Image.new("RGBA", (8, 8), (i, 0, 0, 10)) for i in range(20)]
    for number, (data, said) in enumerate(((tmp_path / "images", "12 images"), (items, "at least 16 images"))):
        heard: list[Event] = []
        flatclr.train(config(tmp_path / str(number), 1, eval_samples=8), data=data, on_event=[heard.append])
        told = [e.message for e in heard if isinstance(e, Warned) and "alpha" in e.message]
        assert told == [f"{said} have an alpha channel and are put on white."]
    for data in (tmp_path / "images", {"train": items, "test": items}):
        with pytest.warns(TransparentImagesWarning, match="have an alpha channel and are put on white") as seen:
            assert flatclr.data.dataset_from(data).train.batch(torch.tensor([0])).min() > 200
        assert len(seen) == 1
