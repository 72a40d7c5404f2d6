"""Datasets known by name: how their files are laid out, where they are looked for and where they come from.

Shape suffixes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import pickle
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Progress = Callable[[str, int, int], None]  # file or task, done, total

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


class Labelled(NamedTuple):
    images_NCHW: Bytes
    labels_N: Bytes


class Splits(NamedTuple):
    """What the files of a known dataset hold."""

    train: Labelled
    test: Labelled
    classes: tuple[str, ...]
    unlabelled_NCHW: Bytes | None = None


@dataclass(frozen=True)
class Remote:
    """One file at its official address; the later addresses are mirrors."""

    file: str
    sha256: str
    size: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One way in which a dataset's files are arranged.

    `files` are what must be there, each given by its accepted names; `folders` where they stand below a data folder.
    Where other datasets use the same file names (`ambiguous`), only a folder of a known name is taken for this one.
    """

    folders: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Splits]
    ambiguous: bool = False

    def missing_from(self, folder: Path) -> list[str]:
        return [names[0] for names in self.files if _existing(folder, names) is None]

    def candidates(self, base: Path) -> list[Path]:
        own_name = any(base.resolve().parts[-len(Path(name).parts) :] == Path(name).parts for name in self.folders)
        itself = [base] if own_name or not self.ambiguous else []
        return itself + [base / folder for folder in self.folders]

    def complete_in(self, base: Path) -> Path | None:
        return next((folder for folder in self.candidates(base) if not self.missing_from(folder)), None)


@dataclass(frozen=True)
class NamedDataset:
    name: str
    layouts: tuple[Layout, ...]
    remotes: tuple[Remote, ...]
    home: str  # the folder below a data folder that downloads fill
    archived: bool  # the one remote file is an archive of `home`

    def complete_in(self, base: Path) -> tuple[Layout, Path] | None:
        for layout in self.layouts:
            if (folder := layout.complete_in(base)) is not None:
                return layout, folder
        return None


def load(name: str, bases: Sequence[Path], *, download: bool = True, progress: Progress | None = None) -> Splits:
    """Read a known dataset from the first of the folders that has it, else download it into the first folder."""
    dataset = NAMED[name]
    for base in bases:
        if (found := dataset.complete_in(base)) is not None:
            layout, folder = found
            return layout.read(folder)
    for base in bases:
        if dataset.archived and (base / dataset.remotes[0].file).is_file():
            return _unpack_and_read(dataset, base, _verified(dataset, base))
    _refuse_partial(dataset, bases[0])
    if not download:
        raise FileNotFoundError(_absence(dataset, bases, "downloads are switched off"))
    try:
        return _download(dataset, bases[0], progress)
    except (OSError, http.client.HTTPException, WrongChecksumError) as error:
        raise FileNotFoundError(_absence(dataset, bases, f"the download failed ({error})")) from error


def recognise(folder: Path) -> tuple[str, Splits] | None:
    """Read the known dataset that a folder holds, if it holds one."""
    found = {name: hit for name, dataset in NAMED.items() if (hit := dataset.complete_in(folder)) is not None}
    found.pop("stl10-unlabeled", None)  # the files of stl10
    if len(found) > 1:
        raise ValueError(
            f"{folder} must hold one dataset, got {', '.join(found)}; "
            "pass one of these names as the data and this folder as the data folder."
        )
    for name, (layout, at) in found.items():
        return name, layout.read(at)
    if IDX_DIGITS.missing_from(folder):
        return None
    name = folder.resolve().name
    return name, read_idx(folder, FASHION if "fashion" in name.lower() else DIGITS)


def read_idx(folder: Path, classes: tuple[str, ...]) -> Splits:
    """The four idx files of MNIST and its kin, plain or .gz."""
    splits = []
    for images_names, labels_names in (IDX_FILES[:2], IDX_FILES[2:]):
        images_NHW = _read_idx_file(_require_file(folder, images_names), dimensions=3)
        labels_N = _read_idx_file(_require_file(folder, labels_names), dimensions=1)
        splits.append(Labelled(images_NHW[:, None], labels_N))
    return Splits(splits[0], splits[1], classes)


