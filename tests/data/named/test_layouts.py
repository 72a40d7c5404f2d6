"""Every published layout gives back the images and labels that were put in, and damaged files one clear line."""

import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatclr.data.opening import open_dataset
from tests.support.images import pixels, shorten
from tests.support.layouts import (
    Made,
    tiny_cifar,
    write_cifar10_binary,
    write_cifar10_pickled,
    write_cifar100_binary,
    write_cifar100_pickled,
    write_idx,
    write_stl10,
)
from tests.support.sources import assert_holds

pytestmark = pytest.mark.usefixtures("_nowhere_else")


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
