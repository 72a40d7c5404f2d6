"""Every layout gives back the images and labels that were put in, and bad data one clear line."""

import gzip
import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from flatclr.data import named
from flatclr.data.arrays import image_tensor
from flatclr.data.named import NAMED, NamedDataset, Remote
from flatclr.data.opening import fashion_mnist_small, open_dataset
from flatclr.data.sources import Dataset, FileImages, ImageSource, PairedArrays, ResidentImages, SkippedImagesWarning

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test looks at the data folders of the machine."""
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def all_images(source: ImageSource | PairedArrays | None) -> Tensor:
    assert source is not None
    assert not isinstance(source, PairedArrays)
    return source.batch(torch.arange(len(source)))


def labels_of(source: ImageSource | PairedArrays | None) -> list[int] | None:
    assert source is not None
    assert not isinstance(source, PairedArrays)
    return None if source.labels is None else source.labels.tolist()


def assert_holds(source: ImageSource | PairedArrays | None, images_NCHW: np.ndarray, labels: Any) -> None:
    batch = all_images(source)
    assert batch.dtype == torch.uint8
    assert batch.numpy().tolist() == images_NCHW.tolist()
    assert labels_of(source) == (None if labels is None else list(labels))


class Made:
    """Random images and labels as written by one of the writers below."""

    def __init__(self, train: int, test: int, shape: tuple[int, ...], classes: int = 10) -> None:
        self.train, self.test = pixels(train, *shape), pixels(test, *shape)
        self.train_labels, self.test_labels = (RNG.integers(0, classes, n, dtype=np.uint8) for n in (train, test))

    def check(self, dataset: Dataset) -> None:
        assert_holds(dataset.train, self.train, self.train_labels)
        assert_holds(dataset.test, self.test, self.test_labels)


def write_idx(folder: Path, made: Made, *, end: str = "", separator: str = "-") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, images, labels in (("train", made.train, made.train_labels), ("t10k", made.test, made.test_labels)):
        for kind, array in (("images", images[:, 0]), ("labels", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            content = header + array.tobytes()
            file = folder / f"{part}-{kind}{separator}idx{array.ndim}-ubyte{end}"
            file.write_bytes(gzip.compress(content) if end == ".gz" else content)
    return folder


def cifar10_batches(made: Made) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five training files of two images, and the test file."""
    parts = zip(np.split(made.train, 5), np.split(made.train_labels, 5), strict=True)
    batches = {f"data_batch_{i}": part for i, part in enumerate(parts, start=1)}
    return batches | {"test_batch": (made.test, made.test_labels)}


def write_cifar10_binary(base: Path, made: Made) -> Path:
    folder = base / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for file, (images, labels) in cifar10_batches(made).items():
        records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{file}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)) + "\n\n")
    return folder


def write_cifar10_pickled(base: Path, made: Made, protocol: int = 2) -> Path:
    folder = base / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for file, (images, labels) in cifar10_batches(made).items():
        content = {b"data": images.reshape(len(images), -1), b"labels": labels.tolist(), b"batch_label": b"a batch"}
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
    names = {b"label_names": [f"class {i}".encode() for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=protocol))
    return folder


def write_cifar100_binary(base: Path, made: Made) -> Path:
    folder = base / "cifar-100-binary"
    folder.mkdir(parents=True)
    for file, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        coarse = np.full_like(labels, 7)
        records = np.concatenate([coarse[:, None], labels[:, None], images.reshape(len(images), -1)], axis=1)
        (folder / f"{file}.bin").write_bytes(records.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine {i}" for i in range(100)))
    return folder


def write_cifar100_pickled(base: Path, made: Made) -> Path:
    folder = base / "cifar-100-python"
    folder.mkdir(parents=True)
    for file, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        content = {"data": images.reshape(len(images), -1), "fine_labels": labels.tolist(), "coarse_labels": [0]}
        (folder / file).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"fine {i}" for i in range(100)]}))
    return folder


