"""Known datasets read from the folders that have them, or downloaded."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from pathlib import Path

from flatclr.data.named.download import (
    WrongChecksumError,
    download_and_read,
    refuse_partial,
    unpack_and_read,
    verified_archive,
)
from flatclr.data.named.layouts import NamedDataset
from flatclr.data.named.mnist import DIGITS, FASHION, IDX_DIGITS, read_idx
from flatclr.data.named.splits import Splits
from flatclr.data.named.table import NAMED
from flatclr.data.progress import Progress


def load(name: str, bases: Sequence[Path], *, download: bool = True, progress: Progress | None = None) -> Splits:
    """Read a known dataset from the first of the folders that has it, else download it into the first folder."""
    dataset = NAMED[name]
    for base in bases:
        if (found := dataset.complete_in(base)) is not None:
            layout, folder = found
            return layout.read(folder)
    for base in bases:
        if dataset.archived and (base / dataset.remotes[0].file).is_file():
            return unpack_and_read(dataset, base, verified_archive(dataset, base))
    refuse_partial(dataset, bases[0])
    if not download:
        raise FileNotFoundError(_absence(dataset, bases, "downloads are switched off"))
    try:
        return download_and_read(dataset, bases[0], progress)
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
