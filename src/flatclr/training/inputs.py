"""From a batch of data to the two views of each sample, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flatclr.data.loading import Batch, seeded_generator
from flatclr.data.views import ViewConfig, apply_views, draw_views
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
        height, width = images.shape[-2:]
        own = self.ranks.own_rows(len(images))
        drawn = [
            draw_views(
                self.views,
                self.batch_size,
                height=height,
                width=width,
                generator=seeded_generator(self.seed, "view", name, key),
                device=images.device,
            ).rows(own)
            for name in ("a", "b")
        ]

        def of(rows: slice) -> tuple[Tensor, Tensor]:
            view_a, view_b = (
                apply_views(images[rows], parameters.rows(rows), self.views, size=self.image_size)
                for parameters in drawn
            )
            return view_a, view_b

        return of


@dataclass(frozen=True)
class PairedInputs:
    """The two sides of paired data, as they are."""

    def draw(self, batch: Batch, key: int | str) -> Views:
        x, y = batch
        return lambda rows: (x[rows], y[rows])
