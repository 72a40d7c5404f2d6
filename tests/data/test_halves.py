"""Halves of images are pairs that keep their shape and their labels."""

import numpy as np
import pytest
import torch

from flatclr.data import Dataset, PairedArrays, ResidentImages, halved, split_in_halves
from tests.support.images import pixels


@pytest.mark.parametrize(
    ("how", "first", "second"), [("top-bottom", np.s_[:3], np.s_[4:]), ("left-right", np.s_[:, :3], np.s_[:, 4:])]
)
def test_halves_are_the_pixels_on_either_side_of_the_middle(how: str, first: slice, second: slice) -> None:
    image = torch.arange(49).view(1, 1, 7, 7)
    one, other = split_in_halves(image, how)
    assert torch.equal(one[0, 0], image[0, 0][first])
    assert torch.equal(other[0, 0], image[0, 0][second])


def test_halved_images_are_not_cropped_and_keep_labels_through_subsets() -> None:
    source = ResidentImages.of(pixels(6, 28, 28), list("abcabc"))
    pairs = halved(Dataset("digits", source, None)).train
    assert isinstance(pairs, PairedArrays)
    assert pairs.x.shape == pairs.y.shape == (6, 1, 14, 28)
    torch.testing.assert_close(torch.cat([pairs.x, pairs.y], dim=2), source.images.float() / 255)
    part = pairs.subset(torch.tensor([4, 0]), "part")
    assert part.labels is not None
    assert [part.classes[label] for label in part.labels] == ["b", "a"]


def test_what_has_no_halves_is_refused() -> None:
    rows = Dataset("rows", PairedArrays(torch.zeros(4, 2), torch.zeros(4, 2)), None)
    with pytest.raises(ValueError, match="halves must be of images, got pairs"):
        halved(rows)
    with pytest.raises(ValueError, match=r"halves must be of images of 2 pixels or more"):
        halved(Dataset("dots", ResidentImages.of(pixels(4, 1, 1)), None))
    with pytest.raises(ValueError, match="how must be one of 'top-bottom', 'left-right', got 'diagonal'"):
        split_in_halves(torch.zeros(1, 1, 2, 2), "diagonal")
