"""Tar shards of small images."""

import io
import tarfile
from pathlib import Path

import numpy as np

from tests.support.images import pixels, png


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(keys: list[str], labels: list[int] | None) -> tuple[dict[str, bytes], np.ndarray]:
    images = pixels(len(keys), 8, 8, 3)
    members: dict[str, bytes] = {}
    for i, key in enumerate(keys):
        members[f"{key}.json"] = b"{}"
        if labels is not None:
            members[f"{key}.cls"] = f"{labels[i]}\n".encode()
        members[f"{key}.png"] = png(images[i])
    return members, images.transpose(0, 3, 1, 2)


def numbered_shards(folder: Path, shards: int, per_shard: int) -> Path:
    """Shards 000.tar, 001.tar, ... of images that show their number."""
    for shard in range(shards):
        numbers = range(shard * per_shard, (shard + 1) * per_shard)
        members = {f"{number:04}.png": png(np.full((8, 8), number, np.uint8)) for number in numbers}
        write_shard(folder / f"{shard:03}.tar", members)
    return folder