def write_stl10(base: Path, made: Made, unlabelled: np.ndarray | None = None) -> Path:
    folder = base / "stl10_binary"
    folder.mkdir(parents=True)
    for part, images, labels in (("train", made.train, made.train_labels), ("test", made.test, made.test_labels)):
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes((labels + 1).tobytes())
    if unlabelled is not None:
        (folder / "unlabeled_X.bin").write_bytes(unlabelled.transpose(0, 1, 3, 2).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    return folder


def write_png(path: Path, image_HWC: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image_HWC).save(path)
    return path


def color_png(path: Path, size: int = 8) -> np.ndarray:
    image = pixels(size, size, 3)
    write_png(path, image)
    return image.transpose(2, 0, 1)


def tiny_cifar() -> Made:
    return Made(10, 3, (3, 32, 32))


# ---- known layouts


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist")])
def test_idx_files_round_trip(tmp_path: Path, name: str, folder: str, separator: str, end: str) -> None:
    made = Made(6, 4, (1, 28, 28))
    write_idx(tmp_path / folder, made, end=end, separator=separator)
    dataset = open_dataset(name, data_dir=tmp_path, download=False)
    made.check(dataset)
    assert (dataset.name, dataset.train.name) == (name, f"{name}/train")
    made.check(open_dataset(tmp_path / folder))


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    write_idx(tmp_path / "FashionMNIST" / "raw", Made(4, 2, (1, 28, 28)))
    with pytest.raises(FileNotFoundError, match="mnist must stand in a data folder"):
        open_dataset("mnist", data_dir=tmp_path, download=False)
    assert open_dataset(tmp_path).name == "fashion-mnist"
    assert open_dataset(tmp_path / "FashionMNIST" / "raw").test.classes[9] == "Ankle boot"  # type: ignore[union-attr]


@pytest.mark.parametrize("write", [write_cifar10_binary, write_cifar10_pickled])
def test_cifar10_round_trips(tmp_path: Path, write: Callable[[Path, Made], Path]) -> None:
    made = tiny_cifar()
    folder = write(tmp_path / "d", made)
    for dataset in (
        open_dataset("cifar10", data_dir=tmp_path / "d"),
        open_dataset(folder),
        open_dataset(folder.parent),
    ):
        made.check(dataset)
        assert dataset.name == "cifar10"
        assert dataset.train.classes[3] == "class 3"  # type: ignore[union-attr]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickled_cifar10_of_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    made = tiny_cifar()
    made.check(open_dataset(write_cifar10_pickled(tmp_path, made, protocol)))


@pytest.mark.parametrize("write", [write_cifar100_binary, write_cifar100_pickled])
def test_cifar100_round_trips_with_fine_labels(tmp_path: Path, write: Callable[[Path, Made], Path]) -> None:
    made = Made(6, 4, (3, 32, 32), classes=100)
    write(tmp_path, made)
    dataset = open_dataset("cifar100", data_dir=tmp_path)
    made.check(dataset)
    assert dataset.train.classes[99] == "fine 99"  # type: ignore[union-attr]


def test_stl10_round_trips(tmp_path: Path) -> None:
    made = Made(3, 2, (3, 96, 96))
    write_stl10(tmp_path, made)
    dataset = open_dataset("stl10", data_dir=tmp_path)
    made.check(dataset)
    assert dataset.labelled is dataset.train


def test_stl10_unlabeled_trains_without_labels_and_keeps_the_labelled_as_bank(tmp_path: Path) -> None:
    made, unlabelled = Made(3, 2, (3, 96, 96)), pixels(5, 3, 96, 96)
    folder = write_stl10(tmp_path, made, unlabelled)
    dataset = open_dataset("stl10-unlabeled", data_dir=tmp_path)
    assert_holds(dataset.train, unlabelled, None)
    assert_holds(dataset.labelled, made.train, made.train_labels)
    assert_holds(dataset.test, made.test, made.test_labels)
    assert open_dataset(folder).name == "stl10"


def test_named_data_is_looked_for_in_the_argument_then_the_environment_then_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_argument, in_environment, in_data = tiny_cifar(), tiny_cifar(), tiny_cifar()
    write_cifar10_binary(tmp_path / "argument", in_argument)
    write_cifar10_binary(tmp_path / "environment", in_environment)
    write_cifar10_binary(tmp_path / "data", in_data)
    in_data.check(open_dataset("cifar10"))
    monkeypatch.setenv("FLATCLR_DATA", str(tmp_path / "environment"))
    in_environment.check(open_dataset("cifar10"))
    in_argument.check(open_dataset("cifar10", data_dir=tmp_path / "argument"))


def test_a_folder_of_several_known_datasets_is_refused(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path, tiny_cifar())
    write_idx(tmp_path / "mnist", Made(4, 2, (1, 28, 28)))
    with pytest.raises(ValueError, match="must hold one dataset, got cifar10, mnist; pass one of these names"):
        open_dataset(tmp_path)


def shorten(path: Path, by: int = 7) -> None:
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize("end", ["", ".gz"])
def test_truncated_idx_is_refused(tmp_path: Path, end: str) -> None:
    folder = write_idx(tmp_path / "mnist", Made(4, 2, (1, 28, 28)), end=end)
    shorten(folder / f"train-images-idx3-ubyte{end}")
    with pytest.raises(
        ValueError, match=r"train-images-idx3-ubyte.* must .*, got .*; the file is truncated or damaged"
    ):
        open_dataset("mnist", data_dir=tmp_path)


def test_an_idx_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "mnist", Made(4, 2, (1, 28, 28)))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte must start with the idx magic number"):
        open_dataset("mnist", data_dir=tmp_path)


