"""Files of numpy: images, labels and pairs as they were put in, and bad arrays one clear line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatclr.data.opening import open_dataset
from flatclr.data.sources import PairedArrays, ResidentImages
from tests.support.images import RNG, pixels
from tests.support.layouts import Made
from tests.support.sources import assert_holds, labels_of

pytestmark = pytest.mark.usefixtures("_nowhere_else")


@pytest.mark.parametrize(
    "keys",
    [("images", "labels"), ("x", "y"), ("X", "y"), ("train_images", "train_labels"), ("x_train", "y_train")],
)
def test_npz_round_trips_under_every_key(tmp_path: Path, keys: tuple[str, str]) -> None:
    images, labels = pixels(6, 8, 8, 3), np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "a.npz", **{keys[0]: images, keys[1]: labels})
    dataset = open_dataset(tmp_path / "a.npz", test_fraction=0)
    assert_holds(dataset.train, images.transpose(0, 3, 1, 2), labels)
    assert dataset.test is None


def test_npz_with_its_own_test_part_round_trips(tmp_path: Path) -> None:
    made = Made(6, 3, (1, 8, 8))
    np.savez(
        tmp_path / "a.npz",
        train_images=made.train[:, 0],
        train_labels=made.train_labels,
        test_images=made.test[:, 0],
        test_labels=made.test_labels,
    )
    dataset = open_dataset(tmp_path / "a.npz")
    made.check(dataset)
    assert dataset.train.classes == dataset.test.classes  # type: ignore[union-attr]


def test_labels_may_be_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(3, 8, 8), labels=["dog", "cat", "dog"])
    train = open_dataset(tmp_path / "a.npz").train
    assert labels_of(train) == [1, 0, 1]
    assert train.classes == ("cat", "dog")  # type: ignore[union-attr]


@pytest.mark.parametrize("keys", [("images", "labels"), ("train_images", "train_labels"), ("x_train", "y_train")])
@pytest.mark.parametrize("as_float", [False, True], ids=["uint8", "float"])
def test_labels_stored_as_float_are_class_numbers(tmp_path: Path, keys: tuple[str, str], as_float: bool) -> None:
    images, labels = pixels(4, 8, 8), np.array([0.0, 2.0, 1.0, 2.0])
    np.savez(tmp_path / "a.npz", **{keys[0]: images / 255 if as_float else images, keys[1]: labels})
    dataset = open_dataset(tmp_path / "a.npz")
    assert_holds(dataset.train, images[:, None], [0, 2, 1, 2])
    assert dataset.train.classes == ("0", "1", "2")  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("with_test", [False, True])
def test_tables_of_0_and_1_are_several_classes_whatever_their_type(tmp_path: Path, dtype: str, with_test: bool) -> None:
    table = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1]], dtype=dtype)
    parts = {"train_images": pixels(4, 8, 8), "train_labels": table}
    if with_test:
        parts |= {"test_images": pixels(2, 8, 8), "test_labels": table[:2]}
    np.savez(tmp_path / "a.npz", **parts)
    dataset = open_dataset(tmp_path / "a.npz")
    assert isinstance(dataset.train, ResidentImages)
    assert dataset.train.targets is not None
    assert dataset.train.targets.tolist() == table.astype(bool).tolist()
    assert (dataset.train.labels, dataset.train.classes) == (None, ("0", "1", "2"))
    if with_test:
        assert dataset.test.targets.tolist() == table[:2].astype(bool).tolist()  # type: ignore[union-attr]


def test_float_labels_of_both_parts_share_their_classes(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        x_train=pixels(3, 8, 8),
        y_train=np.array([0.0, 1.0, 0.0]),
        x_test=pixels(2, 8, 8),
        y_test=np.array([1.0, 3.0]),
    )
    dataset = open_dataset(tmp_path / "a.npz")
    assert dataset.train.classes == dataset.test.classes == ("0", "1", "2", "3")  # type: ignore[union-attr]
    assert labels_of(dataset.test) == [1, 3]


def test_float_images_without_labels_are_images_under_every_key(tmp_path: Path) -> None:
    images = pixels(4, 8, 8)
    for key in ("images", "train_images", "x_train", "x"):
        np.savez(tmp_path / "a.npz", **{key: images / 255})
        assert_holds(open_dataset(tmp_path / "a.npz").train, images[:, None], None)


def test_npy_files_named_for_images_or_labels_are_no_pairs(tmp_path: Path) -> None:
    images = pixels(4, 8, 8)
    for first, second in (("images", "labels"), ("a", "train-labels"), ("train_images", "b")):
        np.save(tmp_path / f"{first}.npy", images / 255)
        np.save(tmp_path / f"{second}.npy", np.array([0.0, 1.0, 1.0, 0.0]))
        assert_holds(
            open_dataset(f"{tmp_path}/{first}.npy,{tmp_path}/{second}.npy").train, images[:, None], [0, 1, 1, 0]
        )


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 8, 8, 1), (4, 1, 8, 8), (4, 8, 8, 3), (4, 3, 8, 8)])
def test_npy_images_of_every_shape_round_trip(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = pixels(*shape)
    np.save(tmp_path / "a.npy", images)
    expected = images[:, None] if len(shape) == 3 else images.transpose(0, 3, 1, 2) if shape[-1] < 4 else images
    train = open_dataset(tmp_path / "a.npy", test_fraction=0).train
    assert_holds(train, expected, None)
    assert isinstance(train, ResidentImages)
    assert train.images.is_contiguous()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_float_images_in_the_unit_range_become_the_nearest_level(tmp_path: Path, dtype: str) -> None:
    images = pixels(4, 8, 8)
    np.save(tmp_path / "a.npy", (images / 255).astype(dtype))
    assert_holds(open_dataset(tmp_path / "a.npy").train, images[:, None], None)


def test_npy_images_with_npy_labels(tmp_path: Path) -> None:
    images, labels = pixels(4, 8, 8), np.array([0, 1, 1, 0])
    np.save(tmp_path / "a.npy", images)
    np.save(tmp_path / "b.npy", labels)
    assert_holds(open_dataset(f"{tmp_path}/a.npy,{tmp_path}/b.npy").train, images[:, None], labels)


def test_two_float_arrays_are_pairs(tmp_path: Path) -> None:
    x, y = RNG.normal(size=(5, 3)), RNG.normal(size=5).astype("float32")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    for spec in (f"{tmp_path}/x.npy,{tmp_path}/y.npy", tmp_path / "both.npz"):
        dataset = open_dataset(spec)
        assert isinstance(dataset.train, PairedArrays)
        assert (dataset.test, dataset.labelled, len(dataset.train)) == (None, None, 5)
        got_x, got_y = dataset.train.batch(torch.tensor([4, 0]))
        torch.testing.assert_close(got_x, torch.tensor(x[[4, 0]], dtype=torch.float32))
        torch.testing.assert_close(got_y, torch.tensor(y[[4, 0], None]))


def with_value(value: float, *, at: tuple[int, ...], of: tuple[int, ...]) -> np.ndarray:
    array = np.full(of, 0.5)
    array[at] = value
    return array


BAD_ARRAYS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "label count": (
        {"images": pixels(4, 8, 8), "labels": np.arange(3)},
        ValueError,
        r"labels must have one entry per image, got shape \[3\] for 4 images; check",
    ),
    "label type": (
        {"images": pixels(4, 8, 8), "labels": np.zeros((4, 2), int)},
        TypeError,
        r"labels must be class numbers or names \[N\], got int64 \[4, 2\]; pass one integer per image",
    ),
    "negative label": (
        {"images": pixels(4, 8, 8), "labels": np.array([0, 1, -1, 0])},
        ValueError,
        "labels must be class numbers from 0 to .*, got -1 to 1; number the classes from 0",
    ),
    "fractional label": (
        {"images": pixels(4, 8, 8), "labels": np.array([0, 1, 0.5, 1])},
        ValueError,
        r"labels must be class numbers or names \[N\], .*, got 0\.5 in row 2; .*pairs.* x and y",
    ),
    "fractional label table": (
        {"images": pixels(4, 8, 8) / 255, "labels": np.full((4, 3), 0.25)},
        ValueError,
        r"labels must be .* a table \[N, classes\] of 0 and 1, got 0\.25 in row 0;",
    ),
    "nan label": (
        {"images": pixels(4, 8, 8), "labels": np.array([0, np.nan, np.inf, 1])},
        ValueError,
        "labels must be class numbers .*, got nan in row 1;",
    ),
    "huge label": (
        {"images": pixels(2, 8, 8), "labels": np.array([0, 1e300])},
        ValueError,
        r"labels must be class numbers .*, got 1e\+300 in row 1;",
    ),
    "fractional label of a float x": (
        {"x": pixels(4, 8, 8) / 255, "labels": np.array([0, 1, 0.5, 1])},
        ValueError,
        r"labels must be class numbers .*, got 0\.5 in row 2;",
    ),
    "shape": (
        {"images": pixels(4, 8)},
        ValueError,
        r"must have shape \[N, H, W\], .* got \[4, 8\]; reorder or reshape",
    ),
    "channels": ({"images": pixels(4, 8, 8, 5)}, ValueError, r"with C = 1 or 3, got \[4, 8, 8, 5\]"),
    "integers": (
        {"images": np.arange(256).reshape(4, 8, 8)},
        TypeError,
        r"must be uint8, or float in \[0, 1\], got int64 from 0 to 255; call \.astype\('uint8'\)",
    ),
    "16 bits": (
        {"images": np.linspace(0, 65535, 256).reshape(4, 8, 8).astype("uint16")},
        TypeError,
        r"got uint16 from 0 to 65535; .* say \(a >> 8\)\.astype\('uint8'\) for 16 bits",
    ),
    "negative integers": (
        {"images": np.linspace(-128, 127, 256).reshape(4, 8, 8).astype("int16")},
        TypeError,
        r"got int16 from -128 to 127; map them to float in \[0, 1\]",
    ),
    "masks": (
        {"images": np.eye(8, dtype=bool)[None].repeat(4, 0)},
        TypeError,
        r"got bool from 0 to 1; call \.astype\('float32'\)",
    ),
    "range": (
        {"images": np.linspace(-1, 1, 256).reshape(4, 8, 8)},
        ValueError,
        r"must be within \[0, 1\] if float, got \[-1, 1\]; subtract the lowest",
    ),
    "levels as float": (
        {"images": pixels(4, 8, 8).astype("float32")},
        ValueError,
        r"must be within \[0, 1\] if float, got \[\d+, 25\d\]; divide",
    ),
    "nan": (
        {"images": with_value(np.nan, at=(2, 3, 4), of=(4, 8, 8))},
        ValueError,
        "a must be finite, got NaN in image 2, in 1 of its 64 values; mend or remove this image and its label",
    ),
    "infinity": (
        {"images": with_value(-np.inf, at=(1500, 3), of=(1600, 8, 8))},
        ValueError,
        "a must be finite, got Inf in image 1500, in 8 of its 64 values; mend",
    ),
    "text": ({"images": np.array(["a", "b"])}, TypeError, "must be an array of numbers, got <U1; convert"),
    "empty": ({"images": pixels(0, 8, 8)}, ValueError, r"must not be empty, got shape \[0, 1, 8, 8\]"),
    "keys": ({"pictures": pixels(4, 8, 8)}, ValueError, "must hold one of train_images, .*, got pictures; rename"),
    "one image": ({"images": pixels(1, 8, 8)}, ValueError, "must have at least 2 training images, got 1; add more"),
    "test channels": (
        {"x_train": pixels(4, 8, 8), "x_test": pixels(4, 8, 8, 3)},
        ValueError,
        "as many channels in test as in training images, got 3 and 1; convert",
    ),
    "pair rows": ({"x": np.zeros((4, 2)), "y": np.zeros((3, 2))}, ValueError, "as many rows, got 4 and 3; row i"),
    "pair type": (
        {"x": np.zeros((4, 2), int), "y": np.zeros((4, 2))},
        TypeError,
        "x must be a float array .*, got torch.int64; call .astype",
    ),
    "pair nan": (
        {"x": np.zeros((3, 2)), "y": np.array([0, np.nan, 0])},
        ValueError,
        "y must be finite, got NaN or Inf in 1 of 3 rows, first in row 1; remove",
    ),
    "objects": (
        {"images": np.array([{}, {}], dtype=object)},
        ValueError,
        r"must be a readable \.npz file, got Object arrays cannot be loaded",
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_an_array_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    arrays, error, message = BAD_ARRAYS[name]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(error, match=message) as caught:
        open_dataset(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["a.npz", "a.npy"])
@pytest.mark.parametrize("kept", [0, 3, 100, 300])
def test_a_truncated_array_file_is_refused(tmp_path: Path, file: str, kept: int) -> None:
    path = tmp_path / file
    np.savez(path, images=pixels(8, 8, 8)) if file == "a.npz" else np.save(path, pixels(8, 8, 8))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=rf"{file} must be a readable \.{file[-3:]} file, got .*; write it again"):
        open_dataset(path)


@pytest.mark.parametrize(
    ("names", "second", "paired"),
    [
        (("images", "captions"), [[0.5, 1.5]] * 30, True),
        (("images", "labels"), [1.0, 0.0] * 15, False),
        (("images", "classes"), [1.0, 0.0] * 15, False),
        (("x", "y"), [1.0, 0.0] * 15, True),
    ],
)
def test_arrays_named_for_images_have_labels_only_where_they_can_be(
    names: tuple[str, str], second: list[Any], paired: bool, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.npy" for name in names]
    np.save(paths[0], np.random.default_rng(0).random((30, 3, 8, 8), dtype=np.float32))
    np.save(paths[1], np.array(second, dtype=np.float32))
    opened = open_dataset(",".join(map(str, paths)))
    assert isinstance(opened.train, PairedArrays) == paired