def _read_idx_file(path: Path, *, dimensions: int) -> Bytes:
    content = _read_bytes(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(
            f"{path} must start with the idx magic number of {dimensions}-dimensional bytes, got {content[:4].hex()}; "
            "the file is damaged or of another kind: download it again."
        )
    shape = [int.from_bytes(content[4 + 4 * d : 8 + 4 * d], "big") for d in range(dimensions)]
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise ValueError(
            f"{path} must hold {shape} = {expected} bytes after its header, got {len(content) - header}; "
            "the file is truncated or damaged: download it again."
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=header).reshape(shape)


def read_cifar10_binary(folder: Path) -> Splits:
    train = [_read_records(folder / f"data_batch_{i}.bin", labels=1) for i in range(1, 6)]
    return Splits(
        Labelled(*map(np.concatenate, zip(*train, strict=True))),
        _read_records(folder / "test_batch.bin", labels=1),
        _lines(_require_file(folder, ("batches.meta.txt",))),
    )


def read_cifar100_binary(folder: Path) -> Splits:
    train, test = (_read_records(folder / file, labels=2) for file in ("train.bin", "test.bin"))
    return Splits(train, test, _lines(_require_file(folder, ("fine_label_names.txt",))))


def _read_records(path: Path, *, labels: int) -> Labelled:
    """Records of label bytes (the last is the fine one) and 3 x 32 x 32 pixels."""
    records = _whole_records(path, labels + 3072)
    images_NCHW = np.ascontiguousarray(records[:, labels:]).reshape(-1, 3, 32, 32)
    return Labelled(images_NCHW, records[:, labels - 1].copy())


def read_cifar10_pickled(folder: Path) -> Splits:
    train = [_read_pickled_batch(folder / f"data_batch_{i}", "labels") for i in range(1, 6)]
    return Splits(
        Labelled(*map(np.concatenate, zip(*train, strict=True))),
        _read_pickled_batch(folder / "test_batch", "labels"),
        _pickled_names(folder / "batches.meta", "label_names"),
    )


def read_cifar100_pickled(folder: Path) -> Splits:
    train, test = (_read_pickled_batch(folder / file, "fine_labels") for file in ("train", "test"))
    return Splits(train, test, _pickled_names(folder / "meta", "fine_label_names"))


def _read_pickled_batch(path: Path, label_key: str) -> Labelled:
    content = load_plain_pickle(path)
    data, labels = content.get("data"), content.get(label_key)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
        raise ValueError(f"{path} must hold 'data' of uint8 [N, 3072], got {_kind(data)}; download it again.")
    if not (isinstance(labels, list) and len(labels) == len(data) and all(label in range(256) for label in labels)):
        raise ValueError(
            f"{path} must hold {label_key!r} with {len(data)} entries, got {_kind(labels)}; download it again."
        )
    return Labelled(data.reshape(-1, 3, 32, 32), np.asarray(labels, np.uint8))


def _pickled_names(path: Path, key: str) -> tuple[str, ...]:
    names = load_plain_pickle(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path} must hold {key!r}, a list of names, got {_kind(names)}; download it again.")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return f"{len(value)} entries" if isinstance(value, list) else type(value).__name__


def load_plain_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of plain values and arrays; a file that asks for anything else is refused unexecuted."""
    with _require_file(path.parent, (path.name,)).open("rb") as file:
        try:
            content = _PlainUnpickler(file, encoding="bytes").load()
        except ForbiddenPickleError as error:
            raise ValueError(
                f"{path} must hold only arrays and plain values, got a reference to {error}; "
                "do not trust this file: download the dataset again from its official address."
            ) from None
        except Exception as error:  # a damaged pickle can fail in any way
            raise ValueError(
                f"{path} must be a readable pickle, got {_reason(error)}; the file is truncated or damaged: "
                "download it again."
            ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(content).__name__}; download it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class ForbiddenPickleError(pickle.UnpicklingError):
    pass


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ForbiddenPickleError(f"_codecs.encode to {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT, _FROM_BUFFER = np.zeros(1).__reduce__()[0], np.zeros(1).__reduce_ex__(5)[0]
_PLAIN_NAMES: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,  # where numpy 2 keeps it
    "numpy.core.numeric._frombuffer": _FROM_BUFFER,
    "numpy._core.numeric._frombuffer": _FROM_BUFFER,
    "_codecs.encode": _encode_latin1,  # how protocol 2 writes bytes
}


class _PlainUnpickler(pickle.Unpickler):
    """Knows the few names an array needs and looks up no others, so nothing in the file can run."""

    def find_class(self, module: str, name: str) -> Any:
        known = _PLAIN_NAMES.get(f"{module}.{name}")
        if known is None:
            raise ForbiddenPickleError(f"{module}.{name}")
        return known


def read_stl10(folder: Path) -> Splits:
    train, test = (
        Labelled(_read_stl10_images(folder / f"{part}_X.bin"), _read_stl10_labels(folder, part))
        for part in ("train", "test")
    )
    unlabelled = folder / "unlabeled_X.bin"
    return Splits(
        train,
        test,
        _lines(_require_file(folder, ("class_names.txt",))),
        _read_stl10_images(unlabelled) if unlabelled.is_file() else None,
    )


def _read_stl10_images(path: Path) -> Bytes:
    # mapped, because unlabeled_X.bin has 2.8 GB; private pages, because torch wants to be able to write
    return _whole_records(path, 3 * 96 * 96, mapped=True).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)  # by columns


def _read_stl10_labels(folder: Path, part: str) -> Bytes:
    return _whole_records(folder / f"{part}_y.bin", 1)[:, 0] - np.uint8(1)  # the file counts from 1


def _whole_records(path: Path, record: int, *, mapped: bool = False) -> Bytes:
    size = _require_file(path.parent, (path.name,)).stat().st_size
    if size == 0 or size % record:
        raise ValueError(
            f"{path} must hold whole records of {record} bytes, got {size} bytes; "
            "the file is truncated or damaged: download it again."
        )
    content = np.memmap(path, np.uint8, mode="c") if mapped else np.fromfile(path, np.uint8)
    return content.reshape(-1, record)


def _existing(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _require_file(folder: Path, names: Sequence[str]) -> Path:
    found = _existing(folder, names)
    if found is None:
        raise FileNotFoundError(f"{folder} must hold {names[0]}, got no such file; complete the folder or remove it.")
    return found


def _read_bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} must be a readable gzip file, got {_reason(error)}; the file is truncated or damaged: "
            "download it again."
        ) from error


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in path.read_text().splitlines() if line.strip())


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": .")


class WrongChecksumError(ValueError):
    pass


def fetch(remote: Remote, folder: Path, progress: Progress | None = None) -> Path:
    """Download one file into a folder; it appears there whole and verified, or not at all."""
    failures = []
    for address in remote.addresses:
        part = folder / f".{remote.file}.{os.getpid()}.part"
        try:
            digest = _stream(address, part, remote, progress)
            if digest != remote.sha256:
                raise WrongChecksumError(f"SHA-256 must be {remote.sha256}, got {digest}")
            return part.replace(folder / remote.file)
        except (OSError, http.client.HTTPException, WrongChecksumError) as error:
            failures.append(f"{address}: {_reason(error)}")
        finally:
            part.unlink(missing_ok=True)
    raise OSError("; ".join(failures))


def _stream(address: str, part: Path, remote: Remote, progress: Progress | None) -> str:
    digest, done = hashlib.sha256(), 0
    request = urllib.request.Request(address, headers={"User-Agent": "flatclr"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            while chunk := reply.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(remote.file, done, remote.size)
    return digest.hexdigest()


def _download(dataset: NamedDataset, base: Path, progress: Progress | None) -> Splits:
    if dataset.archived:
        archive = fetch(dataset.remotes[0], base, progress)
        splits = _unpack_and_read(dataset, base, archive)
        archive.unlink(missing_ok=True)
        return splits
    folder = base / dataset.home
    for remote in dataset.remotes:
        if not (folder / remote.file).is_file():
            fetch(remote, folder, progress)
    return dataset.layouts[0].read(folder)


def _verified(dataset: NamedDataset, base: Path) -> Path:
    remote = dataset.remotes[0]
    archive = base / remote.file
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != remote.sha256:
        raise ValueError(
            f"{archive} must have the SHA-256 {remote.sha256}, got {digest}; "
            f"the file is truncated or another: download it again from {remote.addresses[0]}."
        )
    return archive


def _unpack_and_read(dataset: NamedDataset, base: Path, archive: Path) -> Splits:
    """The archive's folder appears whole or not at all."""
    _refuse_partial(dataset, base)
    layout, home = dataset.layouts[0], base / dataset.home
    with tempfile.TemporaryDirectory(dir=base, prefix=f".{dataset.home}.") as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        try:
            (Path(scratch) / dataset.home).rename(home)
        except OSError:
            if layout.missing_from(home):  # else another process was faster
                raise
    return layout.read(home)


def _refuse_partial(dataset: NamedDataset, base: Path) -> None:
    home = base / dataset.home
    missing = dataset.layouts[0].missing_from(home)
    if dataset.archived and home.exists() and missing:
        raise FileNotFoundError(
            f"{home} must be complete, got no {', '.join(missing)}; add that, or remove the folder."
        )


def _absence(dataset: NamedDataset, bases: Sequence[Path], why: str) -> str:
    folders = ", ".join(dict.fromkeys(folder for layout in dataset.layouts for folder in layout.folders))
    files = ", ".join(remote.file for remote in dataset.remotes)
    target = bases[0] if dataset.archived else bases[0] / dataset.home
    source = dataset.remotes[0].addresses[0].rpartition("/")[0]
    searched = ", ".join(map(str, bases))
    return (
        f"{dataset.name} must stand in a data folder as {folders}, got none in {searched}, and {why}; "
        f"put {files} from {source}/ into {target}/."
    )


def _idx(kind: str, dimensions: int) -> tuple[str, ...]:
    names = (f"{kind}-idx{dimensions}-ubyte", f"{kind}.idx{dimensions}-ubyte")
    return tuple(name + end for name in names for end in ("", ".gz"))


IDX_FILES = (_idx("train-images", 3), _idx("train-labels", 1), _idx("t10k-images", 3), _idx("t10k-labels", 1))
IDX_DIGITS = Layout(("mnist", "MNIST/raw", "MNIST"), IDX_FILES, lambda at: read_idx(at, DIGITS), ambiguous=True)
IDX_FASHION = Layout(
    ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), IDX_FILES, lambda at: read_idx(at, FASHION), ambiguous=True
)


