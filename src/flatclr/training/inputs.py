"""From a batch of data to the views of each sample, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from flatclr.data.loading import Batch, seeded_generator
from flatclr.data.views import ViewConfig, ViewParameters, draw_uniforms, gathered_views, views_from
from flatclr.distributed import Ranks
from flatclr.threads import threads
from flatclr.training.view_groups import Groups, views_in

Views = Callable[[slice], tuple[Tensor, ...]]


class Inputs(Protocol):
    @property
    def views_per_sample(self) -> int: ...

    def draw(self, batch: Batch, key: int | str) -> Views:
        """A function from rows of this rank's batch to their views; the same key draws the same views."""


@dataclass(frozen=True)
class ImageViews:
    """Augmentations of every image, drawn for the global batch, so that ranks and micro-batches do not matter.

    Shape suffixes: V views of an image, n images of this rank, P parameters of a view.
    """

    views: ViewConfig
    groups: Groups  # of views that are of one size, with their sizes
    batch_size: int  # global
    seed: int
    ranks: Ranks
    dtype: torch.dtype = torch.float32  # of the views

    @property
    def views_per_sample(self) -> int:
        return views_in(self.groups)

    def draw(self, batch: Batch, key: int | str) -> Views:
        (images,) = batch
        return self.apply(images, None, self.parameters(images, key).to(images.device))

    def parameters(self, images: Tensor, *keys: int | str) -> ViewParameters:
        """What happens to each of this rank's images in the first view, in the next, ...; of one key after another.

        On the host, by one thread: another program that keeps the cores busy does not hold up a GPU. Several at once
        take fewer operations: seventy for the first key, two a view for each one more.
        """
        height, width = images.shape[-2:]
        own = self.ranks.own_rows(len(images))
        names = [name_of(view) for view in range(self.views_per_sample)]
        generators = (seeded_generator(self.seed, "view", name, key) for key in keys for name in names)
        with threads(1):
            uniforms = torch.cat([draw_uniforms(self.batch_size, generator)[own] for generator in generators])
            return views_from(self.views, uniforms, height=height, width=width)

    def apply(self, images: Tensor, index: Tensor | None, parameters: ViewParameters) -> Views:
        """The views of `images[index]`, or of `images`, that `parameters` describe."""
        values_VnP = parameters.values_NP.unflatten(0, (self.views_per_sample, -1))
        by_group = values_VnP.split([group.count for group in self.groups])

        def of(rows: slice) -> tuple[Tensor, ...]:
            own_images, own_index = (images[rows], None) if index is None else (images, index[rows])
            views: list[Tensor] = []
            for group, values in zip(self.groups, by_group, strict=True):
                # a size in one pass: small batches are bound by the number of launches
                drawn = replace(parameters, values_NP=values[:, rows].flatten(0, 1))
                made = gathered_views(own_images, own_index, drawn, self.views, size=group.size, dtype=self.dtype)
                views += made.chunk(group.count)
            return tuple(views)

        return of


@dataclass(frozen=True)
class ClassPairViews(ImageViews):
    """Views of an image and of another of its class in turns, beginning with the image itself."""

    def draw(self, batch: Batch, key: int | str) -> Views:
        drawn = self.parameters(batch[0], key).to(batch[0].device)
        values_VnP = drawn.values_NP.unflatten(0, (self.views_per_sample, -1))
        sizes = [group.size for group in self.groups for _ in range(group.count)]

        def of(rows: slice) -> tuple[Tensor, ...]:
            views = []
            for view, (values_nP, size) in enumerate(zip(values_VnP, sizes, strict=True)):
                images, parameters = batch[view % 2][rows], replace(drawn, values_NP=values_nP[rows])
                views.append(gathered_views(images, None, parameters, self.views, size=size, dtype=self.dtype))
            return tuple(views)

        return of


def name_of(view: int) -> str:
    """Under which a view's parameters are drawn.

    >>> [name_of(view) for view in range(4)]
    ['a', 'b', '2', '3']
    """
    return "ab"[view] if view < 2 else str(view)


@dataclass(frozen=True)
class GivenViews:
    """Views that were made before, as they are."""

    views_per_sample: int

    def draw(self, batch: Batch, key: int | str) -> Views:
        return lambda rows: tuple(view[rows] for view in batch)


@dataclass(frozen=True)
class PairedInputs:
    """The two sides of paired data, as they are."""

    views_per_sample = 2

    def draw(self, batch: Batch, key: int | str) -> Views:
        x, y = batch
        return lambda rows: (x[rows], y[rows])
