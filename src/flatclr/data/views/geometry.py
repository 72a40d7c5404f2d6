"""Crops and flips.

Shape suffixes: N samples, S output pixels, H rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flatclr.data.views.checks import checked_sides, flags_per_sample, require_images, shape_of
from flatclr.data.views.separable import separable


def resized_crop(
    images: Tensor, boxes_N4: Tensor, size: int | tuple[int, int], *, flip_N: Tensor | None = None
) -> Tensor:
    """Crop each image to its box (top, left, height, width; pixels, fractions allowed), resize, and flip where told.

    Bilinear with antialiasing, pixel centres at halves: Pillow's `resize(size, BILINEAR, box=box)`. When the box is
    enlarged this is plain bilinear interpolation (`grid_sample` with align_corners=False and border padding); when
    it is shrunk the triangle widens with it. Pixels just outside the box contribute to its border as they do there.
    Boxes must lie within the image; their values are not looked at, as that would wait for the device.

    Args:
        images: floating point, [N, C, H, W].
        boxes_N4: (top, left, height, width) of each image.
        size: of the result, a side or (height, width).
        flip_N: bool, one per image: which of them are mirrored; None for none.

    Returns:
        the crops, [N, C, *size], in the type of the images.

    >>> image = torch.arange(4.0).view(1, 1, 1, 4)
    >>> resized_crop(image, torch.tensor([[0.0, 1.0, 1.0, 2.0]]), (1, 2))
    tensor([[[[1., 2.]]]])
    """
    require_images(images)
    if not isinstance(boxes_N4, Tensor) or boxes_N4.shape != (len(images), 4):
        raise ValueError(
            f"boxes must have shape [{len(images)}, 4] for these images, got {shape_of(boxes_N4)}; "
            "pass (top, left, height, width) per image."
        )
    height, width = checked_sides(size)
    top, left, box_height, box_width = boxes_N4.to(images.dtype).unbind(1)
    steps = box_width / width
    if flip_N is not None:
        steps = torch.where(flags_per_sample("flip", flip_N, images).view(-1), -steps, steps)
    rows = _triangle_weights(top + box_height / 2, box_height / height, images.shape[-2], height)
    columns = _triangle_weights(left + box_width / 2, steps, images.shape[-1], width)
    return separable(images, rows, columns)


def _triangle_weights(middle_N: Tensor, step_N: Tensor, pixels: int, size: int) -> Tensor:
    """Weights [N, size, pixels] of samples `step` apart around `middle`; a negative step reads backwards."""
    grid = torch.arange(max(pixels, size), device=middle_N.device, dtype=middle_N.dtype)
    # whole and half steps from the middle are exact, so that a box of the whole image gives back the image
    centres_NS = torch.addcmul(middle_N[:, None], step_N[:, None], grid[:size] - (size - 1) / 2)
    support_N = step_N.abs().clamp_min(1)
    distances_NSH = (centres_NS[:, :, None] - (grid[:pixels] + 0.5)).abs_()
    weights_NSH = distances_NSH.div_(support_N[:, None, None]).neg_().add_(1).clamp_min_(0)
    return weights_NSH.div_(weights_NSH.sum(-1, keepdim=True))


def horizontal_flip(images: Tensor, flags_N: Tensor) -> Tensor:
    """Mirror the images whose flag is set.

    Args:
        images: floating point, [N, C, H, W].
        flags_N: bool, one per image.

    Returns:
        the images, in their shape and type.

    >>> horizontal_flip(torch.arange(4.0).view(2, 1, 1, 2), torch.tensor([True, False])).flatten()
    tensor([1., 0., 2., 3.])
    """
    require_images(images)
    return torch.where(flags_per_sample("flip", flags_N, images), images.flip(-1), images)
