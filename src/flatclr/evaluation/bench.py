"""One set of weights on one dataset, and the features that protocols measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from flatclr.data.loading import seeded_generator
from flatclr.data.named import Progress
from flatclr.data.sources import ImageSource
from flatclr.evaluation.features import FeatureCache, compute_features, feature_key
from flatclr.evaluation.finetune import OWN
from flatclr.evaluation.splits import Splits
from flatclr.evaluation.subjects import Subject

VIEWED_IMAGES = 2048


@dataclass(frozen=True)
class Bench:
    """Everything that a protocol needs to measure a subject."""

    subject: Subject
    data: Splits
    layers: tuple[str, ...]
    layer: str
    device: torch.device
    cache: FeatureCache
    seed: int
    draws: int
    transfer: Callable[[], Splits]
    progress: Progress | None
    # of this evaluation, by identity of module and source, which live as long
    memo: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    random: bool = False  # weights drawn anew, not trained
    recipe: str = OWN  # of fine-tuning and transfer

    @property
    def test(self) -> ImageSource:
        """The test images, which protocols with labels have."""
        assert self.data.test is not None
        return self.data.test

    @property
    def test_labels(self) -> Tensor:
        """On the device."""
        return self.data.test_labels.to(self.device)

    @property
    def classes(self) -> int:
        """How many the training images have."""
        return len(self.data.train.classes)

    def variant(self, name: str) -> str:
        """Of a protocol that goes by the recipe: another recipe has rows of its own."""
        return ", ".join(part for part in (name, "" if self.recipe == OWN else f"{self.recipe} recipe") if part)

    def elsewhere(self) -> Bench:
        """The same subject on the transfer data, brought to its size."""
        return replace(self, data=self.transfer())

    def telling(self, what: str) -> Callable[[int, int], None] | None:
        """Progress of one task."""
        return None if self.progress is None else partial(self.progress, what)

    def features(self, source: ImageSource) -> Tensor:
        """Of the chosen layer; all layers of the run are computed in one pass, once."""
        place = (id(self.subject.module), id(source))
        if place not in self.memo:
            cache = self.cache if self.subject.architecture is not None else FeatureCache(None)
            found = cache.get(lambda: self._key(source), lambda: self._computed(source))
            self.memo[place] = {name: value.to(self.device) for name, value in found.items()}
        return self.memo[place][self.layer]

    def _key(self, source: ImageSource) -> str:
        subject, fingerprint = self.subject, self.data.fingerprint(source)
        return feature_key(subject.module, subject.architecture, fingerprint, subject.normalisation, self.layers)

    def _computed(self, source: ImageSource) -> dict[str, Tensor]:
        return compute_features(
            self.subject.module,
            source,
            self.subject.plain(),
            layers=self.layers,
            device=self.device,
            progress=self.progress,
        )

    def two_views(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features of two augmented views of some images, and which images these are."""
        shown = self.data.shown
        generator = seeded_generator(self.seed, "images with views")
        index = torch.randperm(len(shown), generator=generator)[:VIEWED_IMAGES]

        def view(name: str) -> Tensor:
            prepare = self.subject.augmented(shown.channels, seeded_generator(self.seed, "view", name))
            features = compute_features(
                self.subject.module, shown, prepare, layers=(self.layer,), index=index, device=self.device
            )
            return features[self.layer]

        return view("a"), view("b"), index
