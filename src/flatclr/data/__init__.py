"""From stored images to batches of augmented views.

`open_dataset` opens what a user names: files, folders, and the datasets whose names are in `DATASETS`. A `Dataset` has
sources of images, in memory (`ResidentImages`) or in files (`FileImages`), of pairs (`PairedArrays`) or of `Sentences`.
`BatchPlan` says which samples make up a step, `Loader` brings them to the device. `ViewConfig` says which views of an
image there are, `draw_views` draws their parameters, `apply_views` and `gathered_views` make them; the single
operations are in `flatclr.data.views`.

>>> source = flatclr.data.open_dataset().train
>>> config = flatclr.data.views_for(source.channels)
>>> drawn = flatclr.data.draw_views(config, 4, height=28, width=28, generator=torch.Generator().manual_seed(0))
>>> flatclr.data.apply_views(source.batch(torch.arange(4)), drawn, config).shape
torch.Size([4, 1, 28, 28])
"""

from flatclr.data.halves import halved, split_in_halves
from flatclr.data.loading import BatchPlan, Loader, seeded_generator
from flatclr.data.opening import DATASETS, dataset_from, fashion_mnist_small, open_dataset
from flatclr.data.positives import ClassPositives
from flatclr.data.progress import Progress
from flatclr.data.sources import (
    Dataset,
    FileImages,
    ImageSource,
    ItemImages,
    PairedArrays,
    ReadyViews,
    ResidentImages,
    Sentences,
    SkippedImagesWarning,
)
from flatclr.data.views import (
    ViewConfig,
    ViewParameters,
    apply_views,
    crops_and_flips,
    draw_views,
    gathered_views,
    grayscale_views,
    no_augmentation,
    simclr_cifar_views,
    views_for,
)
from flatclr.data.words import token_ids

__all__ = [
    "DATASETS",
    "BatchPlan",
    "ClassPositives",
    "Dataset",
    "FileImages",
    "ImageSource",
    "ItemImages",
    "Loader",
    "PairedArrays",
    "Progress",
    "ReadyViews",
    "ResidentImages",
    "Sentences",
    "SkippedImagesWarning",
    "ViewConfig",
    "ViewParameters",
    "apply_views",
    "crops_and_flips",
    "dataset_from",
    "draw_views",
    "fashion_mnist_small",
    "gathered_views",
    "grayscale_views",
    "halved",
    "no_augmentation",
    "open_dataset",
    "seeded_generator",
    "simclr_cifar_views",
    "split_in_halves",
    "token_ids",
    "views_for",
]