def test_idx_images_and_labels_of_different_counts_are_refused(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "mnist", Made(4, 2, (1, 28, 28)))
    other = write_idx(tmp_path / "other", Made(5, 2, (1, 28, 28)))
    (other / "train-labels-idx1-ubyte").rename(folder / "train-labels-idx1-ubyte")
    with pytest.raises(ValueError, match=r"labels must have one entry per image, got shape \[5\] for 4 images"):
        open_dataset("mnist", data_dir=tmp_path)


def test_truncated_cifar_is_refused(tmp_path: Path) -> None:
    shorten(write_cifar10_binary(tmp_path / "a", tiny_cifar()) / "data_batch_3.bin")
    with pytest.raises(ValueError, match=r"data_batch_3\.bin must hold whole records of 3073 bytes, got 6139 bytes"):
        open_dataset("cifar10", data_dir=tmp_path / "a")
    shorten(write_cifar10_pickled(tmp_path / "b", tiny_cifar()) / "data_batch_3")
    with pytest.raises(ValueError, match=r"data_batch_3 must be a readable pickle, got .* truncated or damaged"):
        open_dataset("cifar10", data_dir=tmp_path / "b")


class Malicious:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, getattr, __import__, open, subprocess.call, pickle.loads])
def test_a_malicious_pickle_is_refused_unexecuted(tmp_path: Path, function: Callable[..., Any]) -> None:
    folder = write_cifar10_pickled(tmp_path, tiny_cifar())
    marker = tmp_path / "executed"
    arguments = {
        os.system: (f"touch {marker}",),
        eval: (f"open({str(marker)!r}, 'w')",),
        open: (str(marker), "w"),
        subprocess.call: (["touch", str(marker)],),
    }.get(function, ("os",))
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Malicious(function, *arguments), "labels": []}))
    with pytest.raises(ValueError, match="data_batch_2 must hold only arrays and plain values, got a reference to"):
        open_dataset(folder)
    assert not marker.exists()


def test_a_pickle_without_the_expected_arrays_is_refused(tmp_path: Path) -> None:
    folder = write_cifar10_pickled(tmp_path, tiny_cifar())
    (folder / "test_batch").write_bytes(pickle.dumps({"data": np.zeros((2, 9)), "labels": [0, 1]}))
    with pytest.raises(ValueError, match=r"test_batch must hold 'data' of uint8 \[N, 3072\], got float64 \[2, 9\]"):
        open_dataset(folder)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}))
    with pytest.raises(ValueError, match="test_batch must hold 'labels' with 2 entries, got 1 entries"):
        open_dataset(folder)


# ---- downloads


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_dataset_says_which_file_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open_dataset(name, data_dir=tmp_path / "here", download=False)
    message = str(caught.value)
    home = tmp_path / "here" if NAMED[name].archived else tmp_path / "here" / NAMED[name].home
    for remote in NAMED[name].remotes:
        assert remote.file in message
    assert f"into {home}/" in message
    assert re.search(r"from https?://", message)
    assert "\n" not in message


