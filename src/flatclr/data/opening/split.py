"""Test samples of data that has no test part of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch

from flatclr.data.loading import seeded_generator
from flatclr.data.sources import Dataset, FileImages, ItemImages, PairedArrays, ResidentImages, Sentences


class Split(NamedTuple):
    """The seeded choice of test samples."""

    fraction: float
    seed: int

    def of(self, name: str, source: ResidentImages | FileImages | ItemImages | PairedArrays | Sentences) -> Dataset:
        """The source cut into training and test part."""
        held_out = int(len(source) * self.fraction)
        if held_out == 0:
            return Dataset(name, source, None)
        order = torch.randperm(len(source), generator=seeded_generator(self.seed, "test split"))
        test, train = (part.sort().values for part in (order[:held_out], order[held_out:]))
        dataset = Dataset(name, source.subset(train, f"{name}/train"), source.subset(test, f"{name}/test"))
        if isinstance(source, FileImages) and isinstance(dataset.train, FileImages):
            dataset.train.skipped += source.skipped
        if isinstance(source, FileImages | ItemImages) and isinstance(dataset.train, FileImages | ItemImages):
            dataset.train.transparent = source.transparent
        return dataset
