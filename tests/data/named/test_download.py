"""Downloads: verified, whole or absent, and one line where there is no network."""

import hashlib
import re
import tarfile
from pathlib import Path

import pytest

from flatclr.data import named
from flatclr.data.named import NAMED, NamedDataset, Remote
from flatclr.data.opening import open_dataset
from tests.support.images import shorten
from tests.support.layouts import Made, tiny_cifar, write_cifar10_binary, write_idx

pytestmark = pytest.mark.usefixtures("_nowhere_else")


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


@pytest.mark.parametrize("name", NAMED)
def test_downloads_try_https_first(name: str) -> None:
    assert all(remote.addresses[0].startswith("https://") for remote in NAMED[name].remotes)
