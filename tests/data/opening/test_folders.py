"""Folders of images: classes, parts, channels, and folders that cannot be read."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatclr.data.opening import open_dataset
from flatclr.data.sources import FileImages, TransparentImagesWarning
from tests.support.images import RNG, color_png, pixels, write_png
from tests.support.sources import all_images, assert_holds

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_a_folder_per_class_round_trips(tmp_path: Path) -> None:
    images = [color_png(tmp_path / "pets" / name) for name in ("cat/1.png", "cat/more/2.PNG", "dog/1.png")]
    (tmp_path / "pets" / "notes.txt").write_text("no image")
    (tmp_path / "pets" / "cat" / "._1.png").write_text("left behind by macOS")
    dataset = open_dataset(tmp_path / "pets", labels="folders")
    assert_holds(dataset.train, np.stack(images), [0, 0, 1])
    assert isinstance(dataset.train, FileImages)
    assert (dataset.name, dataset.train.classes) == ("pets", ("cat", "dog"))
    assert (dataset.train.channels, dataset.train.image_size, dataset.train.skipped) == (3, 8, [])


def test_a_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    images = [color_png(tmp_path / "flat" / f"{i}.png") for i in range(3)]
    dataset = open_dataset(tmp_path / "flat")
    assert_holds(dataset.train, np.stack(images), None)
    assert dataset.labelled is None


def test_a_single_sub_folder_is_unlabelled(tmp_path: Path) -> None:
    images = [color_png(tmp_path / "one" / "all" / f"{i}.png") for i in range(3)]
    assert_holds(open_dataset(tmp_path / "one").train, np.stack(images), None)


@pytest.mark.parametrize("test_folder", ["test", "val"])
def test_train_and_test_folders_are_used_as_they_are(tmp_path: Path, test_folder: str) -> None:
    train = [color_png(tmp_path / "train" / name) for name in ("a/1.png", "b/1.png", "c/1.png")]
    test = [color_png(tmp_path / test_folder / "b" / "9.png")]
    dataset = open_dataset(tmp_path)
    assert_holds(dataset.train, np.stack(train), [0, 1, 2])
    assert_holds(dataset.test, np.stack(test), [1])


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        color_png(tmp_path / name / "1.png")
    assert open_dataset(tmp_path).train.classes == ("bus", "train")  # type: ignore[union-attr]


def test_a_folder_of_gray_images_has_one_channel(tmp_path: Path) -> None:
    images = [pixels(8, 8) for _ in range(3)]
    for i, image in enumerate(images):
        write_png(tmp_path / "gray" / f"{i}.png", image)
    assert_holds(open_dataset(tmp_path / "gray").train, np.stack(images)[:, None], None)


def test_one_color_image_makes_all_color(tmp_path: Path) -> None:
    gray, deep = pixels(8, 8), RNG.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    write_png(tmp_path / "mixed" / "1.png", gray)
    write_png(tmp_path / "mixed" / "2.png", deep)
    colored = color_png(tmp_path / "mixed" / "3.png")
    expected = [np.stack([gray] * 3), np.stack([(deep >> 8).astype(np.uint8)] * 3), colored]
    assert_holds(open_dataset(tmp_path / "mixed").train, np.stack(expected), None)


def test_transparent_palette_and_rotated_images_are_read(tmp_path: Path) -> None:
    color_png(tmp_path / "1.png")
    flat = Image.fromarray(pixels(8, 8, 3)).quantize(16)
    flat.save(tmp_path / "2.png", transparency=bytes(range(16)))
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:2] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    Image.fromarray(upright[::-1].copy()).save(tmp_path / "3.jpg", exif=exif, quality=100)
    with pytest.warns(TransparentImagesWarning):
        images = all_images(open_dataset(tmp_path).train)
    levels, white = np.array(flat.convert("RGB"), float), 255.0
    alpha = np.array(flat, float)[..., None] / 255  # the transparency of an entry of the palette is its number
    assert np.abs(images[1].permute(1, 2, 0).numpy() - (alpha * levels + (1 - alpha) * white)).max() <= 1
    assert images[2, :, 0].min() > 200
    assert images[2, :, 7].max() < 50


def test_the_shorter_side_is_resized_and_the_centre_kept(tmp_path: Path) -> None:
    image = np.repeat(np.repeat(pixels(3, 5, 3), 10, axis=0), 10, axis=1)  # 3 x 5 blocks of 10 pixels
    write_png(tmp_path / "a" / "1.png", image)
    write_png(tmp_path / "a" / "2.png", image)
    train = open_dataset(tmp_path / "a").train
    assert_holds(train, np.stack([image[:, 10:40].transpose(2, 0, 1)] * 2), None)
    small = all_images(open_dataset(tmp_path / "a", image_size=15).train)
    assert small[0, :, 2::5, 2::5].tolist() == image[5::10, 15:45:10].transpose(2, 0, 1).tolist()  # block centres


def test_photographs_come_at_224_unless_told(tmp_path: Path) -> None:
    for i in range(2):
        write_png(tmp_path / "a" / f"{i}.png", np.zeros((300, 400, 3), np.uint8))
    assert open_dataset(tmp_path / "a").train.image_size == 224  # type: ignore[union-attr]


def test_a_folder_of_broken_files_only_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_text("not an image")
    with pytest.raises(
        ValueError, match=r"must hold readable images, got 0 of 1; the first is .*1\.png: cannot identify"
    ):
        open_dataset(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold images \(\.jpg, .*\), got an empty folder; put images there"):
        open_dataset(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match=r"got only \.txt; put images there"):
        open_dataset(tmp_path)


LAYOUTS = {
    "one level of folders": (["a/1.png", "b/2.png", "b/3.png"], [0, 1, 1]),
    "spaces in names": (["my cats/photo 1.png", "my dogs/photo 2.png"], [0, 1]),
    "images beside folders": (["1.png", "a/1.png", "b/1.png"], None),
    "nested folders": (["2019/spring/1.png", "2019/winter/2.png", "2020/3.png"], None),
    "one folder": (["all/1.png", "all/2.png"], None),
    "images alone": (["1.png", "2.png"], None),
}


@pytest.mark.parametrize(("names", "labels"), LAYOUTS.values(), ids=LAYOUTS)
def test_sub_folders_are_classes_in_exactly_one_level_of_them(
    names: list[str], labels: list[int] | None, tmp_path: Path
) -> None:
    images = [color_png(tmp_path / "photos" / name) for name in names]
    auto, without = (open_dataset(tmp_path / "photos", labels=choice) for choice in ("auto", "none"))
    assert_holds(auto.train, np.stack(images), labels)
    assert_holds(without.train, np.stack(images), None)
    assert ("taken for classes; --labels none" in auto.notes[0]) == (labels is not None)
    assert without.notes == ("no labels",)


def test_labels_by_folders_take_the_first_level_and_refuse_images_beside_it(tmp_path: Path) -> None:
    images = [color_png(tmp_path / "photos" / name) for name in LAYOUTS["nested folders"][0]]
    assert_holds(open_dataset(tmp_path / "photos", labels="folders").train, np.stack(images), [0, 0, 1])
    color_png(tmp_path / "photos" / "loose.png")
    with pytest.raises(ValueError, match=r"several sub-folders for --labels folders, got loose\.png beside them; move"):
        open_dataset(tmp_path / "photos", labels="folders")
    with pytest.raises(ValueError, match="labels must be one of 'auto', 'folders', 'none', got 'folder'"):
        open_dataset(tmp_path / "photos", labels="folder")


def test_a_link_back_to_the_folder_ends(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png"):
        color_png(tmp_path / name)
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(open_dataset(tmp_path).train) == 2
