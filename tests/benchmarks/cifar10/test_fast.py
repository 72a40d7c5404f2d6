"""The command for the least time to an accuracy: it looks, stamps, keeps and tells; here as a toy on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.cifar10 import data, fast, kept
from benchmarks.cifar10.plan import TINY
from flatclr.training.recipes import RECIPES

LONGER = "python -m benchmarks.cifar10.fast --seed {} --epochs 9 --name longer"


def options(out: Path, *more: str) -> list[str]:
    return ["--plan", "tiny", "--out", str(out / "runs"), "--results", str(out / "kept"), *more]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two runs left, one of them on held-out images with larger views at the end."""
    folder = tmp_path_factory.mktemp("fast")
    end = ("--held-out", "--end-size", "20", "--end-views", "2", "--end-share", "0.25", "--set", "recalibrate=true")
    end = (*end, "--shared")
    assert fast.main(options(folder, "--epochs", "2")) == 0
    assert fast.main(options(folder, "--name", "end", *end)) == 0
    return folder


def clock(home: Path, name: str) -> list[dict[str, object]]:
    return kept.KeptRun(home / "kept" / kept.RUNS / name).clock


def test_every_look_is_stamped_with_the_time_since_the_command(home: Path) -> None:
    rows = clock(home, "fast-s0")
    assert [row["kind"] for row in rows] == ["process", "look", "look", "look", "look", "end"]
    seconds = [float(str(row["seconds"])) for row in rows]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    assert seconds[-1] <= fast.since_start()
    assert [row["step"] for row in rows[1:5]] == [6, 9, 11, 12]
    assert all(0 <= float(str(row["knn10"])) <= 1 for row in rows[1:5])


def test_raw_metrics_and_settings_are_kept(home: Path) -> None:
    found = kept.KeptRun(home / "kept" / kept.RUNS / "end-held-out-s0")
    assert found.logs[-1]["views_per_second"] > 0
    assert found.evaluations[-1]["step"] == found.logs[-1]["step"] == 16  # 4 epochs of 128 images, 32 at a time
    assert found.config.size_schedule == [[0, 14], [3.0, [[2, 20]]]]
    assert found.config.recalibrate
    assert found.processes[0]["command"].startswith("python -m benchmarks.cifar10.fast --plan tiny")


