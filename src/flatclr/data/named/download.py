"""Downloads that appear whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from flatclr.data.named.layouts import NamedDataset, Remote
from flatclr.data.named.reading import reason_of
from flatclr.data.named.splits import Splits
from flatclr.data.progress import Progress


class WrongChecksumError(ValueError):
    """A download is not the file that was asked for."""


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
            failures.append(f"{address}: {reason_of(error)}")
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


def download_and_read(dataset: NamedDataset, base: Path, progress: Progress | None) -> Splits:
    """Fetch what a dataset lacks below a data folder, and read it."""
    if dataset.archived:
        archive = fetch(dataset.remotes[0], base, progress)
        splits = unpack_and_read(dataset, base, archive)
        archive.unlink(missing_ok=True)
        return splits
    folder = base / dataset.home
    for remote in dataset.remotes:
        if not (folder / remote.file).is_file():
            fetch(remote, folder, progress)
    return dataset.layouts[0].read(folder)


def verified_archive(dataset: NamedDataset, base: Path) -> Path:
    """The archive that somebody put into a data folder; refused unless it is the official one."""
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


def unpack_and_read(dataset: NamedDataset, base: Path, archive: Path) -> Splits:
    """The archive's folder appears whole or not at all."""
    refuse_partial(dataset, base)
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


def refuse_partial(dataset: NamedDataset, base: Path) -> None:
    """Refuse an unpacked archive that lacks files: unpacking over it would mix two states."""
    home = base / dataset.home
    missing = dataset.layouts[0].missing_from(home)
    if dataset.archived and home.exists() and missing:
        raise FileNotFoundError(
            f"{home} must be complete, got no {', '.join(missing)}; add that, or remove the folder."
        )
