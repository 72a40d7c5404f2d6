"""Small random images, as arrays and as files."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write_png(path: Path, image_HWC: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image_HWC).save(path)
    return path


def color_png(path: Path, size: int = 8) -> np.ndarray:
    image = pixels(size, size, 3)
    write_png(path, image)
    return image.transpose(2, 0, 1)


def shorten(path: Path, by: int = 7) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "png")
    return out.getvalue()


def numbered(folder: Path, count: int = 40) -> Path:
    """Images that show their number, as files and as an array."""
    for i in range(count):
        write_png(folder / "files" / f"{i % 2}" / f"{i:03}.png", np.full((8, 8), i, np.uint8))
    np.save(folder / "array.npy", np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 8, 8)))
    return folder


def write_pngs(folder: Path, count: int, size: int = 12) -> Tensor:
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i:03d}.png")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
