"""From a config and a data source to what a run reads: images in memory or files, and their views."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from flatclr.data.progress import Progress
from flatclr.data.sources import AnySource, FileImages, ImageSource, ItemImages, PairedArrays, Sentences
from flatclr.data.views import ViewConfig, views_for
from flatclr.models.encoders import BOUND_TO_SQUARES
from flatclr.models.network import Normalisation
from flatclr.training.config import TrainConfig


def trainable(source: AnySource, config: TrainConfig, progress: Progress | None = None) -> AnySource:
    """Image files decoded into memory where they fit; the sides of paired data become images or rows."""
    if isinstance(source, Sentences):
        raise ValueError(
            f"data must be images or pairs to train on, got single sentences ({source.name}); pass a .txt file, whose "
            "adjacent sentences are pairs."
        )
    if isinstance(source, PairedArrays):
        return source.with_sides(*(_images_or_rows(side, config) for side in (source.x, source.y)))
    if isinstance(source, FileImages):
        if config.workers is not None:
            source.use_workers(config.workers)
        source.limit_bad(config.max_bad_images)
        return source.resident(int(config.resident_gib * 2**30), progress) or source
    if isinstance(source, ItemImages):
        return source.resident(int(config.resident_gib * 2**30), progress) or source
    return source


def _images_or_rows(side: Tensor, config: TrainConfig) -> Tensor:
    """Images stay images, square or not; encoders that take square ones only see the others as rows."""
    is_image = side.dim() == 4 and side.shape[1] in (1, 3)
    takes_it = config.encoder not in BOUND_TO_SQUARES or (is_image and side.shape[2] == side.shape[3])
    return side if is_image and takes_it else side.flatten(1)


def build_views(config: TrainConfig, source: ImageSource, normalisation: Normalisation | None = None) -> ViewConfig:
    """The views of the data; a normalisation is that of the weights a run starts from."""
    base = views_for(source.channels)
    if normalisation is not None:
        base = replace(base, mean=normalisation.mean, std=normalisation.std)
    unknown = set(config.views) - set(ViewConfig.__dataclass_fields__)
    if unknown:
        raise ValueError(
            f"views must name fields of ViewConfig, got {sorted(unknown)}; see flatclr.data.views.ViewConfig."
        )
    return ViewConfig(**{name: getattr(base, name) for name in ViewConfig.__dataclass_fields__} | dict(config.views))
