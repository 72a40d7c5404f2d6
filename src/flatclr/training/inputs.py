"""From a batch of data to the two views of each sample, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from flatclr.data.loading import Batch, seeded_generator
from flatclr.data.views import ViewConfig, ViewParameters, draw_uniforms, gathered_views, views_from
from flatclr.distributed import Ranks

Views = Callable[[slice], tuple[Tensor, Tensor]]


class Inputs(Protocol):
    def draw(self, batch: Batch, key: int | str) -> Views:
        """A function from rows of this rank's batch to their two views; the same key draws the same views."""


@dataclass(frozen=True)
class ImageViews:
    """Two augmentations of every image, drawn for the global batch, so that ranks and micro-batches do not matter."""

    views: ViewConfig
    view_size: int
    batch_size: int  # global
    seed: int
    ranks: Ranks
    dtype: torch.dtype = torch.float32  # of the views

    def draw(self, batch: Batch, key: int | str) -> Views:
        (images,) = batch
        return self.apply(images, None, self.parameters(images, key).to(images.device))

    def parameters(self, images: Tensor, *keys: int | str) -> ViewParameters:
        """What happens to each of this rank's images in view a, then in view b, on the host; of one key after another.

        Several at once take fewer operations: seventy for the first key, four for each one more.
        """
        height, width = images.shape[-2:]
        own = self.ranks.own_rows(len(images))
        generators = (seeded_generator(self.seed, "view", name, key) for key in keys for name in ("a", "b"))
        uniforms = torch.cat([draw_uniforms(self.batch_size, generator)[own] for generator in generators])
        return views_from(self.views, uniforms, height=height, width=width)

    def apply(self, images: Tensor, index: Tensor | None, parameters: ViewParameters) -> Views:
        """The views of `images[index]`, or of `images`, that `parameters` describe."""
        values_VnP = parameters.values_NP.unflatten(0, (2, -1))

        def of(rows: slice) -> tuple[Tensor, Tensor]:
            # both views in one pass: small batches are bound by the number of launches
            both = replace(parameters, values_NP=values_VnP[:, rows].flatten(0, 1))
            own_images, own_index = (images[rows], None) if index is None else (images, index[rows])
            view_a, view_b = gathered_views(
                own_images, own_index, both, self.views, size=self.view_size, dtype=self.dtype
            ).chunk(2)
            return view_a, view_b

        return of


@dataclass(frozen=True)
class PairedInputs:
    """The two sides of paired data, as they are."""

    def draw(self, batch: Batch, key: int | str) -> Views:
        x, y = batch
        return lambda rows: (x[rows], y[rows])
