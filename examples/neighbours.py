"""Nearest neighbours before and after training, in one picture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from flatclr.data import ResidentImages
from flatclr.models import Normalisation
from flatclr.plots import COLOURS, MUTED, new_figure

SHOWN = 5  # neighbours of an image
IMAGES_AT_ONCE = 500
SAME, OTHER = COLOURS[2], COLOURS[1]


@dataclass(frozen=True)
class Neighbours:
    """The training images nearest to each test image by the cosine of their features, nearest first.

    Args:
        title: of whose features they are.
        index: their numbers [N, k].
        same: whether they are of the test image's class, bool [N, k].
    """

    title: str
    index: Tensor
    same: Tensor

    @property
    def precision(self) -> float:
        """Share of all neighbours that are of the right class."""
        return self.same.float().mean().item()


@torch.no_grad()
def features(encoder: nn.Module, images: Tensor, normalisation: Normalisation) -> Tensor:
    """Of unit length, so that their products are cosines."""
    parts = [encoder(normalisation(part)) for part in images.split(IMAGES_AT_ONCE)]
    return nn.functional.normalize(torch.cat(parts))


def nearest(
    title: str, encoder: nn.Module, train: ResidentImages, test: ResidentImages, normalisation: Normalisation
) -> Neighbours:
    """Of every test image among the training images."""
    assert train.labels is not None
    assert test.labels is not None
    encoder.eval()
    bank = features(encoder, train.images, normalisation)
    index = (features(encoder, test.images, normalisation) @ bank.T).topk(SHOWN).indices
    return Neighbours(title, index, train.labels[index] == test.labels[:, None])


def neighbours_figure(train: ResidentImages, test: ResidentImages, sides: list[Neighbours]) -> Figure:
    """The first test image of each class, and its neighbours by each encoder."""
    assert test.labels is not None
    labels = test.labels.tolist()
    shown = [labels.index(label) for label in sorted(set(labels))]
    columns = 1 + len(sides) * (1 + SHOWN)  # a gap before each side
    figure = new_figure(0.62 * columns, 0.72 * len(shown) + 0.6)
    grid = figure.subplots(len(shown), columns, squeeze=False)
    for row, number in enumerate(shown):
        for axes in grid[row]:
            axes.axis("off")
        _picture(grid[row][0], test.images[number], None)
        grid[row][0].set_title(test.classes[labels[number]], fontsize=7, fontweight="normal", pad=2)
        for side, found in enumerate(sides):
            first = 2 + side * (1 + SHOWN)
            for place in range(SHOWN):
                colour = SAME if found.same[number, place] else OTHER
                _picture(grid[row][first + place], train.images[found.index[number, place]], colour)
    told = "; ".join(f"{found.title} {found.precision:.1%}" for found in sides)
    figure.suptitle(
        f"The {SHOWN} nearest training images: green ones are of the right class, orange ones of another\n"
        f"Of the right class over all test images: {told}",
        fontsize=9,
    )
    return figure


def _picture(axes: Axes, image_CSS: Tensor, frame: str | None) -> None:
    """An image, in a frame of a colour."""
    axes.axis("on")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.imshow(image_CSS.permute(1, 2, 0).numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for spine in axes.spines.values():
        spine.set(visible=True, color=frame or MUTED, linewidth=2 if frame else 0.5)
