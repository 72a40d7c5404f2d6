"""Operations of a view: blur and normalisation against references, and what holds for every operation."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from flatclr.data import views
from tests.support.views import OPERATIONS, photo, unit


@pytest.mark.parametrize(("height", "width"), [(12, 10), (9, 9)])
@pytest.mark.parametrize("kernel_size", [1, 3, 7, 17])
def test_gaussian_blur_is_scipys_with_mirrored_borders(height: int, width: int, kernel_size: int) -> None:
    images, sigmas = unit(photo(4, height=height, width=width)), (0.1, 0.8, 2.0, 5.0)
    got = views.gaussian_blur(images, torch.tensor(sigmas, dtype=torch.float64), kernel_size)
    for image, sigma, view in zip(images, sigmas, got, strict=True):
        for plane, blurred in zip(image, view, strict=True):
            expected = ndimage.gaussian_filter(plane.numpy(), sigma, mode="mirror", radius=kernel_size // 2)
            np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_subtracts_the_mean_and_divides_by_the_std_of_each_channel(channels: int) -> None:
    images = unit(photo(2, channels))
    mean, std = (0.5, 0.2, 0.1)[:channels], (0.5, 0.3, 0.7)[:channels]
    got = views.normalize(images, mean, std)
    for channel in range(channels):
        expected = (images[:, channel].numpy() - mean[channel]) / std[channel]
        np.testing.assert_allclose(got[:, channel].numpy(), expected, atol=1e-12)
    torch.testing.assert_close(views.normalize(images, (0.5,), (0.25,)), (images - 0.5) * 4)


every_operation = pytest.mark.parametrize("name", OPERATIONS)


@every_operation
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_its_rows_done_one_by_one(name: str, channels: int) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo(3, channels)).float()
    together = operation(images, parameters)
    alone = torch.cat([operation(images[i : i + 1], parameters[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    if channels == 3 or name not in ("adjust_saturation", "adjust_hue", "to_grayscale"):
        shuffled = operation(images, parameters.roll(1, 0))
        assert all((together[i] - shuffled[i]).abs().max() > 0.01 for i in range(2))  # they do depend on it


@every_operation
@pytest.mark.parametrize("channels", [1, 3])
def test_the_neutral_parameter_leaves_the_image_alone(name: str, channels: int) -> None:
    operation, parameters, neutral = OPERATIONS[name]
    images = unit(photo(3, channels)).float()
    same = operation(images, torch.tensor([neutral] * 3, dtype=parameters.dtype))
    # only hue goes through another colour space and back
    torch.testing.assert_close(same, images, atol=1e-6 if name == "adjust_hue" else 0, rtol=0)


@every_operation
def test_operations_leave_their_input_as_it_was(name: str) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo()).float()
    before, parameters_before = images.clone(), parameters.clone()
    operation(images, parameters)
    assert torch.equal(images, before)
    assert torch.equal(parameters, parameters_before)
