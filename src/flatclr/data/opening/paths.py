"""Data that is named by where it lies."""

from __future__ import annotations

from pathlib import Path

from flatclr.data.opening.folders import open_folder
from flatclr.data.opening.known import DATASETS
from flatclr.data.opening.names import expanded, nearest
from flatclr.data.opening.numpy_files import open_npy, open_npy_pair, open_npz
from flatclr.data.opening.shards import open_shards
from flatclr.data.opening.split import Split
from flatclr.data.opening.text import open_tables, open_text
from flatclr.data.sources import Dataset


def open_path(text: str, image_size: int | None, split: Split, labels: str = "auto") -> Dataset:
    """The dataset at a path, at two paths with a comma between, or of the shards that a pattern stands for."""
    path = Path(text).expanduser()
    if path.is_dir():
        return open_folder(path, image_size, split, labels)
    if not path.exists():
        return _open_several(text, path, image_size, split)
    if not path.is_file():
        raise ValueError(f"data must be a file or a folder, got {str(path)!r}, which is neither; copy it into a file.")
    if path.suffix == ".npz":
        return open_npz(path, image_size, split)
    if path.suffix == ".npy":
        return open_npy(path, image_size, split)
    if path.suffix == ".txt":
        return open_text(path, split)
    if path.suffix == ".csv":
        return open_tables([path], split)
    if path.suffix == ".tar":
        return open_shards(path.stem, [path], image_size, split)
    raise ValueError(
        f"data must be a folder or end in .npz, .npy, .tar, .txt or .csv, got {str(path)!r}; "
        "unpack a compressed archive first, and point at the folder of single images."
    )


def _open_several(text: str, path: Path, image_size: int | None, split: Split) -> Dataset:
    paths = [Path(part.strip()).expanduser() for part in text.split(",")]
    if len(paths) == 2 and all(part.suffix == ".npy" for part in paths):
        return open_npy_pair((paths[0], paths[1]), image_size, split)
    if len(paths) == 2 and all(part.suffix == ".csv" and part.is_file() for part in paths):
        return open_tables(paths, split)
    if path.suffix == ".tar" and (shards := _shards(text)):
        return open_shards(path.parent.resolve().name, shards, image_size, split)
    raise FileNotFoundError(_absence(text, path))


def _shards(text: str) -> list[Path]:
    """Those that braces and wildcards stand for; each that braces name must be there."""
    names = [Path(name).expanduser() for name in expanded(text)]
    found = {name: sorted(name.parent.glob(name.name)) for name in names}
    missing = [name for name in names if not found[name]]
    if missing and len(missing) < len(names):
        raise FileNotFoundError(
            f"data must be shards that exist, got no {missing[0]}, and {len(missing)} of the {len(names)} that "
            f"{text!r} stands for are missing; copy them, or name those that are there."
        )
    return list(dict.fromkeys(path for name in names for path in found[name]))


def _absence(text: str, path: Path) -> str:
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, [*beside, *(DATASETS if text == path.name else ())])
    advice = f"did you mean {str(path.parent / near)!r}?" if near else "check the spelling, or the folder you are in."
    return f"data must be an existing path, hf:NAME or one of {', '.join(DATASETS)}, got {text!r}; {advice}"