def test_an_incomplete_folder_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    folder = write_cifar10_binary(tmp_path, tiny_cifar())
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin must be complete, got no data_batch_4.bin; add"):
        open_dataset("cifar10", data_dir=tmp_path)


def serve(monkeypatch: pytest.MonkeyPatch, name: str, files: list[Path], sha256: str | None = None) -> None:
    """Let a known dataset be downloaded from files of this machine."""
    remotes = tuple(
        Remote(
            file.name, sha256 or hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size, (file.as_uri(),)
        )
        for file in files
    )
    served = NamedDataset(name, NAMED[name].layouts, remotes, NAMED[name].home, NAMED[name].archived)
    monkeypatch.setitem(named.NAMED, name, served)


def cifar10_archive(tmp_path: Path, made: Made) -> Path:
    folder = write_cifar10_binary(tmp_path / "server", made)
    archive = tmp_path / "server" / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_an_archive_is_downloaded_verified_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_cifar()
    archive = cifar10_archive(tmp_path, made)
    serve(monkeypatch, "cifar10", [archive])
    reports: list[tuple[str, int, int]] = []
    made.check(open_dataset("cifar10", data_dir=tmp_path / "d", progress=lambda *report: reports.append(report)))
    assert reports[-1] == (archive.name, archive.stat().st_size, archive.stat().st_size)
    assert {path.parts[0] for path in map(Path, everything_below(tmp_path / "d"))} == {"cifar-10-batches-bin"}
    archive.unlink()
    made.check(open_dataset("cifar10", data_dir=tmp_path / "d"))


def test_separate_files_are_downloaded_and_only_the_missing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(4, 2, (1, 28, 28))
    server = write_idx(tmp_path / "server", made, end=".gz")
    files = sorted(server.iterdir())
    serve(monkeypatch, "mnist", files)
    (tmp_path / "d" / "mnist").mkdir(parents=True)
    files[0].rename(tmp_path / "d" / "mnist" / files[0].name)
    made.check(open_dataset("mnist", data_dir=tmp_path / "d"))
    assert everything_below(tmp_path / "d") == ["mnist", *(f"mnist/{file.name}" for file in files)]


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, "cifar10", [cifar10_archive(tmp_path, tiny_cifar())], sha256="0" * 64)
    with pytest.raises(FileNotFoundError, match=f"download failed .*SHA-256 must be {'0' * 64}, got [0-9a-f]{{64}}"):
        open_dataset("cifar10", data_dir=tmp_path / "d")
    assert everything_below(tmp_path / "d") == []


def test_two_processes_may_download_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_cifar()
    serve(monkeypatch, "cifar10", [cifar10_archive(tmp_path, made)])
    other = write_cifar10_binary(tmp_path / "other", made)

    def other_is_faster(*_: object) -> None:
        if other.exists():
            other.rename(tmp_path / "d" / other.name)

    made.check(open_dataset("cifar10", data_dir=tmp_path / "d", progress=other_is_faster))
    assert {path.parts[0] for path in map(Path, everything_below(tmp_path / "d"))} == {"cifar-10-batches-bin"}


def test_a_failing_address_gives_way_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    addresses = ((tmp_path / "absent").as_uri(), file.as_uri())
    remote = Remote("copy", hashlib.sha256(b"content").hexdigest(), 7, addresses)
    assert named.fetch(remote, tmp_path / "d").read_bytes() == b"content"
    assert everything_below(tmp_path / "d") == ["copy"]


def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = cifar10_archive(tmp_path, tiny_cifar())
    serve(monkeypatch, "cifar10", [archive])
    archive.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"the download failed .*; put cifar-10-binary.tar.gz from .* into"
    ) as e:
        open_dataset("cifar10", data_dir=tmp_path / "d")
    assert "\n" not in str(e.value)
    assert everything_below(tmp_path / "d") == []


def test_an_archive_put_by_hand_is_verified_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_cifar()
    archive = cifar10_archive(tmp_path, made)
    serve(monkeypatch, "cifar10", [archive])
    (tmp_path / "d").mkdir()
    at = archive.rename(tmp_path / "d" / archive.name)
    made.check(open_dataset("cifar10", data_dir=tmp_path / "d", download=False))
    shorten(at)
    (tmp_path / "d" / "cifar-10-batches-bin").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz must have the SHA-256"):
        open_dataset("cifar10", data_dir=tmp_path / "d", download=False)


