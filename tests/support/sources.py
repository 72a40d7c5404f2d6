"""What a source of images holds."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatclr.data.sources import ImageSource, PairedArrays


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
