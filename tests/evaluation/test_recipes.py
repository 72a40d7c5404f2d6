"""The paper's way to fine-tune and to transfer, beside the package's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import flatclr
from flatclr.data import Dataset, ResidentImages
from flatclr.evaluation.finetune import RECIPES
from flatclr.evaluation.linear import AdamFit, fit_by_adam, fit_linear
from flatclr.evaluation.splits import AdaptedSource


def test_adam_without_a_penalty_comes_to_the_classifier_that_a_vanishing_penalty_has() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(200, generator=generator) > 0).long() + (x[:, 1] > 1).long()
    fitted = fit_by_adam(x, y, classes=3, how=AdamFit(epochs=1500, batch=200, rate=0.05)).logits(x).log_softmax(1)
    exact = fit_linear(x, y, classes=3, l2=1e-9).logits(x).log_softmax(1)
    torch.testing.assert_close(fitted, exact, rtol=0, atol=1e-2)


def test_the_papers_recipe_is_adam_for_a_hundred_epochs_from_a_new_layer() -> None:
    paper = RECIPES["paper"]
    assert (paper.optimizer, paper.weight_decay, paper.starts_from_probe) == ("adamw", 0.0, False)
    assert paper.steps(640) == 100 * 640 // paper.batch_size


def test_transfer_by_the_papers_recipe_has_rows_of_its_own() -> None:
    labels = torch.arange(40) % 2
    images = torch.randint(0, 90, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[labels == 1, :, :4] += 120
    parts = [ResidentImages(images, labels, name=name) for name in ("train", "test")]
    data = Dataset("stripes", parts[0], parts[1])
    encoder = flatclr.models.build_encoder("cnn", channels=1, image_size=8, width=4)
    found = flatclr.evaluate(
        encoder, data, ["finetune", "transfer"], transfer_data=data, recipe="paper", random_row=False, device="cpu"
    )
    rows = {f"{row.protocol}, {row.variant}": row for row in found.rows}
    assert set(rows) == {"finetune, paper recipe", "transfer, linear, paper recipe", "transfer, finetune, paper recipe"}
    assert rows["transfer, linear, paper recipe"].chosen["optimizer"] == "adam"
    assert rows["finetune, paper recipe"].chosen["weight_decay"] == 0.0
    assert rows["transfer, linear, paper recipe"].best.value > 0.8


def test_transfer_data_are_resized_bicubically() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 6), dtype=np.uint8)
    source = ResidentImages.of(pixels)
    expected = F.interpolate(source.images.float(), size=(9, 9), mode="bicubic", antialias=True).round().clamp(0, 255)
    adapted = AdaptedSource(source, 1, 9, "bicubic")
    assert torch.equal(adapted.batch(torch.arange(2)), expected.to(torch.uint8))
    assert adapted.fingerprint() != AdaptedSource(source, 1, 9).fingerprint()


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="recipe must be one of 'own', 'paper', got 'papers'"):
        flatclr.evaluate(torch.nn.Flatten(), recipe="papers")
