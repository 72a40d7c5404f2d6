"""Products with one matrix per sample and axis: what resizing and blurring have in common.

Shape suffixes: N samples, S output pixels, H rows, W columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def separable(images: Tensor, rows_NSH: Tensor, columns_NSW: Tensor) -> Tensor:
    """rows @ image @ columns^T for every channel of every sample."""
    samples, channels, height, _ = images.shape
    narrowed = product(images.reshape(samples, channels * height, -1), columns_NSW.mT)
    return product(rows_NSH[:, None], narrowed.view(samples, channels, height, -1))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the type of a: autocast would round to half precision. Where TF32 is allowed CUDA keeps 10 bits."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b
