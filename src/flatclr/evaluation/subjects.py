"""What is evaluated: an encoder, and how what it reads is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.data.views import ViewConfig, apply_views, draw_views, no_augmentation, views_for
from flatclr.models.network import Network, Normalisation, device_of
from flatclr.models.untrained import untrained


@dataclass(frozen=True)
class Subject:
    """An encoder and what a protocol must know of it; `channels` and `image_size` are None where anything goes."""

    module: nn.Module
    name: str
    normalisation: Normalisation | None = None
    reads: str | None = None  # images or sentences; None where that is not known
    channels: int | None = None
    image_size: int | None = None
    views: Mapping[str, Any] | None = None  # what its training changed in the default views
    beta: float | None = None  # inverse temperature it was trained with, where it was fixed
    data: str | None = None  # what it was trained on
    data_dir: str | None = None  # where its training looked for named data
    labels: str | None = None  # whether sub-folders of its data are classes
    trained_on: str | None = None  # the name of the data in its description
    report: str = ""  # how weights from elsewhere fitted
    architecture: Any = None  # None: too little is known of it to keep its features on disk
    whole: nn.Module | None = None  # what it is a part of, where results of both stand together

    @property
    def bare(self) -> nn.Module:
        """Without a head."""
        return self.module.encoder if isinstance(self.module, Network) else self.module

    @property
    def trainable(self) -> bool:
        """Whether there are weights at all."""
        return any(True for _ in self.module.parameters())

    def plain(self) -> Callable[[Tensor], Tensor]:
        """Images as the encoder takes them, without augmentation; numbers of words as they are."""
        config = self.normalised(no_augmentation())
        return lambda given: given if given.dim() == 2 else view_of(given, config, torch.Generator())

    def augmented(self, channels: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Views as in its training, or the default ones."""
        changed = {name: value for name, value in (self.views or {}).items() if name not in ("mean", "std")}
        config = replace(self.normalised(views_for(channels)), **changed)
        return lambda images: view_of(images, config, generator)

    def normalised(self, views: ViewConfig) -> ViewConfig:
        """The same views, with this encoder's normalisation and no other."""
        own = self.normalisation
        return replace(views, mean=None if own is None else own.mean, std=None if own is None else own.std)

    def with_head(self, head: nn.Module | None) -> Subject:
        """The subject as a whole network, so that the layers of the head can be looked at; None adds nothing."""
        return self if head is None else replace(self, module=Network(self.module, head))

    def at_random(self, seed: int) -> Subject | None:
        """The same architecture with random weights; None where the module does not say how it is initialised."""
        module = untrained(self.module, seed)
        return None if module is None else replace(self, module=module, report="")

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """The module on a device for a while, then back where it was."""
        home = device_of(self.module) if self.trainable else device
        self.module.to(device)
        try:
            yield
        finally:
            self.module.to(home)


def view_of(images: Tensor, config: ViewConfig, generator: torch.Generator) -> Tensor:
    """One view of every image, at the images' size."""
    height, width = images.shape[-2:]
    drawn = draw_views(config, len(images), height=height, width=width, generator=generator, device=images.device)
    return apply_views(images, drawn, config)
