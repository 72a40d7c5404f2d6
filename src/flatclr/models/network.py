"""Encoder, projection head and normalisation put together, in one place for training, evaluation and export.

images --normalisation--> views --encoder--> features --head--> embeddings
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from flatclr.data.views import normalize
from flatclr.data.views.checks import checked_channel_values
from flatclr.models.statistics import frozen_running_statistics
from flatclr.runs import SIDES


@dataclass(frozen=True)
class Normalisation:
    """What was subtracted from and divided out of every channel of the images an encoder saw.

    (image - mean) / std, for images in [0, 1]

    Args:
        mean: one value per channel, or one for all channels.
        std: the deviations that go with `mean`.

    >>> Normalisation((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        checked = {"mean": checked_channel_values("mean", self.mean), "std": checked_channel_values("std", self.std)}
        for name, values in checked.items():
            object.__setattr__(self, name, values)

    def __call__(self, images: Tensor) -> Tensor:
        """Images as the encoder takes them.

        Args:
            images: [N, C, H, W], uint8 or floating point in [0, 1].

        Returns:
            Floating point [N, C, H, W].
        """
        channels = len(self.mean)
        if images.dim() != 4 or channels not in (1, images.shape[1]):
            raise ValueError(
                f"images must have shape [N, {channels}, H, W], got {list(images.shape)}; "
                "pass a batch of images with the channels of the training images."
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"images must be uint8, or floating point in [0, 1], got {images.dtype}; convert them.")
        levels = images.float() / 255 if images.dtype == torch.uint8 else images
        return normalize(levels, self.mean, self.std)


def normalisation_of(encoder: nn.Module) -> Normalisation | None:
    """What the images of an encoder need; None where it says nothing, and images stay in [0, 1]."""
    found = getattr(encoder, "normalisation", None)
    return found if isinstance(found, Normalisation) else None


class NormalisedEncoder(nn.Module):
    """An encoder with its normalisation in front: images in [0, 1] to features.

    Args:
        encoder: any module from normalised images to features; its own `.normalisation` is used.

    >>> encoder = torch.nn.Flatten()
    >>> encoder.normalisation = Normalisation((0.5,), (0.25,))
    >>> NormalisedEncoder(encoder)(torch.ones(1, 1, 1, 2))
    tensor([[2., 2.]])
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.normalisation = encoder, normalisation_of(encoder)

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, d] of images [N, C, S, S] in [0, 1]."""
        features: Tensor = self.encoder(images if self.normalisation is None else self.normalisation(images))
        return features


class Network(nn.Module):
    """Encoder and projection head; views of one size pass the encoder in one batch, and all pass the head together.

    Where views are of several sizes, batch normalisation of the encoder goes by each size on its own in training, and
    its running statistics are those of the first.

    Layers are named `encoder.NAME` and `head.NAME`, in a checkpoint as in an evaluation of layers.

    Args:
        encoder: from normalised images to features [N, d].
        head: from features to embeddings, what `build_head` makes or any module.

    >>> network = Network(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> z_a, z_b = network(torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2))
    >>> z_a.shape
    torch.Size([3, 2])
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Embeddings of every view, in the order of the views; those of one size stand side by side."""
        first, *others = [list(group) for _, group in groupby(views, key=lambda view: view.shape[1:])]
        features: Tensor = self.encoder(torch.cat(first))
        if others:
            with frozen_running_statistics(self.encoder):
                features = torch.cat([features, *(self.encoder(torch.cat(group)) for group in others)])
        embeddings: Tensor = self.head(features)
        return embeddings.chunk(len(views))

    @property
    def normalisation(self) -> Normalisation | None:
        """What turns images in [0, 1] into views; None where they stay as they are."""
        return normalisation_of(self.encoder)

    @property
    def encoders(self) -> dict[str, nn.Module]:
        """What is saved of it, by name."""
        return {"encoder": self.encoder}

    @property
    def last_layer(self) -> nn.Linear:
        """The last linear layer of the head."""
        return [module for module in self.head.modules() if isinstance(module, nn.Linear)][-1]


class TwoTowers(nn.Module):
    """A network for each side of paired data.

    Args:
        tower_x, tower_y: the networks; their embeddings have the same width.

    >>> towers = TwoTowers(*(Network(torch.nn.Identity(), torch.nn.Linear(d, 2)) for d in (3, 5)))
    >>> z_x, z_y = towers(torch.zeros(4, 3), torch.zeros(4, 5))
    >>> z_x.shape == z_y.shape
    True
    """

    def __init__(self, tower_x: Network, tower_y: Network) -> None:
        super().__init__()
        self.tower_x, self.tower_y = tower_x, tower_y

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of both sides."""
        (z_x,), (z_y,) = self.tower_x(x), self.tower_y(y)
        return z_x, z_y

    @property
    def encoders(self) -> dict[str, nn.Module]:
        """What is saved of it, by name."""
        return dict(zip(SIDES, (self.tower_x.encoder, self.tower_y.encoder), strict=True))

    @property
    def last_layer(self) -> nn.Linear:
        """The last linear layer of the first side's head."""
        return self.tower_x.last_layer


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        compiled = module._modules.get("_orig_mod")  # by name: to import its type takes seconds
        if compiled is not None:
            module = compiled
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def device_of(module: nn.Module) -> torch.device:
    """Of its parameters; the CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def features_of(encoder: nn.Module, example: Tensor) -> int:
    """Width of an encoder's output; one that does not say it is asked with an example batch."""
    stated = getattr(encoder, "features", None)
    if isinstance(stated, int):
        return stated
    was_training = encoder.training
    with torch.no_grad():
        output = encoder.eval()(example.to(device_of(encoder)))
    encoder.train(was_training)
    if not isinstance(output, Tensor) or output.dim() != 2:
        got = f"shape {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"the encoder must return features [N, d], got {got}; pool and flatten its last layer.")
    return output.shape[1]
