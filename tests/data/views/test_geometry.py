"""Crops are Pillow's and torch's, flips are mirrors."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from flatclr.data import views
from tests.support.views import BOXES, photo, unit


# crops
def pillow_crop(image: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    top, left, height, width = box.tolist()
    edges = (left, top, left + width, top + height)
    planes = [Image.fromarray(plane.float().numpy()) for plane in image]  # mode F: no rounding to 8 bits
    shrunk = [plane.resize(size[::-1], Image.Resampling.BILINEAR, box=edges) for plane in planes]
    return torch.stack([torch.from_numpy(np.array(plane)) for plane in shrunk]).double()


@pytest.mark.parametrize("size", [(12, 10), (5, 4), (20, 24), (3, 17), (1, 1)])
def test_resized_crop_is_pillows_bilinear_resize_of_the_box(size: tuple[int, int]) -> None:
    images = unit(photo())
    got = views.resized_crop(images, BOXES, size)
    for image, box, view in zip(images, BOXES, got, strict=True):
        torch.testing.assert_close(view, pillow_crop(image, box, size), atol=1e-6, rtol=0)


def test_an_enlarged_crop_is_bilinear_interpolation_at_half_pixel_centres() -> None:
    image, (top, left, height, width), size = unit(photo(1, 1))[0, 0], (2.3, 1.1, 5.5, 4.25), 8
    expected = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            y, x = top + (i + 0.5) * height / size - 0.5, left + (j + 0.5) * width / size - 0.5
            y0, x0 = math.floor(y), math.floor(x)
            for dy, wy in ((0, y0 + 1 - y), (1, y - y0)):
                for dx, wx in ((0, x0 + 1 - x), (1, x - x0)):
                    pixel = image[min(max(y0 + dy, 0), 11), min(max(x0 + dx, 0), 9)].item()
                    expected[i, j] += wy * wx * pixel
    boxes = torch.tensor([[top, left, height, width]], dtype=torch.float64)
    got = views.resized_crop(image[None, None], boxes, size)[0, 0]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [(7, 5), (12, 10), (30, 21)])
def test_a_box_of_the_whole_image_is_torchs_antialiased_interpolation(size: tuple[int, int]) -> None:
    images = unit(photo())
    whole = torch.tensor([[0.0, 0.0, 12.0, 10.0]] * 3)
    expected = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    torch.testing.assert_close(views.resized_crop(images, whole, size), expected, atol=1e-9, rtol=0)


def test_a_flipped_crop_is_the_crop_mirrored() -> None:
    images = unit(photo())
    flags = torch.tensor([True, False, True])
    plain = views.resized_crop(images, BOXES, 9)
    fused = views.resized_crop(images, BOXES, 9, flip_N=flags)
    torch.testing.assert_close(fused, views.horizontal_flip(plain, flags), atol=1e-12, rtol=0)


def test_horizontal_flip_mirrors_the_flagged_images_only() -> None:
    images = photo().float()
    got = views.horizontal_flip(images, torch.tensor([True, False, True]))
    np.testing.assert_array_equal(got[0].numpy(), images[0].numpy()[:, :, ::-1])
    np.testing.assert_array_equal(got[1].numpy(), images[1].numpy())
    np.testing.assert_array_equal(got[2].numpy(), images[2].numpy()[:, :, ::-1])
