"""What an evaluation must not get wrong: what is measured, on which data, with which interval."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy import stats
from torch import Tensor, nn

import flatclr
from flatclr.data.opening import open_dataset
from flatclr.data.sources import Dataset, PairedArrays, ResidentImages
from flatclr.evaluation import evaluator, features, intervals
from flatclr.evaluation.figures import draw
from flatclr.evaluation.finetune import Recipe
from flatclr.evaluation.intervals import jackknife
from flatclr.evaluation.linear import Scaling, fit_linear
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.protocols import finetuning, frozen
from flatclr.evaluation.results import read_results
from flatclr.evaluation.retrieval import retrieve
from flatclr.evaluation.subjects import Subject
from flatclr.models.encoders import build_encoder
from flatclr.models.heads import build_head
from tests.evaluation.test_evaluate import CLASSES, _short_training, flatclr_eval, pictures, small_data, small_encoder  # noqa: F401
from tests.support.training_worker import config

CPU = torch.device("cpu")


def with_test_part(images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Dataset:
    return Dataset("pictures", small_data().train, ResidentImages(images, labels, classes, name="test"))


@pytest.mark.parametrize("layer", [None, "output"])
def test_the_output_is_the_encoders_whether_or_not_a_head_is_passed(layer: str | None) -> None:
    encoder, head = small_encoder(), build_head(16, d_out=2)
    alone = flatclr.evaluate(encoder, small_data(), "knn", random_row=False)
    beside = flatclr.evaluate(encoder, small_data(), "knn", head=head, layer=layer, random_row=False)
    assert beside["knn"].layer == "output"
    assert beside["knn"].scores == alone["knn"].scores


def test_transfer_fine_tunes_the_output_only() -> None:
    options = {"transfer_data": small_data(), "random_row": False}
    probed = flatclr.evaluate(small_encoder(), small_data(), "transfer", layer="all", **options)  # type: ignore[arg-type]
    assert {row.variant for row in probed.rows} == {"linear"}
    whole = flatclr.evaluate(small_encoder(), small_data(), "transfer", layer="output", **options)  # type: ignore[arg-type]
    assert [(row.variant, row.layer) for row in whole.rows] == [("linear", "output"), ("finetune", "output")]


def test_a_protocol_that_lacks_images_leaves_the_others_alone() -> None:
    images, labels = pictures(180, seed=0)
    kept = torch.cat([(labels == 0).nonzero()[:, 0], (labels == 1).nonzero()[:1, 0]])
    rare = Dataset("rare", ResidentImages(images[kept], labels[kept], CLASSES[:2], name="train"), None)
    few = ResidentImages(images[kept][-2:], labels[kept][-2:], CLASSES[:2], name="test")
    found = flatclr.evaluate(
        small_encoder(), Dataset("rare", rare.train, few), "all", transfer_data=rare, draws=1, random_row=False
    )
    skipped = dict(found.skipped)
    assert skipped.keys() == {"semi", "transfer", "retrieval", "geometry", "mi"}
    assert "3 training images of every class for 10% of the labels, got 1 of level" in skipped["semi"]
    assert "no test images in rare" in skipped["transfer"]
    assert "at least 8 images, got 2" in skipped["mi"]
    assert {row.protocol for row in found.rows} == {"knn", "linear", "finetune"}


def test_a_class_without_training_images_is_named_before_the_work() -> None:
    images, labels = pictures(90, seed=0)
    classes = (*CLASSES, "none")
    data = Dataset("gap", *(ResidentImages(images, labels, classes, name=name) for name in ("train", "test")))
    found = flatclr.evaluate(small_encoder(), data, ["semi", "knn"], random_row=False)
    assert "got 0 of none" in dict(found.skipped)["semi"]


def test_geometry_of_one_class_has_no_simplex() -> None:
    images, _ = pictures(60, seed=0)
    data = Dataset("one", ResidentImages(images, torch.zeros(60).long(), ("a",), name="one"), None)
    found = flatclr.evaluate(small_encoder(), data, "geometry", random_row=False)
    assert "simplex_etf_distance" not in found["geometry"].scores


def test_results_are_written_after_each_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise ValueError("stop")

    monkeypatch.setattr(finetuning, "finetune", broken)
    with pytest.raises(ValueError, match="stop"):
        flatclr.evaluate(small_encoder(), small_data(), ["knn", "finetune"], out=tmp_path, random_row=False)
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["knn"]


def two_clouds(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(samples) % 2
    return torch.randn(samples, 4, generator=generator) + 0.8 * labels.unsqueeze(1), labels


def test_retrieval_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    trials, samples = 60, 120

    def precision(z: Tensor, labels: Tensor) -> float:
        return retrieve(z, labels).average_precision_N.mean().item()

    truth = sum(precision(*two_clouds(samples, generator)) for _ in range(600)) / 600
    covered = 0
    for trial in range(trials):
        z, labels = two_clouds(samples, generator)
        score = jackknife(
            lambda rows, z=z, labels=labels: {"map": precision(z[rows], labels[rows])}, samples, seed=trial
        )  # type: ignore[misc]
        covered += score["map"].low <= truth <= score["map"].high
    # three standard errors of a share of 0.95
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_retrieval_has_the_interval_of_the_jackknife(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    find = frozen.retrieve

    def counted(z: Tensor, labels: Tensor, **options: object) -> object:
        seen.append(len(labels))
        return find(z, labels, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(frozen, "retrieve", counted)
    found = flatclr.evaluate(small_encoder(), small_data(), "retrieval", random_row=False)
    assert len(seen) == 21
    assert max(seen[1:]) < 90
    assert all(0 <= score.low <= score.high <= 1 for score in found["retrieval"].scores.values())


def test_the_halves_of_the_pool_stay_when_samples_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    z_a = torch.randn(64, 8, generator=generator)
    z_b = z_a + torch.randn(64, 8, generator=generator)
    z_b[1::2] = torch.randn(32, 8, generator=generator)  # the halves are nothing alike
    chooses = torch.arange(64) % 2 == 0
    whole = pool_mi_nats(z_a, z_b, beta=8.0, chooses=chooses)
    rows = torch.arange(1, 64)  # every parity flips
    left = pool_mi_nats(z_a[rows], z_b[rows], beta=8.0, chooses=chooses[rows])
    assert left["pool_best_beta"] == whole["pool_best_beta"]
    assert left["pool_mi_best_nats"] == pytest.approx(whole["pool_mi_best_nats"], abs=0.1)
    assert pool_mi_nats(z_a[rows], z_b[rows], beta=8.0)["pool_mi_best_nats"] > whole["pool_mi_best_nats"] + 0.5


def test_mi_intervals_cover_the_mean_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    trials, samples, chooses = 40, 160, torch.arange(160) % 2 == 0

    def views() -> tuple[Tensor, Tensor]:
        z = torch.randn(samples, 6, generator=generator)
        return z, z + torch.randn(samples, 6, generator=generator)

    def bound(z_a: Tensor, z_b: Tensor, rows: Tensor) -> dict[str, float]:
        return pool_mi_nats(z_a[rows], z_b[rows], beta=4.0, chooses=chooses[rows])

    truth = sum(bound(*views(), torch.arange(samples))["pool_mi_best_nats"] for _ in range(200)) / 200
    covered = 0
    for trial in range(trials):
        pair = views()
        score = jackknife(lambda rows, pair=pair: bound(*pair, rows), samples, seed=trial)["pool_mi_best_nats"]  # type: ignore[misc]
        covered += score.low <= truth <= score.high
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_student_quantiles_are_scipys_at_every_number_of_degrees() -> None:
    degrees = [*range(1, 60), 100, 1000]
    assert [intervals.student(n) for n in degrees] == pytest.approx([stats.t.ppf(0.975, n) for n in degrees], abs=6e-4)


def test_a_layer_before_an_in_place_activation_is_probed_as_it_was() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten())
    data = small_data()
    found = features.compute_features(module, data.train, lambda x: x.float() / 255, layers=("0",), device=CPU)["0"]  # type: ignore[arg-type]
    with torch.no_grad():
        wanted = module[0](data.train.images.float() / 255).mean((2, 3))  # type: ignore[union-attr]
    assert torch.allclose(found, wanted, atol=1e-6)
    assert (found < 0).any()


def test_maps_with_channels_last_are_averaged_over_positions() -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Identity())
    data = small_data()

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1)

    first, last = (
        features.compute_features(encoder, data.train, lambda x: x.float() / 255, device=CPU)["output"]  # type: ignore[arg-type]
        for encoder in (module, nn.Sequential(module, Last()))
    )
    assert torch.allclose(first, last, atol=1e-6)


@pytest.mark.parametrize("protocol", ["knn", "linear", "retrieval", "geometry", "mi", "finetune"])
def test_an_encoder_that_gives_nan_is_refused_in_one_line(protocol: str) -> None:
    encoder = small_encoder()
    with torch.no_grad():
        next(encoder.parameters()).fill_(math.nan)
    with pytest.raises(
        ValueError, match="features of train at layer 'output' must be finite, got NaN or Inf"
    ) as caught:
        flatclr.evaluate(encoder, small_data(), protocol, random_row=False)
    assert "\n" not in str(caught.value)


def test_constant_features_are_only_centred_at_real_size() -> None:
    rows = torch.randn(50_000, 2, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 7.3
    scaling = Scaling.of(rows)
    assert scaling.mean_d[1] == rows[0, 1]
    assert scaling.deviation_d[1] == 1
    assert fit_linear(rows, (rows[:, 0] > 0).long(), classes=2, l2=0.01).logits(rows).isfinite().all()


def test_test_labels_go_by_name() -> None:
    images, labels = pictures(90, seed=1)
    kept = labels != 0
    numbers = labels[kept] - 1  # a folder without the first class counts the others from 0
    found = flatclr.evaluate(
        small_encoder(), with_test_part(images[kept], numbers, CLASSES[1:]), ["linear"], random_row=False
    )
    assert found["linear"].scores["top1"].value > 0.9


def test_a_test_class_that_training_does_not_know_is_one_line() -> None:
    images, labels = pictures(90, seed=1)
    labels[0] = 3
    data = with_test_part(images, labels, (*CLASSES, "new"))
    with pytest.raises(ValueError, match="must be in the training images, got 'new' in pictures's test part only"):
        flatclr.evaluate(small_encoder(), data, "knn")


@pytest.mark.parametrize("layer", ["all", "layer2", None])
def test_images_of_the_wrong_size_are_one_line_at_every_layer(layer: str | None) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(100, 2))
    with pytest.raises(ValueError, match=r"must take images \[1, 12, 12\]") as caught:
        flatclr.evaluate(module, small_data(), "knn", layer=layer)
    assert "\n" not in str(caught.value)


def test_too_little_memory_is_not_taken_for_a_wrong_size() -> None:
    def hungry(_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ValueError, match="2 images of train must fit into the memory of cpu, got too little"):
        flatclr.evaluate(hungry, small_data(), "knn")


def test_an_encoder_in_half_precision_is_evaluated() -> None:
    found = flatclr.evaluate(small_encoder().bfloat16(), small_data(), ["knn", "finetune"], random_row=False)
    assert found["knn"].best.value > 0.9


def test_a_run_on_data_of_its_own_is_not_measured_on_others(tmp_path: Path) -> None:
    data = open_dataset()
    assert isinstance(data.train, ResidentImages)
    own = Dataset("mine", data.train.subset(torch.arange(64), "train"), None)
    run = flatclr.train(config(tmp_path / "run", 2), data=own).path
    with pytest.raises(ValueError, match=r"trained on 'mine', got 'fashion.*' by default; pass --data"):
        flatclr.evaluate(run, protocol="knn")
    assert flatclr.evaluate(run, own, "geometry", random_row=False).rows


def test_data_are_looked_for_where_the_run_found_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = flatclr.train(config(tmp_path / "run", 2, data_dir=str(tmp_path))).path
    asked: list[object] = []

    def opened(spec: object, **options: object) -> Dataset:
        asked.append(options["data_dir"])
        return open_dataset()

    monkeypatch.setattr(evaluator, "open_dataset", opened)
    flatclr.evaluate(run, protocol="geometry", random_row=False)
    assert asked == [str(tmp_path)]


def test_weights_from_elsewhere_may_have_any_name_and_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = pictures(150, seed=0)
    np.savez(tmp_path / "p.npz", images=images.numpy(), labels=labels.numpy())
    state = build_encoder("cnn", channels=1, image_size=12).state_dict()
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    arguments = ["--architecture", "cnn", "--mean", "0.25", "--std", "0.5", "--data", tmp_path / "p.npz", "--json"]
    with pytest.raises(SystemExit, match="0"):
        flatclr_eval(monkeypatch, "eval", tmp_path / "model.safetensors", "--protocol", "geometry", *arguments)
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "tensors loaded" in end["weights"]
    written = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    assert written["normalisation"] == {"mean": [0.25], "std": [0.5]}
    assert written["rows"][0]["seed"] == 0
    with pytest.raises(SystemExit, match="2"):
        flatclr_eval(monkeypatch, "eval", tmp_path / "model.safetensors", "--mean", "a")
    assert "--mean and --std must be numbers" in capsys.readouterr().err


def test_a_part_changed_after_building_is_encoded_anew(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, data=small_data(), protocol="geometry", random_row=False, cache=tmp_path)
    knn = partial(flatclr.evaluate, data=small_data(), protocol="knn", random_row=False, cache=tmp_path)
    run(small_encoder())
    knn(small_encoder())
    files = len(list(tmp_path.iterdir()))
    changed = small_encoder()
    changed.layer4.act = nn.Tanh()  # type: ignore[assignment]
    knn(changed)
    assert len(list(tmp_path.iterdir())) == 2 * files


def test_results_of_callables_are_never_mixed(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, data=small_data(), out=tmp_path)
    run(lambda x: x.flatten(1), protocol="knn")
    earlier = (tmp_path / "results.json").read_text()
    second = run(lambda x: -x.flatten(1), protocol=["retrieval", "geometry"])
    found = read_results(tmp_path)
    assert found is not None
    assert [row.protocol for row in found.rows] == ["retrieval", "geometry"]
    (kept,) = tmp_path.glob("results-*.json")
    assert kept.name == second.set_aside
    assert kept.read_text() == earlier


def test_data_of_the_same_name_have_rows_of_their_own(tmp_path: Path) -> None:
    run = partial(flatclr.evaluate, small_encoder(), protocol="knn", out=tmp_path, random_row=False)
    run(small_data())
    images, labels = pictures(60, seed=9)
    run(with_test_part(images, labels, CLASSES))
    found = read_results(tmp_path)
    assert found is not None
    assert len({row.data_sha256 for row in found.rows}) == 2
    ticks = [tick.get_text() for tick in draw(found).axes[0].get_yticklabels()]
    assert ticks == ["knn on pictures"] * 2


def test_data_are_hashed_once_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    fingerprint = ResidentImages.fingerprint
    monkeypatch.setattr(ResidentImages, "fingerprint", lambda self: hashed.append(self.name) or fingerprint(self))
    flatclr.evaluate(small_encoder(), small_data(), ["knn", "linear", "retrieval"], cache=tmp_path)
    assert sorted(hashed) == ["test", "train"]


@pytest.mark.parametrize("kind", ["closure", "partial", "method", "attribute"])
def test_modules_inside_a_callable_stay_as_they_were(kind: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Dropout(0.5)).train()

    class Holder:
        def __init__(self) -> None:
            self.module = module

        def __call__(self, x: Tensor) -> Tensor:
            out: Tensor = self.module(x)
            return out

    def through(inner: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = inner(x)
        return out

    before = {name: value.clone() for name, value in module.state_dict().items()}
    callables = {
        "closure": lambda x: module(x),
        "partial": partial(through, module),
        "method": module.forward,
        "attribute": Holder(),
    }
    flatclr.evaluate(callables[kind], small_data(), "knn")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())


def test_random_weights_seed_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded, encoder = list[int](), small_encoder()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    flatclr.evaluate(encoder, small_data(), ["knn", "finetune"])
    assert seeded == []


def test_a_run_on_pairs_says_which_encoder_to_pass(tmp_path: Path) -> None:
    pairs = Dataset("pairs", PairedArrays(torch.randn(32, 5), torch.randn(32, 4)), None)
    settings = config(tmp_path / "run", 2, encoder="auto", encoder_options={})
    run = flatclr.train(settings, data=pairs).path
    with pytest.raises(ValueError, match=r"got a run on pairs .*; pass .*encoder_x or encoder_y"):
        flatclr.evaluate(run, small_data())
    with pytest.raises(ValueError, match=r"must take images, got .*encoder_x for rows of 5 numbers"):
        flatclr.evaluate(run / "encoder_x", small_data())


def test_a_run_with_a_module_of_ones_own_loads_into_one(tmp_path: Path) -> None:
    def module() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 6))

    run = flatclr.train(config(tmp_path / "run", 2), data=small_data(), encoder=module()).path
    with pytest.raises(ValueError, match=r"or evaluate\(path, into=module\)"):
        flatclr.evaluate(run, small_data())
    assert flatclr.evaluate(run, small_data(), "knn", into=module()).rows


def test_digits_are_data_like_any_other() -> None:
    found = flatclr.evaluate(small_encoder(), "digits", "knn", random_row=False)
    assert found["knn"].data == "digits"
    assert found["knn"].best.value > 0.5


def unbalanced_training() -> Dataset:
    images, labels = pictures(240, seed=0)
    kept = torch.cat([(labels == number).nonzero()[:count, 0] for number, count in enumerate((80, 40, 40))])
    train = ResidentImages(images[kept], labels[kept], CLASSES, name="train")
    return Dataset("leaning", train, small_data().test)


def test_training_counts_decide_the_headline() -> None:
    found = flatclr.evaluate(small_encoder(), unbalanced_training(), ["knn", "semi"], draws=1, random_row=False)
    assert found["knn"].headline == found["semi"].headline == "mean_per_class"


def test_every_draw_from_scratch_starts_from_weights_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: dict[str, set[str]] = {"trained": set(), "random": set()}
    encoder = small_encoder()
    own = features.weights_digest(encoder)

    def watched(subject: Subject, *_: object, **__: object) -> Tensor:
        digest = features.weights_digest(subject.module)
        starts["trained" if digest == own else "random"].add(digest)
        return torch.zeros(90, 3)

    monkeypatch.setattr(finetuning, "finetune", watched)
    flatclr.evaluate(encoder, small_data(), "semi", draws=3, seed=5)
    assert len(starts["trained"]) == 1
    assert len(starts["random"]) == 3


def test_fine_tuning_learns_and_few_labels_beat_training_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "Recipe", partial(Recipe, epochs=1, fewest_steps=100, batch_size=32))
    monkeypatch.setattr(finetuning, "LABEL_SHARES", (0.01,))
    encoder, head = small_encoder().train(), nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    images, labels = faded(600, seed=7)
    for start in range(0, 6000, 100):  # taught what stripes are, on other images
        part = slice(start % 600, start % 600 + 100)
        views = (images[part].float() / 255 - 0.5) / 0.5
        loss = nn.functional.cross_entropy(head(encoder(views)), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sources = (ResidentImages(*faded(n, seed=n), CLASSES, name=str(n)) for n in (240, 300))
    found = flatclr.evaluate(encoder, Dataset("faded", *sources), ["finetune", "semi"], draws=3)
    scratch = found.random_beside(found["semi"])
    assert scratch is not None
    assert found["semi"].best.low > scratch.best.high
    whole = found.random_beside(found["finetune"])
    assert whole is not None
    assert whole.best.low > 0.5  # random weights, and yet far above a third: training taught them


def faded(samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """The same stripes, hard to see: a part of the contrast, in noise."""
    images, labels = pictures(samples, seed=seed)
    noise = torch.randint(0, 60, images.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return (0.6 * images.float()).to(torch.uint8) + noise, labels