def test_official_checksums_are_whole() -> None:
    for dataset in NAMED.values():
        for remote in dataset.remotes:
            assert re.fullmatch("[0-9a-f]{64}", remote.sha256)
            assert all(address.endswith("/" + remote.file) for address in remote.addresses)


# ---- arrays


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


def test_an_oblong_image_keeps_its_centre() -> None:
    image = pixels(2, 6, 9)
    assert image_tensor(image).numpy().tolist() == image[:, None, :, 1:7].tolist()
    assert image_tensor(image.transpose(0, 2, 1)).numpy().tolist() == image.transpose(0, 2, 1)[:, None, 1:7].tolist()


def test_resizing_keeps_a_ramp_a_ramp() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 5, dtype=np.uint8), (2, 48, 48))
    small = image_tensor(ramp, image_size=16)
    assert small.shape == (2, 1, 16, 16)
    assert small[0, 0, 5].tolist()[1:-1] == [5 + 15 * i for i in range(1, 15)]  # the mean of three steps of 5


def test_arrays_and_files_are_resized_alike(tmp_path: Path) -> None:
    smooth = np.array(Image.fromarray(pixels(6, 9, 3)).resize((45, 30), Image.Resampling.BICUBIC))
    write_png(tmp_path / "a" / "1.png", smooth)
    write_png(tmp_path / "a" / "2.png", smooth)
    from_files = all_images(open_dataset(tmp_path / "a", image_size=12).train)
    from_array = image_tensor(smooth[None], image_size=12)
    assert (from_files[0].int() - from_array[0].int()).abs().max() <= 1


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


# ---- folders


def test_a_folder_per_class_round_trips(tmp_path: Path) -> None:
    images = [color_png(tmp_path / "pets" / name) for name in ("cat/1.png", "cat/more/2.PNG", "dog/1.png")]
    (tmp_path / "pets" / "notes.txt").write_text("no image")
    (tmp_path / "pets" / "cat" / "._1.png").write_text("left behind by macOS")
    dataset = open_dataset(tmp_path / "pets")
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
    images = all_images(open_dataset(tmp_path).train)
    assert images[1].permute(1, 2, 0).tolist() == np.array(flat.convert("RGB")).tolist()
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


def test_images_beside_class_folders_are_an_error(tmp_path: Path) -> None:
    for name in ("1.png", "a/1.png", "b/1.png"):
        color_png(tmp_path / name)
    with pytest.raises(ValueError, match=r"either images or one sub-folder per class, got both \(1\.png beside b/\)"):
        open_dataset(tmp_path)


def test_a_link_back_to_the_folder_ends(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png"):
        color_png(tmp_path / name)
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(open_dataset(tmp_path).train) == 2


# ---- shards


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "png")
    return out.getvalue()


def samples(keys: list[str], labels: list[int] | None) -> tuple[dict[str, bytes], np.ndarray]:
    images = pixels(len(keys), 8, 8, 3)
    members: dict[str, bytes] = {}
    for i, key in enumerate(keys):
        members[f"{key}.json"] = b"{}"
        if labels is not None:
            members[f"{key}.cls"] = f"{labels[i]}\n".encode()
        members[f"{key}.png"] = png(images[i])
    return members, images.transpose(0, 3, 1, 2)


def test_tar_shards_round_trip(tmp_path: Path) -> None:
    first, images_a = samples(["d.1/000", "d.1/001"], [2, 0])
    second, images_b = samples(["002"], [5])
    write_shard(tmp_path / "s" / "shard-0.tar", first)
    write_shard(tmp_path / "s" / "shard-1.tar", second)
    for spec in (tmp_path / "s", f"{tmp_path}/s/shard-*.tar"):
        dataset = open_dataset(spec)
        assert_holds(dataset.train, np.concatenate([images_a, images_b]), [2, 0, 5])
        assert (dataset.name, dataset.train.classes) == ("s", tuple("012345"))  # type: ignore[union-attr]
    assert_holds(open_dataset(tmp_path / "s" / "shard-0.tar").train, images_a, [2, 0])


