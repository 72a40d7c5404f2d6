"""scikit-learn's handwritten digits: labelled images that need no download."""

from __future__ import annotations

import torch

from flatclr.data.loading import seeded_generator
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.extras import needed

DIGITS = "digits"


def digits(image_size: int | None = None) -> Dataset:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn, a third of each class for testing."""
    bunch = needed("sklearn.datasets", by="data of handwritten digits", otherwise=", or name other data").load_digits()
    images = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(labels), generator=seeded_generator(0, DIGITS))
    test = torch.cat([m[: len(m) // 3] for m in (order[labels[order] == c] for c in range(10))]).sort().values
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[test] = False
    whole = ResidentImages.of(images, labels, image_size=image_size, name=DIGITS)
    return Dataset(DIGITS, whole.subset(mask.nonzero()[:, 0], f"{DIGITS}/train"), whole.subset(test, f"{DIGITS}/test"))