def _files(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in names)


_CIFAR10_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_CIFAR10 = (
    Layout(
        ("cifar-10-batches-bin",),
        _files(*(f"{batch}.bin" for batch in _CIFAR10_BATCHES), "batches.meta.txt"),
        read_cifar10_binary,
    ),
    Layout(("cifar-10-batches-py",), _files(*_CIFAR10_BATCHES, "batches.meta"), read_cifar10_pickled),
)
_CIFAR100 = (
    Layout(("cifar-100-binary",), _files("train.bin", "test.bin", "fine_label_names.txt"), read_cifar100_binary),
    Layout(("cifar-100-python",), _files("train", "test", "meta"), read_cifar100_pickled),
)
_STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt")
_STL10_ARCHIVE = Remote(
    "stl10_binary.tar.gz",
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    2640397119,
    ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
)


def _cifar_archive(number: int, sha256: str, size: int) -> Remote:
    file = f"cifar-{number}-binary.tar.gz"
    return Remote(file, sha256, size, (f"https://www.cs.toronto.edu/~kriz/{file}",))


def _idx_remotes(addresses: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[Remote, ...]:
    return tuple(
        Remote(file, sha256, size, tuple(address + file for address in addresses))
        for file, (size, sha256) in files.items()
    )


# Checksums as recorded by TensorFlow Datasets (url_checksums/).
NAMED: dict[str, NamedDataset] = {
    dataset.name: dataset
    for dataset in (
        NamedDataset(
            "cifar10",
            _CIFAR10,
            (_cifar_archive(10, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170052171),),
            home="cifar-10-batches-bin",
            archived=True,
        ),
        NamedDataset(
            "cifar100",
            _CIFAR100,
            (_cifar_archive(100, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", 168513733),),
            home="cifar-100-binary",
            archived=True,
        ),
        NamedDataset(
            "mnist",
            (IDX_DIGITS,),
            _idx_remotes(
                (  # its author's page no longer serves the files
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                ),
                {
                    "train-images-idx3-ubyte.gz": (
                        9912422,
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    ),
                    "train-labels-idx1-ubyte.gz": (
                        28881,
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    ),
                    "t10k-images-idx3-ubyte.gz": (
                        1648877,
                        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    ),
                    "t10k-labels-idx1-ubyte.gz": (
                        4542,
                        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    ),
                },
            ),
            home="mnist",
            archived=False,
        ),
        NamedDataset(
            "fashion-mnist",
            (IDX_FASHION,),
            _idx_remotes(
                ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
                {
                    "train-images-idx3-ubyte.gz": (
                        26421880,
                        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    ),
                    "train-labels-idx1-ubyte.gz": (
                        29515,
                        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    ),
                    "t10k-images-idx3-ubyte.gz": (
                        4422102,
                        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    ),
                    "t10k-labels-idx1-ubyte.gz": (
                        5148,
                        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                    ),
                },
            ),
            home="fashion-mnist",
            archived=False,
        ),
        NamedDataset(
            "stl10",
            (Layout(("stl10_binary",), _files(*_STL10_FILES), read_stl10),),
            (_STL10_ARCHIVE,),
            home="stl10_binary",
            archived=True,
        ),
        NamedDataset(
            "stl10-unlabeled",
            (Layout(("stl10_binary",), _files(*_STL10_FILES, "unlabeled_X.bin"), read_stl10),),
            (_STL10_ARCHIVE,),
            home="stl10_binary",
            archived=True,
        ),
    )
}
