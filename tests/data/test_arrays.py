"""Images brought to one size, if they fit into memory."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatclr.data.arrays import image_tensor
from flatclr.data.opening import open_dataset
from tests.support.images import pixels, write_png
from tests.support.sources import all_images

pytestmark = pytest.mark.usefixtures("_nowhere_else")


def test_an_oblong_image_keeps_its_centre() -> None:
    image = pixels(2, 6, 9)
    assert image_tensor(image).numpy().tolist() == image[:, None, :, 1:7].tolist()
    assert image_tensor(image.transpose(0, 2, 1)).numpy().tolist() == image.transpose(0, 2, 1)[:, None, 1:7].tolist()


def test_resizing_keeps_a_ramp_a_ramp() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 5, dtype=np.uint8), (2, 48, 48))
    small = image_tensor(ramp, image_size=16)
    assert small.shape == (2, 1, 16, 16)
    assert small[0, 0, 5].tolist()[1:-1] == [5 + 15 * i for i in range(1, 15)]  # the mean of three steps of 5


def test_arrays_and_files_are_resized_alike(tmp_path: Path) -> None:
    smooth = np.array(Image.fromarray(pixels(6, 9, 3)).resize((45, 30), Image.Resampling.BICUBIC))
    write_png(tmp_path / "a" / "1.png", smooth)
    write_png(tmp_path / "a" / "2.png", smooth)
    from_files = all_images(open_dataset(tmp_path / "a", image_size=12).train)
    from_array = image_tensor(smooth[None], image_size=12)
    assert (from_files[0].int() - from_array[0].int()).abs().max() <= 1


def test_images_too_large_for_the_memory_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    too_large = (
        r"must fit into memory, got {} images of 1 x {side} x {side} that need [\d,]+ GiB of [\d,]+; .*smaller image"
    )
    with pytest.raises(ValueError, match=too_large.format("10000", side=100_000)):
        open_dataset(None, image_size=100_000)
    with pytest.raises(ValueError, match=too_large.format("2", side=10**12)):
        image_tensor(pixels(2, 8, 8), image_size=10**12)
    for i in range(3):
        write_png(tmp_path / "a" / f"{i}.png", pixels(8, 8))
    with pytest.raises(ValueError, match=too_large.format("2", side=10**7)):
        open_dataset(tmp_path / "a", image_size=10**7)