def test_the_table_says_when_goals_were_reached(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [float(str(row["knn10"])) for row in clock(home, "fast-s0")[1:5]]
    monkeypatch.setattr(fast, "GOALS", (min(looks), 0.999))
    text = fast.write_table(home / "kept").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| fast-s0")]
    first = next(row for row in clock(home, "fast-s0") if row["kind"] == "look" and row["knn10"] >= min(looks))  # type: ignore[operator]
    assert f"| {float(str(first['seconds'])):.0f} | not reached |" in line
    assert "| held out |" in text
    assert text.count("python -m benchmarks.cifar10.fast --plan tiny") == 2


def test_runs_that_an_aim_lacks_are_named_with_their_commands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = fast.Aim("fast", 0.001, 90, "--plan tiny")
    monkeypatch.setattr(fast, "AIMS", (reached, fast.Aim("longer", 0.999, 300, "--epochs 9")))
    text = fast.write_table(home / "kept").read_text()
    first, last = clock(home, "fast-s0")[1], clock(home, "fast-s0")[4]
    seconds, accuracy = float(str(first["seconds"])), 100 * float(str(last["knn10"]))
    assert f"| fast | 0.1 | 90 | 1 of 3 | {seconds:.0f} | {accuracy:.2f} | " in text
    assert "| longer | 99.9 | 300 | 0 of 3 |  |  |  |" in text
    missing = text.partition("Still to be run:")[2].partition("```sh\n")[2].partition("\n```")[0].splitlines()
    assert missing == [reached.command(1), reached.command(2), *(LONGER.format(seed) for seed in range(3))]
    for command in missing:
        assert fast._parser().parse_args(command.split()[3:]).seed in range(3)


def test_a_run_that_shared_its_gpu_fills_no_place_of_an_aim(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "AIMS", (fast.Aim("end-held-out", 0.001, 90, "--plan tiny"),))
    text = fast.write_table(home / "kept").read_text()
    assert "| end-held-out | 0.1 | 90 | 0 of 3 |" in text
    assert "--seed 0" in text.partition("Still to be run:")[2].partition("```sh\n")[2].partition("\n```")[0]


def test_nine_thousand_and_thirty_of_ten_thousand_reach_the_goal() -> None:
    """In float32 their mean is 0.902999997."""
    right = torch.arange(10_000) < 9_030
    assert fast._first([{"knn10": fast.share_of(right), "seconds": 290.0}], 0.903) == "290"
    assert fast._first([{"knn10": fast.share_of(right[1:]), "seconds": 290.0}], 0.903) == "not reached"


def test_the_last_look_at_held_out_images_is_taken_with_both_statistics(home: Path) -> None:
    """Of a run that recalibrates anyway, so that the two agree."""
    assert not any("whole" in row for row in clock(home, "fast-s0"))
    *before, last = [row for row in clock(home, "end-held-out-s0") if row["kind"] == "look"]
    assert not any("whole" in row for row in before)
    assert last["whole"] == last["knn10"]
    text = fast.write_table(home / "kept").read_text()
    assert f"| {100 * float(str(last['knn10'])):.2f} | {100 * float(str(last['whole'])):.2f} |" in text


def test_the_table_tells_no_times_of_a_run_that_shared_its_gpu(home: Path) -> None:
    lines = fast.write_table(home / "kept").read_text().splitlines()
    shared, alone = (next(line for line in lines if line.startswith(f"| {name}")) for name in ("end", "fast"))
    assert shared.endswith("|  |  |  |  |  |")
    assert not alone.endswith("|  |")


def test_a_look_counts_ten_equal_votes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over the test images."""
    train, test = torch.randn(40, 5), torch.randn(12, 5)
    labels, truth = torch.randint(3, (40,)), torch.randint(3, (12,))
    parts = fast.build(fast.config_of(fast._parser().parse_args(options(home)), TINY, 192))
    given = iter([(train, labels), (test, truth)])
    monkeypatch.setattr(fast.ImageValidation, "features", lambda *_: next(given))
    right = 0
    for row, label in zip(test, truth, strict=True):
        cosines = torch.nn.functional.cosine_similarity(row, train)
        votes = torch.bincount(labels[cosines.argsort(descending=True)[:10]], minlength=3)
        right += int(votes.argmax() == label)
    assert fast.ten_neighbours(parts) == pytest.approx(right / 12)


def test_held_out_images_are_those_that_rates_are_chosen_on(tmp_path: Path) -> None:
    held_out = data.dataset(TINY, None, held_out=True)
    data.prepare(TINY, tmp_path, None, held_out=True)
    stored = data.open_dataset(tmp_path / data.HELD_OUT)
    assert torch.equal(stored.test.images, held_out.test.images)  # type: ignore[union-attr]
    assert torch.equal(stored.train.images, held_out.train.images)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--name", "fast"), "a run must have a name of its own, got 'fast-s0'"),
        (("--name", "x", "--set", "compile"), "--set must be NAME=VALUE, got 'compile'"),
        (("--name", "x", "--end-size", "20", "--end-share", "2"), "--end-share must be a finite number > 0 and < 1"),
        (("--name", "x", "--views", "1"), "views_per_image must be a whole number >= 2, got 1"),
    ],
)
def test_bad_input_is_one_line(
    home: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fast.main(options(home, *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (home / "runs" / "x-s0").exists()


def test_the_full_run_is_the_recipe() -> None:
    args = fast._parser().parse_args(["--end-size", "24", "--end-share", "0.2", "--set", "compile=true"])
    config, recipe = fast.config_of(args, fast.FULL, 50_000), RECIPES["cifar10-fast"]()
    assert config.size_schedule == [[0, 16], [172.0, [[8, 24]]]]
    assert fast._differences(config) == ("view_size null, size_schedule [[0, 16], [172.0, [[8, 24]]]], compile true")
    assert json.loads(json.dumps(recipe.to_dict()["views"])) == {"crop_scale": [0.08, 1.0]}
    assert config.eval_every == recipe.epochs * 195


def test_images_trained_on_are_named_by_ten_others() -> None:
    """Against a loop that leaves each out."""
    features, labels = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    cosines = torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=2)
    right = 0
    for image in range(30):
        others = [other for other in range(30) if other != image]
        nearest = sorted(others, key=lambda other, image=image: -float(cosines[image, other]))[:10]  # type: ignore[misc]
        votes = torch.bincount(labels[nearest], minlength=3)
        right += int(votes.argmax() == labels[image])
    assert 0 < right < 30
    assert fast._by_others(features, labels) == pytest.approx(right / 30)
