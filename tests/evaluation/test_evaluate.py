"""`flatclr.evaluate` with all protocols: what is measured, left alone, and chosen."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import flatclr
from flatclr.data.opening import open_dataset
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.evaluation.finetune import OWN, RECIPES, Recipe
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.evaluation.request import EvaluationRequest
from flatclr.evaluation.results import Evaluation, read_results
from flatclr.training.config import TrainConfig
from tests.support.evaluation import CLASSES, small_data, small_encoder
from tests.support.training_worker import config


def with_shuffled_test_labels(data: Dataset) -> Dataset:
    assert isinstance(data.test, ResidentImages)
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(5))
    assert data.test.labels is not None
    return Dataset(
        data.name, data.train, ResidentImages(data.test.images, data.test.labels[order], CLASSES, name="test")
    )


@pytest.fixture(scope="module", autouse=True)
def short_finetuning() -> Iterator[None]:
    """What is claimed here does not depend on how long fine-tuning takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, OWN, Recipe(epochs=1, fewest_steps=4))
        yield


@pytest.fixture(scope="module")
def everything() -> Evaluation:
    return flatclr.evaluate(small_encoder(), small_data(), protocol="all", draws=2)


def test_all_protocols_run_with_intervals_versions_and_a_random_row(everything: Evaluation) -> None:
    assert {row.protocol for row in everything.rows} == set(PROTOCOLS)
    assert everything.skipped == ()
    for row in everything.rows:
        assert row.version == PROTOCOLS[row.protocol].version
        assert all(score.low <= score.value <= score.high for score in row.scores.values())
        if row.weights == "trained":
            random = everything.random_beside(row)
            assert random is not None
            assert random.scores.keys() == row.scores.keys()
    variants = {(row.protocol, row.variant) for row in everything.rows}
    assert {
        ("semi", "1% of the labels"),
        ("semi", "10% of the labels"),
        ("transfer", "linear"),
        ("transfer", "finetune"),
    } <= variants
    assert everything["transfer"].data == "digits"


def test_easy_classes_are_told_apart(everything: Evaluation) -> None:
    assert everything["linear"].best.low > 0.9
    assert everything["knn"].scores["top1"].value > 0.9
    confusion = np.array(everything["linear"].confusion)
    assert confusion.sum() == 90
    assert np.trace(confusion) / 90 == pytest.approx(everything["linear"].scores["top1"].value)


def test_rows_say_which_test_images_were_told_right(everything: Evaluation) -> None:
    for protocol in ("knn", "linear", "finetune"):
        row = everything[protocol]
        bits = np.unpackbits(np.frombuffer(base64.b64decode(row.correct), np.uint8))
        assert not bits[90:].any()
        assert bits[:90].mean() == pytest.approx(row.scores["top1"].value)
    assert everything["semi"].correct == ""


def test_protocols_leave_weights_statistics_and_modes_as_they_were() -> None:
    encoder = small_encoder().train()
    encoder.layer2.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    modes = [part.training for part in encoder.modules()]
    needs = [weight.requires_grad for weight in encoder.parameters()]
    random_state = torch.get_rng_state()
    flatclr.evaluate(encoder, small_data(), protocol="all", draws=1, random_row=True)
    after = encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [part.training for part in encoder.modules()] == modes
    assert [weight.requires_grad for weight in encoder.parameters()] == needs
    assert all(weight.grad is None for weight in encoder.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_test_labels_change_scores_but_nothing_that_is_chosen(everything: Evaluation) -> None:
    found = flatclr.evaluate(small_encoder(), with_shuffled_test_labels(small_data()), protocol="all", draws=2)
    assert len(found.rows) == len(everything.rows)
    for row, before in zip(found.rows, everything.rows, strict=True):
        assert (*row.key[:3], *row.key[4:]) == (*before.key[:3], *before.key[4:])  # all but the hash of the data
        assert row.chosen == before.chosen
    assert found["linear"].best.value < everything["linear"].best.value
    # label by label the same images are predicted: columns of the confusion matrix keep their sums
    for protocol in ("knn", "linear", "finetune", "semi"):
        sums = [np.array(e[protocol].confusion).sum(0).tolist() for e in (found, everything)]
        assert sums[0] == sums[1]


def test_the_same_call_gives_the_same_numbers(everything: Evaluation) -> None:
    again = flatclr.evaluate(small_encoder(), small_data(), protocol=["linear", "semi"], draws=2)
    for protocol in ("linear", "semi"):
        assert again[protocol].scores == everything[protocol].scores


def test_training_beats_random_weights_on_the_embedded_images(tmp_path: Path) -> None:
    run = flatclr.train(config(tmp_path / "run", 40, batch_size=16, encoder_options={"width": 8}))
    whole = open_dataset()
    assert isinstance(whole.train, ResidentImages)
    assert isinstance(whole.test, ResidentImages)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    data = Dataset("some", whole.train.subset(order, "train"), whole.test.subset(order[:1200], "test"))
    found = flatclr.evaluate(run.path, data, protocol=["knn", "mi"])
    random = found.random_beside(found["mi"])
    assert random is not None
    assert found["mi"].best.low > random.best.high
    assert found["knn"].best.value > 0.5
    assert found["mi"].chosen["beta"] > 0


class Halves(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The upper half is bright, or it is not; labels stand in the items alone."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = torch.zeros(1, 8, 8, dtype=torch.uint8)
        image[:, : 4 * (i % 2)] = 255
        return image, i % 2


def test_arrays_and_a_torch_dataset_are_evaluated_as_they_are() -> None:
    items = [Halves()[i] for i in range(60)]
    images, labels = torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])
    for data in ((images, labels), (images.numpy(), labels.numpy()), Halves()):
        found = flatclr.evaluate(torch.nn.Flatten(), data, device="cpu", random_row=False)["knn"]
        assert found.best.value == 1
    assert flatclr.embed(torch.nn.Flatten(), Halves(), device="cpu").labels == ("0", "1") * 30
    with pytest.raises(ValueError, match="must have images of 16 pixels for this encoder, got 8; pass image_size=16"):
        flatclr.evaluate(flatclr.models.build_encoder("cnn", channels=1, image_size=16, width=4), (images, labels))
    with pytest.raises(TypeError, match=r"data must be a path or name, .* got float"):
        flatclr.evaluate(torch.nn.Flatten(), 3.5)


@pytest.mark.parametrize("protocol", [["all"], ["knn", "all"], "all"])
def test_all_in_a_list_means_all(protocol: str | list[str]) -> None:
    assert EvaluationRequest(None, protocol=protocol).protocols == list(PROTOCOLS)


@pytest.mark.slow
def test_all_protocols_on_the_embedded_images_take_under_ten_minutes_on_two_cores(tmp_path: Path) -> None:
    run = flatclr.train(TrainConfig(steps=50, out=str(tmp_path / "run"), device="cpu")).path
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    start = time.monotonic()
    command = [sys.executable, "-m", "flatclr", "eval", str(run), "--device", "cpu", "--protocol", "all"]
    subprocess.run(command, check=True, env=environment)
    assert time.monotonic() - start < 600
    found = read_results(run / "evaluation")
    assert found is not None
    assert {row.protocol for row in found.rows} == set(PROTOCOLS)
