"""What happens to each sample of a batch, as one tensor.

Shape suffixes: N samples, P parameters per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ViewParameters:
    """What happens to each sample: one row per sample, one column per parameter.

    One tensor, so that a step moves it in one copy, and a captured graph is fed by `static.values_NP.copy_(...)`.
    A sample an operation leaves alone has its neutral value: factor 1, hue 0, sigma 0, flag 0.

    Args:
        values_NP: float32; columns as in `COLUMNS`.
        height: of the images the boxes were drawn for.
        width: likewise.

    >>> from flatclr.data import ViewConfig, draw_views
    >>> drawn = draw_views(ViewConfig(), 6, height=8, width=8, generator=torch.Generator().manual_seed(0))
    >>> len(drawn), drawn.values_NP.shape, drawn.flip.shape
    (6, torch.Size([6, 12]), torch.Size([6]))
    """

    values_NP: Tensor
    height: int
    width: int

    COLUMNS = (
        *("top", "left", "height", "width", "flip", "brightness", "contrast", "saturation", "hue"),
        *("grayscale", "blur_sigma", "solarize"),
    )

    def __len__(self) -> int:
        return len(self.values_NP)

    @property
    def boxes(self) -> Tensor:
        """(top, left, height, width) of each crop in pixels of the image, [N, 4]; not rounded."""
        return self.values_NP[:, :4]

    @property
    def flip(self) -> Tensor:
        """Whether each sample is mirrored, bool [N]."""
        return self._column("flip") != 0

    @property
    def brightness(self) -> Tensor:
        """Factor of each sample, [N]."""
        return self._column("brightness")

    @property
    def contrast(self) -> Tensor:
        """Factor of each sample, [N]."""
        return self._column("contrast")

    @property
    def saturation(self) -> Tensor:
        """Factor of each sample, [N]."""
        return self._column("saturation")

    @property
    def hue(self) -> Tensor:
        """Shift of each sample in turns of the colour wheel, [N]."""
        return self._column("hue")

    @property
    def grayscale(self) -> Tensor:
        """Whether each sample loses its colours, bool [N]."""
        return self._column("grayscale") != 0

    @property
    def blur_sigma(self) -> Tensor:
        """Of each sample in pixels of the view, [N]; 0 for no blur."""
        return self._column("blur_sigma")

    @property
    def solarize(self) -> Tensor:
        """Whether each sample has its bright pixels inverted, bool [N]."""
        return self._column("solarize") != 0

    def rows(self, index: slice | Sequence[int] | Tensor) -> ViewParameters:
        """The parameters of some samples, say this rank's share of the global batch.

        Args:
            index: a slice, or row numbers.

        Returns:
            their parameters, in the order asked for.

        >>> from flatclr.data import ViewConfig, draw_views
        >>> drawn = draw_views(ViewConfig(), 6, height=8, width=8, generator=torch.Generator().manual_seed(0))
        >>> len(drawn.rows(slice(2, 4))), len(drawn.rows([5, 0, 5]))
        (2, 3)
        """
        if not isinstance(index, slice | Sequence | Tensor) or (isinstance(index, Tensor) and index.dim() != 1):
            raise TypeError(f"index must be a slice or a list of row numbers, got {index!r}; pass [i] for one row.")
        return ViewParameters(self.values_NP[index], self.height, self.width)

    def to(self, device: torch.device | str) -> ViewParameters:
        """The same on `device`; a host copy to a GPU goes through pinned memory, so that nothing waits."""
        target = torch.device(device)
        values = self.values_NP
        if values.device.type == "cpu" and target.type == "cuda":
            values = values.contiguous().pin_memory()
        return ViewParameters(values.to(target, non_blocking=True), self.height, self.width)

    def _column(self, name: str) -> Tensor:
        return self.values_NP[:, self.COLUMNS.index(name)]


def require_parameters(parameters: Any, images: Tensor, samples: int, *, in_turn: bool = False) -> None:
    """Refuse parameters that were not drawn for these images; `in_turn`, each image may have several rows."""
    if not isinstance(parameters, ViewParameters):
        raise TypeError(f"parameters must be ViewParameters, got {type(parameters).__name__}; call draw_views.")
    if len(parameters) % samples if in_turn else len(parameters) != samples:
        rows = "a multiple of one row per image" if in_turn else "one row per image"
        raise ValueError(
            f"parameters must have {rows}, {samples}, got {len(parameters)}; "
            "take this rank's with parameters.rows(...)."
        )
    if (parameters.height, parameters.width) != images.shape[-2:]:
        raise ValueError(
            f"parameters must be drawn for images of {images.shape[-2]} x {images.shape[-1]}, "
            f"got {parameters.height} x {parameters.width}; pass height and width of the stored images to draw_views."
        )
    if parameters.values_NP.device != images.device:
        raise ValueError(
            f"parameters must be on the images' device {images.device}, got {parameters.values_NP.device}; "
            "call parameters.to(device)."
        )