def test_shards_without_classes_are_unlabelled(tmp_path: Path) -> None:
    members, images = samples(["0", "1"], None)
    assert_holds(open_dataset(write_shard(tmp_path / "latest.tar", members)).train, images, None)


def test_shards_named_train_and_val_are_used_so(tmp_path: Path) -> None:
    train, train_images = samples(["0", "1"], [0, 1])
    test, test_images = samples(["0"], [3])
    write_shard(tmp_path / "set_train.tar", train)
    write_shard(tmp_path / "set_val.tar", test)
    dataset = open_dataset(tmp_path)
    assert_holds(dataset.train, train_images, [0, 1])
    assert_holds(dataset.test, test_images, [3])


def test_a_bad_shard_is_refused(tmp_path: Path) -> None:
    members, _ = samples(["0", "1", "2"], [0, 1, 0])
    whole = write_shard(tmp_path / "a.tar", members)
    content = whole.read_bytes()
    for kept in (0, 700, len(content) - 10_000):
        whole.write_bytes(content[:kept])
        with pytest.raises(ValueError, match=r"a\.tar must be a whole, uncompressed tar file, got .*; copy or pack"):
            open_dataset(whole)
    write_shard(whole, {key: value for key, value in members.items() if key != "1.cls"})
    with pytest.raises(ValueError, match=r"a\.tar:1 must have a \.cls member like the others, got none for 1 of 3"):
        open_dataset(whole)
    write_shard(whole, members | {"1.cls": b"cat"})
    with pytest.raises(ValueError, match=r"a\.tar must .*, got a \.cls member that is no class number: b'cat'"):
        open_dataset(whole)
    write_shard(whole, {"readme.txt": b"hello"})
    with pytest.raises(ValueError, match=r"a\.tar must hold images as key\.jpg or key\.png beside key\.cls, got none"):
        open_dataset(whole)


# ---- the hub


class HubImage:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class HubClassLabel:
    names = ("zebra", "ant")


class HubTable:
    """What is used of datasets.Dataset."""

    _fingerprint = "abc"

    def __init__(self, images: np.ndarray, labels: list[int], decode: bool = True) -> None:
        self.images, self.labels = images, labels
        self.features = {"id": object(), "img": HubImage(decode), "label": HubClassLabel()}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.labels
        assert not self.features["img"].decode  # type: ignore[attr-defined]
        return {"img": {"bytes": png(self.images[key]), "path": None}}

    def cast_column(self, column: str, kind: HubImage) -> "HubTable":
        assert column == "img"
        return HubTable(self.images, self.labels, kind.decode)


def test_a_hub_dataset_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = HubTable(pixels(3, 8, 8, 3), [0, 1, 0]), HubTable(pixels(2, 8, 8, 3), [1, 1])

    def load_dataset(name: str, split: str | None, **options: Any) -> Any:
        assert name == "owner/pets"
        if split not in (None, "train"):
            raise KeyError(f"no split {split}")
        return train if split else {"train": train, "test": test}

    hub = SimpleNamespace(load_dataset=load_dataset, Image=HubImage, ClassLabel=HubClassLabel)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # type: ignore[arg-type]
    dataset = open_dataset("hf:owner/pets")
    assert_holds(dataset.train, train.images.transpose(0, 3, 1, 2), [0, 1, 0])
    assert_holds(dataset.test, test.images.transpose(0, 3, 1, 2), [1, 1])
    assert dataset.train.classes == ("zebra", "ant")  # type: ignore[union-attr]
    assert_holds(open_dataset("hf:owner/pets:train").train, train.images.transpose(0, 3, 1, 2), [0, 1, 0])
    with pytest.raises(ValueError, match="hf:owner/pets:no must name a dataset of the Hugging Face hub, got 'no split"):
        open_dataset("hf:owner/pets:no")


def test_without_the_hub_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'hf:x needs .*, got no such module; pip install "flatclr\[hub\]"'):
        open_dataset("hf:x")


# ---- names, splits, fingerprints


