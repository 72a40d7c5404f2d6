"""`make demo` as a user sees it, with a few steps: what it prints is what its files hold."""

from __future__ import annotations

import functools
import io
import json
import math
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy.special import logsumexp

import flatclr
from benchmarks import demo_gain
from flatclr.data import ResidentImages
from flatclr.models import Normalisation
from flatclr.runs import RunDirectory, new_directory

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 3
PARTS = ("train", "test")


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import demo

        yield demo


@pytest.fixture(scope="module")
def shown(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder and what was printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        quick = functools.partial(flatclr.TrainConfig, eval_samples=200)
        patch.setattr(flatclr, "TrainConfig", quick)
        few = {
            part: getattr(flatclr.data.fashion_mnist_small(), part).subset(torch.arange(200), part) for part in PARTS
        }
        few_images = flatclr.data.Dataset("few", **few)
        patch.setattr(flatclr.data, "fashion_mnist_small", lambda: few_images)
        patch.setattr(flatclr, "train", functools.partial(flatclr.train, data=few_images))
        patch.setattr(flatclr, "evaluate", functools.partial(flatclr.evaluate, data=few_images))
        patch.setattr(sys, "argv", ["demo.py", "--steps", str(STEPS), "--seed", "1", "--out", str(out)])
        demo.main()
    return out, " ".join(printed.getvalue().split())  # as one line: where the terminal wraps does not matter


def pair_rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "known_mi.jsonl").read_text().splitlines()]


