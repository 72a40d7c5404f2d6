"""Training and test part of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from flatclr.data.sources.paired import PairedArrays
from flatclr.data.sources.protocol import ImageSource
from flatclr.data.sources.ready import ReadyViews
from flatclr.data.sources.sentences import Sentences

AnySource = ImageSource | PairedArrays | ReadyViews | Sentences
"""What a run can be trained on, and single sentences, which an encoder can be evaluated on."""


@dataclass(frozen=True)
class Dataset:
    """Training and test part of a dataset, as `flatclr.train` and `flatclr.evaluate` take it.

    Args:
        name: for messages and reports.
        train: what an encoder is trained on.
        test: what it is tested on; None if there is nothing.
        bank: labelled images for evaluation where `train` has no labels (STL-10's unlabelled part).
        notes: what was chosen where the data could have been read otherwise, a clause each.

    >>> from flatclr.data import ResidentImages
    >>> images = ResidentImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    >>> Dataset("mine", images, None).labelled is None
    True
    """

    name: str
    train: AnySource
    test: AnySource | None
    bank: ImageSource | None = None
    notes: tuple[str, ...] = ()

    @property
    def labelled(self) -> ImageSource | None:
        """The labelled images that neighbours and linear classifiers may learn from."""
        if isinstance(self.train, PairedArrays | ReadyViews):
            return self.bank
        if self.bank is None and self.train.labels is not None:
            return self.train
        return self.bank