def test_a_misspelt_name_or_path_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"or one of .*stl10.*, got 'cifra10'; did you mean 'cifar10'"):
        open_dataset("cifra10")
    (tmp_path / "photos").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/photos'"):
        open_dataset(tmp_path / "photso")
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/photos'"):
        open_dataset(tmp_path / "Photo")
    with pytest.raises(FileNotFoundError, match="got '/no/such/thing'; check the spelling"):
        open_dataset("/no/such/thing")
    np.save(tmp_path / "a.npy", pixels(2, 8, 8))
    with pytest.raises(FileNotFoundError, match=r"b\.npy must exist, got no such file; check the spelling"):
        open_dataset(f"{tmp_path}/a.npy,{tmp_path}/b.npy")


def test_a_file_of_another_ending_is_suggested_and_the_nearest_of_several(tmp_path: Path) -> None:
    for name in ("train.npy", "train.txt", "photos.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(FileNotFoundError, match=rf"did you mean '{tmp_path}/train\.npy'"):
        open_dataset(tmp_path / "train.npz")


@pytest.mark.parametrize("asked", ["a.npz", "mine.npz", "birds", "nowhere.tar"])
def test_nothing_is_suggested_where_nothing_is_close(tmp_path: Path, asked: str) -> None:
    folder = tmp_path / "a-long-folder-that-all-of-these-paths-have-in-common"
    for name in ("b.npz", "holiday.npz", "thesis.tar", "stuff"):
        (folder / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="; check the spelling, or the folder you are in"):
        open_dataset(folder / asked)


def test_images_too_large_for_the_memory_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    too_large = (
        r"must fit into memory, got {} images of 1 x {side} x {side} that need [\d,]+ GiB of [\d,]+; .*smaller image"
    )
    with pytest.raises(ValueError, match=too_large.format("10000", side=100_000)):
        open_dataset(None, image_size=100_000)
    with pytest.raises(ValueError, match=too_large.format("2", side=10**12)):
        image_tensor(pixels(2, 8, 8), image_size=10**12)
    for i in range(3):
        write_png(tmp_path / "a" / f"{i}.png", pixels(8, 8))
    with pytest.raises(ValueError, match=too_large.format("2", side=10**7)):
        open_dataset(tmp_path / "a", image_size=10**7)


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must be a folder or end in \.npz, \.npy or \.tar, got .*a\.zip'; unpack"):
        open_dataset(tmp_path / "a.zip")


@pytest.mark.parametrize("value", [1, 1.5, -0.1, float("nan")])
def test_a_test_fraction_outside_the_unit_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"test_fraction must be .*, got {value}"):
        open_dataset(None, test_fraction=value)


def numbered(folder: Path, count: int = 40) -> Path:
    """Images that show their number, as files and as an array."""
    for i in range(count):
        write_png(folder / "files" / f"{i % 2}" / f"{i:03}.png", np.full((8, 8), i, np.uint8))
    np.save(folder / "array.npy", np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 8, 8)))
    return folder


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


def test_a_fingerprint_follows_the_content(tmp_path: Path) -> None:
    numbered(tmp_path)

    def fingerprint(data: str) -> str:
        return open_dataset(tmp_path / data).train.fingerprint()

    before = {data: fingerprint(data) for data in ("files", "array.npy")}
    assert {data: fingerprint(data) for data in before} == before
    changed = np.load(tmp_path / "array.npy")
    changed[:, 7, 7] = 200
    np.save(tmp_path / "array.npy", changed)
    os.utime(tmp_path / "files" / "0" / "000.png", (0, 0))
    os.utime(tmp_path / "files" / "0" / "002.png", (0, 0))
    assert fingerprint("array.npy") != before["array.npy"]
    assert fingerprint("files") != before["files"]
    pairs = PairedArrays(torch.zeros(3, 2), torch.zeros(3, 2))
    assert pairs.fingerprint() != PairedArrays(torch.zeros(3, 2), torch.ones(3, 2)).fingerprint()


def test_moving_a_folder_keeps_its_fingerprint(tmp_path: Path) -> None:
    numbered(tmp_path)
    before = open_dataset(tmp_path / "files").train.fingerprint()
    (tmp_path / "files").rename(tmp_path / "moved")
    assert open_dataset(tmp_path / "moved").train.fingerprint() == before


# ---- the embedded set


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