def test_the_demo_leaves_pictures_a_report_and_an_encoder(shown: tuple[Path, str]) -> None:
    out, printed = shown
    for name in ("known_mi.png", "training.png", "neighbours.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert (out / "training" / "report.html").read_text().startswith("<!doctype html>")
    assert flatclr.load_encoder(out / "training")(torch.rand(2, 1, 28, 28)).shape[0] == 2
    for name in (
        "known_mi.png",
        "training.png",
        "neighbours.png",
        "training/report.html",
        "training/encoder.safetensors",
    ):
        assert str(out / name) in printed


def test_act_one_prints_the_last_reading_of_each_objective(demo: ModuleType, shown: tuple[Path, str]) -> None:
    out, printed = shown
    rows = pair_rows(out)
    assert [(row["objective"], row["step"]) for row in rows] == [
        (name, step) for name in demo.OBJECTIVES for step in range(1, STEPS + 1)
    ]
    for row in rows[STEPS - 1 :: STEPS]:
        numbers = [row[key] for key in ("batch_mi_nats", "batch_ceiling_nats", "pool_mi_nats", "pool_ceiling_nats")]
        cells = [row["objective"], *(f"{number:.2f}" for number in numbers), f"{row['beta']:.1f}"]
        assert " │ ".join(cells) in printed


def test_act_two_prints_the_accuracies_and_gauges_of_its_files(shown: tuple[Path, str]) -> None:
    out, printed = shown
    rows = RunDirectory.open(out / "training").metrics()
    assert next(row["step"] for row in rows if row["kind"] == "evaluation") == 0  # the untrained encoder
    for row in json.loads((out / "training" / "results.json").read_text())["rows"]:
        score = row["scores"][row["headline"]]
        assert f"{100 * score['value']:.1f} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]" in printed
    log = [row for row in rows if row["kind"] == "log"][-1]
    assert (
        f"Last batch: ESS {log['ess']:.2f} (target 0.25) at beta {log['beta']:.1f}; bound {log['mi_nats']:.2f} of at "
        f"most {log['ceiling_nats']:.2f} nats."
    ) in printed


def test_act_two_is_the_run_it_says(shown: tuple[Path, str]) -> None:
    config = RunDirectory.open(shown[0] / "training").config()
    expected = {
        "objective": "flatnce",
        "ess_target": 0.25,
        "temperature": None,
        "batch_size": 32,
        "views_per_image": 8,
        "view_size": 16,
        "recalibrate": True,
        "data": None,
        "seed": 1,
    }
    assert expected.items() <= config.items()


def test_a_second_demo_loses_nothing(
    shown: tuple[Path, str],
    demo: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown[0]
    before = sorted(out.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--steps", "1", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        demo.main()
    assert end.value.code == 2
    assert f"--out must not exist yet, got {out}; choose another folder" in capsys.readouterr().err
    assert sorted(out.rglob("*")) == before
    for expected in ("demo", "demo-2", "demo-3"):
        assert new_directory(tmp_path / "demo") == tmp_path / expected
        assert (tmp_path / expected).is_dir()


def test_gaussian_pairs_share_the_information_they_claim(demo: ModuleType) -> None:
    pairs = demo.GaussianPairs()
    n = 50_000
    x, y = pairs.draw(n, torch.Generator().manual_seed(0))
    rho = torch.corrcoef(torch.cat([x.T, y.T])).diagonal(pairs.dimensions)
    expected = math.sqrt(1 - math.exp(-2 * pairs.mi_nats / pairs.dimensions))  # -d/2 log(1 - rho^2) = MI
    standard_error = (1 - expected**2) / math.sqrt(n)
    assert (rho - expected).abs().max() < 4 * standard_error
    assert y.var(0).sub(1).abs().max() < 4 * math.sqrt(2 / n)


def test_pool_mi_is_info_nce_against_4096_negatives_at_a_beta_chosen_on_other_pairs(demo: ModuleType) -> None:
    import known_mi

    encoders, pairs = known_mi.TwoEncoders(20), demo.GaussianPairs()
    stats, beta = known_mi.pool_mi(encoders, pairs, seed=3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        x, y = encoders(*pairs.draw(2048, generator))
        _, negatives = encoders(*pairs.draw(4096, generator))
    x, y, negatives = (torch.nn.functional.normalize(z.double()).numpy() for z in (x, y, negatives))

    def bound(rows: slice, at: float) -> float:
        positive, negative = at * (x[rows] * y[rows]).sum(1), at * x[rows] @ negatives.T
        candidates = torch.cat([torch.tensor(positive)[:, None], torch.tensor(negative)], dim=1).numpy()
        return float((positive - logsumexp(candidates, axis=1)).mean() + math.log(4097))

    assert beta == max(known_mi.BETAS, key=lambda at: bound(slice(1024), at))
    assert stats.mi_nats.item() == pytest.approx(bound(slice(1024, None), beta), abs=1e-4)
    assert stats.ceiling_nats == pytest.approx(math.log(4097))


def test_objectives_start_from_the_same_weights_and_pairs(demo: ModuleType) -> None:
    info, flat = (next(demo.readings(name, steps=1, every=1, seed=5)) for name in list(demo.OBJECTIVES)[:2])
    assert info.batch_mi_nats == pytest.approx(flat.batch_mi_nats, abs=1e-6)
    assert info.batch_ceiling_nats == pytest.approx(math.log(8))


def test_neighbours_are_the_nearest_training_images_by_cosine(demo: ModuleType) -> None:
    import neighbours

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (30, 1, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(3, (30,), generator=generator)
    train, test = ResidentImages(images[:20], labels[:20]), ResidentImages(images[20:], labels[20:])
    plain = Normalisation((0.5,), (0.5,))
    found = neighbours.nearest("before training", torch.nn.Flatten(), train, test, plain)
    rows = images.double().flatten(1) / 255 * 2 - 1
    right = 0
    for number, image in enumerate(rows[20:]):
        cosines = torch.nn.functional.cosine_similarity(image, rows[:20])
        order = cosines.argsort(descending=True)[:5]
        assert found.index[number].tolist() == order.tolist()
        right += int((labels[order] == labels[20 + number]).sum())
    assert found.precision == pytest.approx(right / 50)
    shown = neighbours.neighbours_figure(train, test, [found, found])
    drawn = [axes for axes in shown.axes if axes.images]
    assert len(drawn) == len(set(labels[20:].tolist())) * 11  # the image, and five neighbours on each side


@pytest.mark.slow
def test_the_encoder_of_the_demo_is_at_least_six_points_above_the_untrained_one() -> None:
    row = demo_gain.measured(0)
    assert row["knn gain"] >= 6
    assert row["linear gain"] >= 4
