"""The data of an evaluation: what is learned from and tested on, its labels, and images adapted to an encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from flatclr.data.arrays import image_tensor
from flatclr.data.sources import AnySource, Dataset, ImageSource, ItemImages, PairedArrays, ReadyViews, Sentences
from flatclr.data.views import LUMA

IMAGES, SENTENCES = "images", "sentences"  # what an encoder reads
OTHERWISE = {
    IMAGES: "pass images.",
    SENTENCES: "pass a .csv file with the columns text and label, or to embed a .txt file.",
}


@dataclass(frozen=True)
class Splits:
    """Training images, or sentences, that protocols learn from, and others that they measure on."""

    name: str
    train: ImageSource
    test: ImageSource | None
    _fingerprints: dict[int, str] = field(default_factory=dict, init=False, repr=False)  # by identity of the source

    @classmethod
    def of(cls, dataset: Dataset, reads: str | None = IMAGES, words: int | None = None) -> Splits:
        """As an encoder reads them; of the labelled part of the training images, where only a part has labels."""
        train, *test = sources_of(dataset, reads, words)
        bank = train if dataset.bank is None else with_labels(dataset.bank)
        return cls(dataset.name, bank, test[0] if test else None)

    @property
    def kind(self) -> str:
        """What they are, in words."""
        return kind_of(self.train)

    @property
    def parts(self) -> list[ImageSource]:
        """Those there are."""
        return [self.train] if self.test is None else [self.train, self.test]

    @cached_property
    def labels(self) -> Tensor:
        """Of the training images, which have some: class numbers [N], or bool [N, classes]."""
        labels = labels_of(self.train)
        assert labels is not None
        return labels

    @cached_property
    def test_labels(self) -> Tensor:
        """Of the test images, by the classes of the training images."""
        assert self.test is not None
        labels = labels_of(self.test)
        assert labels is not None
        return _renumbered(labels, self.test.classes, self.train.classes)

    @property
    def several_classes(self) -> bool:
        """Whether an image may be of several classes."""
        labels = labels_of(self.train)
        return labels is not None and labels.dim() == 2

    @property
    def labelled(self) -> bool:
        """Whether both parts are there and have labels."""
        return len(self.parts) == 2 and all(labels_of(part) is not None for part in self.parts)

    @property
    def shown(self) -> ImageSource:
        """Where label-free protocols look: the test images where there are some."""
        return self.parts[-1]

    def fingerprint(self, source: ImageSource) -> str:
        """Of one part, computed once."""
        if id(source) not in self._fingerprints:
            self._fingerprints[id(source)] = source.fingerprint()
        return self._fingerprints[id(source)]

    @property
    def sha256(self) -> str:
        """Of both parts: a name alone does not say which images they are."""
        return hashlib.sha256(repr([self.fingerprint(part) for part in self.parts]).encode()).hexdigest()

    def adapted(self, channels: int, image_size: int, mode: str = "bilinear") -> Splits:
        """Resized and centre-cropped, in as many channels, as an encoder knows its images."""
        parts = [AdaptedSource(part, channels, image_size, mode) for part in self.parts]
        return Splits(self.name, parts[0], parts[1] if len(parts) == 2 else None)

    def problem_with_labels(self) -> str | None:
        """Why labels of both parts cannot be compared, in one line; None if they can."""
        assert self.test is not None
        seen, asked = _occurring(self.train), _occurring(self.test)
        unseen = [name for name in asked if name not in seen]
        if unseen:
            return (
                f"every class of the test {self.kind} must be in the training {self.kind}, got {unseen[0]!r} in "
                f"{self.name}'s test part only; split the data anew."
            )
        of_test = labels_of(self.test)
        if of_test is None or self.several_classes != (of_test.dim() == 2):
            return f"both parts must have the same kind of labels, got two kinds in {self.name}; label one anew."
        if not self.several_classes and len(seen) < 2:
            return (
                f"training {self.kind} must be of at least 2 classes, got {len(seen)} in {self.name}; label more of "
                "them."
            )
        return None


def sources_of(dataset: Dataset, reads: str | None = IMAGES, words: int | None = None) -> list[ImageSource]:
    """Its parts as an encoder reads them, images or sentences of so many words; either where `reads` is None."""
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    wanted = (IMAGES, SENTENCES) if reads is None else (reads,)
    for kind in map(kind_of, parts):
        if kind not in wanted:
            raise ValueError(f"the data must be {wanted[0]}, got {kind} ({dataset.name}); {OTHERWISE[wanted[0]]}")
    return [
        part.reading(words) if words is not None and isinstance(part, Sentences) else with_labels(part)
        for part in parts
        if not isinstance(part, PairedArrays | ReadyViews)
    ]


def kind_of(source: AnySource) -> str:
    """What it has, in words."""
    if isinstance(source, PairedArrays):
        return "paired sentences" if source.tokens else "paired arrays"
    if isinstance(source, ReadyViews):
        return "views made of images"
    return SENTENCES if isinstance(source, Sentences) else IMAGES


def with_labels(source: ImageSource) -> ImageSource:
    """With labels that stand in the items of a dataset alone."""
    return source.labelled() if isinstance(source, ItemImages) else source


def labels_of(source: ImageSource) -> Tensor | None:
    """Class numbers [N], or bool [N, classes] where images are of several classes."""
    return source.labels if source.labels is not None else getattr(source, "targets", None)


def _occurring(source: ImageSource) -> list[str]:
    """Names of the classes that its images have."""
    labels = labels_of(source)
    assert labels is not None
    numbers = labels.any(0).nonzero()[:, 0] if labels.dim() == 2 else labels.unique()
    return [source.classes[number] for number in numbers]


def _renumbered(labels: Tensor, classes: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Labels by the order of `wanted`: a folder without one of the classes counts the others differently.

    >>> _renumbered(torch.tensor([0, 1]), ("cat", "dog"), ("bird", "cat", "dog"))
    tensor([1, 2])
    """
    place = {name: number for number, name in enumerate(wanted)}
    known = [number for number, name in enumerate(classes) if name in place]
    places = torch.tensor([place.get(name, -1) for name in classes])
    if labels.dim() == 1:
        return places[labels]
    table = torch.zeros(len(labels), len(wanted), dtype=torch.bool)
    table[:, places[known]] = labels[:, known]
    return table


@dataclass(frozen=True)
class AdaptedSource:
    """Images brought to another size (shorter side, centre kept) and number of channels."""

    source: ImageSource
    channels: int
    image_size: int
    mode: str = "bilinear"  # or "bicubic"

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def labels(self) -> Tensor | None:
        return self.source.labels

    @property
    def targets(self) -> Tensor | None:
        return getattr(self.source, "targets", None)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: Tensor) -> Tensor:
        images = self.source.batch(index)
        if images.shape[1] == 3 and self.channels == 1:
            weights = torch.tensor(LUMA).view(3, 1, 1)
            images = (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
        elif images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        return image_tensor(images, image_size=self.image_size, name=self.name, mode=self.mode).contiguous()

    def fingerprint(self) -> str:
        mode = "" if self.mode == "bilinear" else f"/{self.mode}"
        return f"{self.source.fingerprint()}/{self.channels}/{self.image_size}{mode}"
