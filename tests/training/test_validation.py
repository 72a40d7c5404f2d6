"""What is measured while a run trains, and that measuring changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flatclr.data.sources import Dataset, ResidentImages
from flatclr.data.views import ViewConfig, no_augmentation
from flatclr.diagnostics import gradient_snr
from flatclr.training.build import build
from flatclr.training.instruments import SNR_BATCHES, probed_gradients
from flatclr.training.validation import ImageValidation
from tests.support.training_worker import config


def test_evaluation_draws_from_all_classes_of_sorted_data(tmp_path: Path) -> None:
    import numpy as np

    labels = np.repeat(np.arange(4), 50)
    np.savez(
        tmp_path / "sorted.npz",
        images=(60 * labels[:, None, None] + np.zeros((200, 28, 28))).astype(np.uint8),
        labels=labels,
    )
    parts = build(config(tmp_path / "run", 1, data=str(tmp_path / "sorted.npz"), eval_samples=40))
    assert isinstance(parts.validation, ImageValidation)
    encoder = parts.train_step.network.encoder
    _, chosen = parts.validation.features(encoder, parts.validation.source)
    assert chosen is not None
    assert len(chosen) == 40
    assert set(chosen.tolist()) == {0, 1, 2, 3}
    again = parts.validation.features(encoder, parts.validation.source)[1]
    assert torch.equal(chosen, again)


def test_the_probe_encodes_no_more_at_once_than_training_does(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2, micro_batch=2))
    sizes: list[int] = []
    encoder = parts.train_step.bare_network.encoders["encoder"]
    encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    assert set(sizes) == {2 * 2}  # both views


def test_looking_at_gradients_leaves_the_random_state_alone(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2, negatives_per_anchor=3, ess_target=0.5))
    state = torch.get_rng_state()
    gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_gradient_snr_is_that_of_its_definition(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2))
    state = {name: value.clone() for name, value in parts.train_step.network.state_dict().items()}
    beta = float(parts.train_step.objective.inverse_temperature)
    seen: list[np.ndarray[Any, Any]] = []
    probe = parts.train_step.probe_gradient

    def remembered(*arguments: Any) -> Tensor:
        gradient = probe(*arguments)
        seen.append(gradient.double().numpy())
        return gradient

    parts.train_step.probe_gradient = remembered  # type: ignore[method-assign]
    measured = gradient_snr(probed_gradients(parts.train_step, parts.loader, step=1))
    mean = np.mean(seen, axis=0)
    noise = math.sqrt(np.mean([np.sum((g - mean) ** 2) for g in seen]))
    assert len(seen) == SNR_BATCHES >= 8
    assert measured == pytest.approx(np.linalg.norm(mean) / noise, rel=1e-4)
    assert float(parts.train_step.objective.inverse_temperature) == beta  # a look changes nothing
    assert all(torch.equal(value, state[name]) for name, value in parts.train_step.network.state_dict().items())


def test_a_probed_gradient_is_the_one_training_would_use(tmp_path: Path) -> None:
    parts = build(config(tmp_path, 2))
    step, batch = next(parts.loader.steps(0, 1))
    probed = parts.train_step.probe_gradient(batch, step, parts.loader.own_indices(step))
    parts.train_step.backward(parts.train_step.inputs.draw(batch, step), len(batch[0]))
    gradient = parts.train_step.bare_network.last_layer.weight.grad
    assert gradient is not None
    torch.testing.assert_close(probed, gradient.flatten())


@pytest.mark.parametrize("objective", ["sogclr", "isogclr"])
def test_a_probed_gradient_uses_what_is_kept_of_its_samples(objective: str, tmp_path: Path) -> None:
    parts = build(config(tmp_path, 4, objective=objective))
    train_step = parts.train_step
    for step, batch in parts.loader.steps(0, 2):
        train_step(batch, step)
    kept = {name: value.clone() for name, value in train_step.objective.state_dict().items()}
    step, batch = next(parts.loader.steps(1, 2))  # samples that were seen
    samples = parts.loader.own_indices(step)
    probed = train_step.probe_gradient(batch, step, samples)
    torch.testing.assert_close(train_step.objective.state_dict(), kept, rtol=0, atol=0)
    train_step.objective.eval()  # a second visit reads what the first left, as the probe does
    train_step.backward(train_step.inputs.draw(batch, step), len(batch[0]), samples)
    gradient = train_step.bare_network.last_layer.weight.grad
    assert gradient is not None
    torch.testing.assert_close(probed, gradient.flatten())
    train_step.backward(train_step.inputs.draw(batch, step), len(batch[0]))
    other = train_step.bare_network.last_layer.weight.grad
    assert other is not None
    assert (probed - other.flatten()).norm() > 1e-3 * probed.norm()
    assert gradient_snr(probed_gradients(train_step, parts.loader, step=1)) is not None


def images_of_pixels(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)


def of_pixels(
    train: torch.Tensor, test: torch.Tensor | None, views: ViewConfig, samples: int = 100
) -> dict[str, float]:
    source = ResidentImages(train, torch.arange(len(train)) % 4, name="made")
    held_out = None if test is None else ResidentImages(test, torch.arange(len(test)) % 4, name="made, test")
    data, cpu = Dataset("made", source, held_out), torch.device("cpu")
    return ImageValidation(data, source, views, 8, batch_size=8, samples=samples, seed=0, device=cpu).of_pixels


def test_pixels_show_copies_between_and_within_splits() -> None:
    train = images_of_pixels(40, seed=0)
    clean = of_pixels(train, images_of_pixels(20, seed=1), no_augmentation())
    assert (clean["split_overlap"], clean["near_duplicates"], clean["pixel_match"]) == (0, 0, 1)
    leaky = of_pixels(train, train[:20], no_augmentation())
    assert leaky["split_overlap"] == 1
    assert leaky["pixel_knn"] > clean["pixel_knn"]
    twice = of_pixels(train.repeat(2, 1, 1, 1), None, no_augmentation())
    assert twice["near_duplicates"] == pytest.approx(80 / (80 * 79))
    assert "split_overlap" not in twice


def test_copies_are_counted_by_the_share_of_the_training_images_that_was_looked_at() -> None:
    train = images_of_pixels(400, seed=0)
    found = of_pixels(train, train, no_augmentation(), samples=200)["split_overlap"]
    assert found == pytest.approx(1, abs=4 * 2 * (0.25 / 200) ** 0.5)  # half are found, each stands for two


def test_crops_of_a_pixel_are_not_matched_by_pixels() -> None:
    tiny = of_pixels(images_of_pixels(100, seed=0), None, ViewConfig(crop_scale=(0.02, 0.02)))
    assert tiny["pixel_match"] < 0.2
