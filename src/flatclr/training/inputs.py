"""From a batch of data to the two views of each sample, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flatclr.data.loading import Batch, seeded_generator
from flatclr.data.views import ViewConfig, ViewParameters, apply_views, draw_views
from flatclr.distributed import Ranks

Views = Callable[[slice], tuple[Tensor, Tensor]]


class Inputs(Protocol):
    def draw(self, batch: Batch, key: int | str) -> Views:
        """A function from rows of this rank's batch to their two views; the same key draws the same views."""


@dataclass(frozen=True)
class ImageViews:
    """Two augmentations of every image, drawn for the global batch, so that ranks and micro-batches do not matter."""

    views: ViewConfig
    image_size: int
    batch_size: int  # global
    seed: int
    ranks: Ranks

    def draw(self, batch: Batch, key: int | str) -> Views:
        (images,) = batch
        return self.apply(images, [drawn.to(images.device) for drawn in self.parameters(images, key)])

    def parameters(self, images: Tensor, key: int | str) -> list[ViewParameters]:
        """What happens to each of this rank's images in view a and in view b, on the host."""
        height, width = images.shape[-2:]
        own = self.ranks.own_rows(len(images))
        generators = (seeded_generator(self.seed, "view", name, key) for name in ("a", "b"))
        return [
            draw_views(self.views, self.batch_size, height=height, width=width, generator=generator).rows(own)
            for generator in generators
        ]

    def apply(self, images: Tensor, parameters: Sequence[ViewParameters]) -> Views:
        def of(rows: slice) -> tuple[Tensor, Tensor]:
            # both views in one pass: small batches are bound by the number of launches
            both = ViewParameters(
                torch.cat([drawn.values_NP[rows] for drawn in parameters]), parameters[0].height, parameters[0].width
            )
            views = apply_views(images[rows].repeat(2, 1, 1, 1), both, self.views, size=self.image_size)
            if views.is_cuda:  # convolutions in bf16 read channels last
                views = views.contiguous(memory_format=torch.channels_last)
            view_a, view_b = views.chunk(2)
            return view_a, view_b

        return of


@dataclass(frozen=True)
class PairedInputs:
    """The two sides of paired data, as they are."""

    def draw(self, batch: Batch, key: int | str) -> Views:
        x, y = batch
        return lambda rows: (x[rows], y[rows])
