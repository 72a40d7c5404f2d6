"""`flatclr.evaluate` and `flatclr eval`: what they measure, what they leave alone, what they refuse."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import flatclr
from flatclr.cli.main import main
from flatclr.data.digits import digits
from flatclr.data.opening import open_dataset
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from flatclr.evaluation import bench, evaluator, features
from flatclr.evaluation.finetune import Recipe, class_balanced
from flatclr.evaluation.opening import open_named
from flatclr.evaluation.protocols import PROTOCOLS, finetuning
from flatclr.evaluation.request import EvaluationRequest
from flatclr.evaluation.results import Evaluation, read_results
from flatclr.models.encoders import Encoder, ResNet, build_encoder
from flatclr.models.heads import build_head
from flatclr.models.network import Normalisation
from flatclr.models.saving import save_encoder
from flatclr.training.config import TrainConfig
from tests.support.training_worker import config

CLASSES = ("upright", "level", "both")


def pictures(samples: int, *, seed: int, size: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Noise with upright stripes, level stripes, or both: three classes in turn."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 40, (samples, channels, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % 3
    images[labels != 1, :, :, ::3] += 80
    images[labels != 0, :, ::3, :] += 80
    return images, labels


def small_data(**options: int) -> Dataset:
    parts = [pictures(n, seed=seed, **options) for seed, n in enumerate((240, 90))]
    train, test = (
        ResidentImages(*part, CLASSES, name=name) for part, name in zip(parts, ("train", "test"), strict=True)
    )
    return Dataset("pictures", train, test)


def small_encoder(*, seed: int = 0, size: int = 12, channels: int = 1) -> Encoder:
    torch.manual_seed(seed)
    encoder = build_encoder("cnn", channels=channels, image_size=size, width=4)
    encoder.normalisation = Normalisation((0.5,) * channels, (0.5,) * channels)
    return encoder


def with_shuffled_test_labels(data: Dataset) -> Dataset:
    assert isinstance(data.test, ResidentImages)
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(5))
    assert data.test.labels is not None
    return Dataset(
        data.name, data.train, ResidentImages(data.test.images, data.test.labels[order], CLASSES, name="test")
    )


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "Recipe", partial(Recipe, epochs=1, fewest_steps=4))


@pytest.fixture(scope="module")
def everything() -> Evaluation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "Recipe", partial(Recipe, epochs=1, fewest_steps=4))
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


def test_ten_neighbours_with_equal_votes_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 1, 6, 6), dtype=torch.uint8, generator=generator)
    labels = torch.arange(300) % 4
    images[:, 0, 0] = (60 * labels[:, None]).to(torch.uint8)
    parts = [ResidentImages(images[part], labels[part], name="noisy") for part in (slice(0, 200), slice(200, 300))]

    found = flatclr.evaluate(lambda x: x.flatten(1), Dataset("noisy", *parts), "knn")

    train, test = (part.images.flatten(1).double().numpy() for part in parts)
    known = KNeighborsClassifier(10, metric="cosine").fit(train, labels[:200]).score(test, labels[200:])
    assert 0.3 < known < 0.95
    assert found["knn"].scores["top1_k10"].value == pytest.approx(known)


@pytest.mark.parametrize("training", [True, False])
def test_protocols_leave_weights_statistics_and_modes_as_they_were(training: bool) -> None:
    encoder = small_encoder().train(training)
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


def test_any_callable_and_any_module_can_be_evaluated() -> None:
    data = small_data()
    pixels = flatclr.evaluate(lambda images: images.flatten(1), data, "linear")
    assert [row.weights for row in pixels.rows] == ["trained"]
    torch.manual_seed(1)  # another seed than that of the random weights
    module = nn.Sequential(nn.Flatten(), nn.Linear(144, 10))
    found = flatclr.evaluate(module, data, "geometry")
    assert [row.weights for row in found.rows] == ["trained", "random"]
    assert found["geometry"].best.value != found.rows[1].best.value


def test_a_module_that_cannot_be_drawn_anew_has_no_random_row() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(144))

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) * self.scale

    assert [row.weights for row in flatclr.evaluate(Scaled(), small_data(), "knn").rows] == ["trained"]


def test_layers_are_probed_in_order_of_depth_and_the_output_is_the_last() -> None:
    encoder = small_encoder()
    found = flatclr.evaluate(encoder, small_data(), "knn", layer="all", random_row=False)
    assert [row.layer for row in found.rows] == ["layer1", "layer2", "layer3", "layer4"]
    whole = flatclr.evaluate(encoder, small_data(), "knn", random_row=False)
    assert found.rows[-1].scores == whole["knn"].scores
    one = flatclr.evaluate(encoder, small_data(), "knn", layer="layer2", random_row=False)
    assert one["knn"].scores == found.rows[1].scores
    deep = flatclr.evaluate(encoder, small_data(), "knn", layer="layer2.conv", random_row=False)
    assert deep["knn"].layer == "layer2.conv"


def test_a_head_adds_its_layers() -> None:
    encoder, head = small_encoder(), build_head(16, d_out=4)
    head.get_buffer("norm1.running_mean").fill_(0.5)  # else it only repeats linear1
    found = flatclr.evaluate(encoder, small_data(), "knn", layer="all", head=head, random_row=False)
    assert [row.layer for row in found.rows][-4:] == ["head.linear1", "head.norm1", "head.relu1", "head.linear2"]
    named = flatclr.evaluate(encoder, small_data(), "knn", layer="layer3", head=head, random_row=False)
    assert named["knn"].layer == "encoder.layer3"


def test_features_of_a_layer_are_its_mean_over_positions() -> None:
    encoder, data = small_encoder().eval(), small_data()
    assert isinstance(data.test, ResidentImages)
    prepare = lambda images: (images.float() / 255 - 0.5) / 0.5  # noqa: E731
    found = features.compute_features(encoder, data.test, prepare, layers=("layer2",), device=torch.device("cpu"))
    x = prepare(data.test.images)
    with torch.no_grad():
        wanted = encoder.get_submodule("layer2")(encoder.get_submodule("layer1")(x)).mean((2, 3))
    assert torch.allclose(found["layer2"], wanted, atol=1e-6)


def count_encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    compute = features.compute_features

    def counted(module: nn.Module, source: Any, prepare: Any, **options: Any) -> dict[str, Tensor]:
        seen.append(source.name)
        return compute(module, source, prepare, **options)

    monkeypatch.setattr(bench, "compute_features", counted)
    return seen


def test_features_are_computed_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_encodings(monkeypatch)
    run = partial(flatclr.evaluate, data=small_data(), random_row=False, cache=tmp_path)
    first = run(small_encoder(), protocol=["knn", "linear", "retrieval"])
    assert seen == ["train", "test"]
    second = run(small_encoder(), protocol="linear")
    assert seen == ["train", "test"]
    assert second["linear"].scores == first["linear"].scores


def test_other_weights_data_or_normalisation_are_encoded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_encodings(monkeypatch)
    run = partial(flatclr.evaluate, protocol="knn", random_row=False, cache=tmp_path)
    run(small_encoder(), small_data())
    changed = small_encoder()
    changed.get_buffer("layer1.norm.running_mean").add_(0.1)  # a statistic, not a weight
    run(changed, small_data())
    other_norm = small_encoder()
    other_norm.normalisation = Normalisation((0.4,), (0.5,))
    run(other_norm, small_data())
    data = small_data()
    assert isinstance(data.train, ResidentImages)
    data.train.images[0, 0, 0, 0] ^= 1
    run(small_encoder(), data)
    assert seen == ["train", "test"] * 3 + ["train"]  # the last test part was known


@pytest.mark.parametrize("damage", ["cut", "flip", "swap", "empty"])
def test_a_damaged_or_foreign_cache_file_is_not_trusted(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partial(flatclr.evaluate, small_encoder(), small_data(), "knn", random_row=False, cache=tmp_path)
    whole = run()
    first, second = sorted(tmp_path.iterdir())
    content = bytearray(first.read_bytes())
    if damage == "cut":
        first.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[-5] ^= 64
        first.write_bytes(content)
    elif damage == "swap":
        first.write_bytes(second.read_bytes())
    else:
        first.write_bytes(b"")
    seen = count_encodings(monkeypatch)
    assert run()["knn"].scores == whole["knn"].scores
    assert len(seen) == 1
    run()
    assert len(seen) == 1  # the file was replaced by a good one


def test_modules_of_unknown_make_are_never_read_from_the_cache(tmp_path: Path) -> None:
    flatclr.evaluate(nn.Sequential(nn.Flatten(), nn.Linear(144, 5)), small_data(), "knn", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_scikit_learn_only_the_transfer_to_digits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    found = flatclr.evaluate(small_encoder(), small_data(), ["transfer", "knn"], random_row=False)
    assert [row.protocol for row in found.rows] == ["knn"]
    assert dict(found.skipped)["transfer"].startswith("the digits need scikit-learn, got no such package; pip install")


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    with pytest.raises(ValueError, match=r"out must be a folder that can be made, got .*file/out"):
        flatclr.evaluate(
            small_encoder(), small_data(), out=tmp_path / "file" / "out", progress=lambda what, *_: told.append(what)
        )
    assert told == []


def test_label_subsets_are_balanced_and_differ_by_seed() -> None:
    labels = torch.arange(1000) % 10
    first, second = (class_balanced(labels, 0.01, classes=10, seed=seed) for seed in (0, 1))
    assert torch.bincount(labels[first]).tolist() == [1] * 10
    assert set(first.tolist()) != set(second.tolist())
    assert torch.bincount(labels[class_balanced(labels, 0.1, classes=10, seed=0)]).tolist() == [10] * 10


def test_transfer_adapts_size_and_channels() -> None:
    colour = small_encoder(size=16, channels=3)
    found = flatclr.evaluate(colour, small_data(size=16, channels=3), "transfer", random_row=False)
    assert found["transfer"].data == "digits"
    assert found["transfer"].best.value > 0.5
    grey = flatclr.evaluate(
        small_encoder(), small_data(), "transfer", transfer_data=small_data(size=9, channels=3), random_row=False
    )
    assert grey["transfer"].data == "pictures"


def test_digits_have_a_third_of_each_class_for_testing() -> None:
    data = digits()
    assert len(data.train) + len(data.test) == 1797
    assert data.test is not None
    train, test = (torch.bincount(part.labels) for part in (data.train, data.test))  # type: ignore[union-attr]
    assert ((train + test) // 3 == test).all()


def several_classes() -> Dataset:
    def part(samples: int, seed: int) -> ResidentImages:
        images, labels = pictures(samples, seed=seed)
        table = np.stack([labels != 1, labels != 0], 1).astype(int)
        return ResidentImages.of(images, table, ("upright", "level"), name=f"part{seed}")

    return Dataset("several", part(240, 0), part(90, 1))


def test_images_of_several_classes_are_scored_by_mean_average_precision() -> None:
    found = flatclr.evaluate(
        small_encoder(), several_classes(), "all", transfer_data=several_classes(), random_row=False
    )
    assert [name for name, _ in found.skipped] == ["knn", "semi", "retrieval"]
    assert found["linear"].headline == "mean_average_precision"
    assert found["linear"].best.value > 0.95
    assert found["finetune"].headline == "mean_average_precision"
    assert found["transfer"].headline == "mean_average_precision"
    with pytest.raises(ValueError, match="knn must have one class per image, got several in several; use linear"):
        flatclr.evaluate(small_encoder(), several_classes(), "knn")


def test_data_without_labels_is_measured_without_them() -> None:
    images, _ = pictures(120, seed=0)
    bare = Dataset("bare", ResidentImages(images, name="train"), None)
    found = flatclr.evaluate(small_encoder(), bare, "all", random_row=False)
    assert {row.protocol for row in found.rows} == {"transfer", "geometry", "mi"}
    assert "simplex_etf_distance" not in found["geometry"].scores
    assert dict(found.skipped)["knn"].startswith(
        "protocol knn must have labelled training and test images, got no test"
    )


def missing_class() -> Dataset:
    images, labels = pictures(90, seed=0)
    train = ResidentImages(images[labels != 2], labels[labels != 2], CLASSES, name="train")
    return Dataset("holes", train, ResidentImages(images, labels, CLASSES, name="test"))


def unlabelled() -> Dataset:
    images, _ = pictures(90, seed=0)
    return Dataset("bare", ResidentImages(images, name="train"), ResidentImages(images, name="test"))


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "protocol": ({"protocol": "knm"}, ValueError, r"protocol must be one of .* got 'knm'; did you mean 'knn'\?"),
    "no protocol": ({"protocol": []}, ValueError, "protocol must name at least one"),
    "no labels": ({"data": unlabelled()}, ValueError, "knn must have labelled .* got no labels in bare; label them"),
    "missing class": ({"data": missing_class()}, ValueError, "got 'both' in holes's test part only; split"),
    "channels": ({"data": small_data(channels=3)}, ValueError, "train must have 1 channels for this encoder, got 3"),
    "size": ({"data": small_data(size=16)}, ValueError, "must have images of 12 pixels for this encoder, got 16"),
    "pairs": (
        {"data": Dataset("p", PairedArrays(torch.ones(4, 2), torch.ones(4)), None)},
        ValueError,
        "must be images, got paired",
    ),
    "layer": ({"layer": "layr2"}, ValueError, r"layer must be one of .* got 'layr2'; did you mean 'layer2'\?"),
    "layer of training": (
        {"layer": "layer2", "protocol": "finetune"},
        ValueError,
        "finetune must train the whole network",
    ),
    "draws": ({"draws": 0}, ValueError, "draws must be a whole number >= 1, got 0"),
    "device": ({"device": "gpu"}, ValueError, "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'; pick one"),
    "no such device": (
        {"device": "cuda:99"},
        ValueError,
        "device must be one of the .* CUDA devices here, got 'cuda:99'",
    ),
    "encoder": ({"run_or_encoder": 3}, TypeError, "an encoder must be a path, .* got int; pass one"),
    "path": ({"run_or_encoder": "runs/nowhere"}, FileNotFoundError, "got runs/nowhere, which does not exist; check"),
    "data path": ({"data": "nowhere/at/all"}, FileNotFoundError, "data must be an existing path"),
    "callable": (
        {"run_or_encoder": lambda x: x.flatten(1), "protocol": "finetune"},
        ValueError,
        "must have weights to train",
    ),
    "shape": (
        {"run_or_encoder": nn.Sequential(nn.Flatten(), nn.Linear(100, 2))},
        ValueError,
        r"must take images \[1, 12, 12\] of train",
    ),
    "output": (
        {"run_or_encoder": lambda x: x.sum()},
        ValueError,
        r"'output' must give a tensor \[N, d, ...\], got shape \[\]",
    ),
    "bare weights": (
        {"run_or_encoder": __file__.replace(".py", ".pth")},
        FileNotFoundError,
        "which does not exist; check the path",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case: str, tmp_path: Path) -> None:
    changes, kind, message = BAD[case]
    settings: dict[str, Any] = {"run_or_encoder": small_encoder(), "data": small_data(), "protocol": "knn"} | changes
    with pytest.raises(kind, match=message) as caught:
        flatclr.evaluate(**settings, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_state_dict_needs_its_architecture_and_reports_its_fit(tmp_path: Path) -> None:
    state = {
        f"module.encoder_q.{name}": value
        for name, value in build_encoder("cnn", channels=1, image_size=12).state_dict().items()
    }
    torch.save({"state_dict": {**state, "module.encoder_k.queue": torch.zeros(2)}}, tmp_path / "weights.pth")
    run = partial(flatclr.evaluate, tmp_path / "weights.pth", small_data(), "knn", random_row=False)
    with pytest.raises(ValueError, match="must come with its architecture, got a bare state dict; pass architecture="):
        run()
    found = run(architecture="cnn", prefix="module.encoder_q.")
    assert "24 of 24 tensors loaded, 1 unexpected (module.encoder_k.queue)" in found.report
    with pytest.raises(ValueError, match="must have keys such as"):
        run(architecture="cnn", prefix="nothing.")


def moco_file(path: Path, name: str, stem: str, drop: str = "") -> Path:
    """A checkpoint as MoCo writes it: the encoder and its head under one prefix, the queue beside them."""
    state = build_encoder(name, channels=3, image_size=32, stem=stem).state_dict() | {"fc.0.weight": torch.ones(8, 512)}
    named = {f"module.encoder_q.{key}": value for key, value in state.items() if key != drop}
    torch.save({"epoch": 200, "state_dict": {**named, "module.queue": torch.ones(8, 16)}}, path)
    return path


@pytest.mark.parametrize(
    ("stored", "architecture", "drop", "message"),
    [
        (
            "resnet18",
            "resnet18",
            "layer2.0.bn1.running_var",
            r"got 1 missing and 0 of another shape, of 120 \(first: layer2\.0\.bn1\.running_var is missing, "
            r"expected \[128\]\); pass the architecture= and prefix= \(--architecture, --prefix\)",
        ),
        (
            "resnet18",
            "resnet50",
            "",
            r"first: layer1\.0\.conv1\.weight has shape \[64, 64, 3, 3\], expected \[64, 64, 1, 1\]",
        ),
        (
            "resnet34",
            "resnet18",
            "",
            r"must hold a resnet18, got \d+ tensors more in its layers \(first: module\.encoder_q\.layer1\.2\.conv1\.weight\)",
        ),
    ],
)
def test_weights_of_part_of_an_encoder_are_refused(
    stored: str,
    architecture: str,
    drop: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = moco_file(tmp_path / "moco.pth", stored, "cifar", drop)
    np.savez(tmp_path / "p.npz", train_images=pictures(30, seed=0, size=32, channels=3)[0].numpy())
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(
            *(monkeypatch, "eval", weights, "--architecture", architecture, "--prefix", "module.encoder_q."),
            *("--data", tmp_path / "p.npz", "--protocol", "geometry"),
        )
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
    assert not (tmp_path / "evaluation").exists()


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 7), ("cifar", 3)])
@pytest.mark.parametrize("image_size", [12, 80])
def test_the_stem_of_a_resnet_is_that_of_its_file(stem: str, side: int, image_size: int, tmp_path: Path) -> None:
    weights = moco_file(tmp_path / "moco.pth", "resnet18", stem)
    subject = open_named(
        weights, channels=3, image_size=image_size, architecture="resnet18", prefix="module.encoder_q."
    )
    assert isinstance(subject.module, ResNet)
    assert subject.module.conv1.kernel_size == (side, side)
    assert isinstance(subject.module.maxpool, nn.MaxPool2d if stem == "imagenet" else nn.Identity)
    stored = torch.load(weights)["state_dict"]["module.encoder_q.conv1.weight"]
    assert torch.equal(subject.module.conv1.weight, stored)
    fresh = subject.at_random(0)
    assert fresh is not None
    assert isinstance(fresh.module, ResNet)
    assert fresh.module.conv1.kernel_size == (side, side)
    assert subject.report.startswith("120 of 120 tensors loaded, 2 unexpected")


@pytest.mark.parametrize("protocol", [["all"], ["knn", "all"], "all"])
def test_all_in_a_list_means_all(protocol: str | list[str]) -> None:
    assert EvaluationRequest(None, protocol=protocol).protocols == list(PROTOCOLS)


def test_encoders_of_timm_come_with_their_weights_and_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(options)
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
        model.pretrained_cfg = {"mean": (0.1,), "std": (0.2,)}  # type: ignore[assignment]
        return model

    fake = ModuleType("timm")
    fake.create_model, fake.list_models = create_model, lambda: ["tiny"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    found = flatclr.evaluate("timm:tiny", small_data(), "knn", random_row=False)
    assert asked["pretrained"] is True
    assert found.report == "weights as published"
    subject, _ = evaluator._opened(EvaluationRequest("timm:tiny", small_data()))
    assert subject.normalisation == Normalisation((0.1,), (0.2,))


def flatclr_eval(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", *map(str, arguments)])
    main()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    parts = dict(
        zip(
            ("train_images", "train_labels", "test_images", "test_labels"),
            (*pictures(240, seed=0), *pictures(90, seed=1)),
            strict=True,
        )
    )
    np.savez(folder / "pictures.npz", **{name: part.numpy() for name, part in parts.items()})
    return flatclr.train(config(folder / "run", 6, data=str(folder / "pictures.npz"))).path


def test_the_command_writes_results_and_a_picture_and_keeps_earlier_rows(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", run, "--protocol", "knn")
    text = capsys.readouterr().out
    assert "knn on pictures" in text
    assert "random weights" in text
    folder = run / "evaluation"
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", run, "--protocol", "retrieval", "--layer", "all", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines[-2:]] == ["row", "end"]
    layers = [line["layer"] for line in lines[:-1] if line["weights"] == "trained"]
    assert layers == [*(f"encoder.layer{i}" for i in (1, 2, 3, 4)), "head.linear1", "head.relu1", "head.linear2"]
    found = read_results(folder)
    assert found is not None
    assert {row.protocol for row in found.rows} == {"knn", "retrieval"}
    assert found["knn"].scores["top1"].low < found["knn"].scores["top1"].high


def test_results_under_other_settings_keep_the_earlier_ones_beside_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = ("eval", run, "--no-random-row", "--no-cache", "--out", tmp_path, "--protocol")
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "knn")
    assert "are kept in" not in capsys.readouterr().out
    earlier = (tmp_path / "results.json").read_bytes()
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "retrieval,knn", "--mean", "0.4", "--std", "0.3")
    (kept,) = tmp_path.glob("results-*.json")
    assert kept.read_bytes() == earlier
    assert f"earlier results of other weights or settings are kept in {kept}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, *measure, "geometry", "--mean", "0.4", "--std", "0.3", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["set_aside"] == ""
    found = read_results(tmp_path)
    assert found is not None
    assert {row.protocol for row in found.rows} == {"retrieval", "knn", "geometry"}
    assert found.set_aside == kept.name
    assert list(tmp_path.glob("results-*.json")) == [kept]


def test_results_of_other_weights_are_not_mixed(tmp_path: Path) -> None:
    flatclr.evaluate(small_encoder(seed=0), small_data(), "knn", out=tmp_path, random_row=False)
    flatclr.evaluate(small_encoder(seed=1), small_data(), "retrieval", out=tmp_path, random_row=False)
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["retrieval"]
    (tmp_path / "results.json").write_text("{torn")
    assert read_results(tmp_path) is None
    again = flatclr.evaluate(small_encoder(seed=1), small_data(), "knn", out=tmp_path, random_row=False)
    assert read_results(tmp_path) is not None
    assert (tmp_path / again.set_aside).read_text() == "{torn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "which does not exist; check the path"),
        (["RUN", "--protocol", "knnn"], "did you mean 'knn'?"),
        (["RUN", "--data", "nowhere"], "data must be an existing path"),
        (["RUN", "--layer", "layer9"], "layer must be one of"),
        (["DAMAGED/encoder.safetensors"], "it is damaged or belongs to another encoder.json"),
        (["UNFINISHED"], "must hold a finished run, got no encoder.json; finish it with flatclr train --resume"),
        (["UNFINISHED", "--layer", "all"], "finish it with flatclr train --resume"),
        (["PAIRED"], "got a run on pairs with one for each side; pass PAIRED/encoder_x or encoder_y."),
        (["timm:resnet18"], "needs timm"),
    ],
)
def test_the_command_answers_bad_input_in_one_line(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    save_encoder(tmp_path / "DAMAGED", small_encoder(), description={})
    weights = tmp_path / "DAMAGED" / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    for unfit, part in (("UNFINISHED", "checkpoint"), ("PAIRED", "encoder_x")):
        (tmp_path / unfit / part).mkdir(parents=True)
        (tmp_path / unfit / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(monkeypatch, "eval", *(str(run) if a == "RUN" else a for a in arguments))
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_all_protocols_on_the_embedded_images_take_under_ten_minutes_on_two_cores(tmp_path: Path) -> None:
    run = flatclr.train(TrainConfig(steps=50, out=str(tmp_path / "run"), device="cpu")).path
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "flatclr", "eval", str(run), "--device", "cpu"], check=True, env=environment)
    assert time.monotonic() - start < 600
    found = read_results(run / "evaluation")
    assert found is not None
    assert {row.protocol for row in found.rows} == set(PROTOCOLS)
