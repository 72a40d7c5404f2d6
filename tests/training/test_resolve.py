"""What a run says and writes down of settings that were left to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import flatclr
from flatclr.runs import RunDirectory
from flatclr.training import Started, TrainConfig, train
from flatclr.training.build import build
from flatclr.training.events import Event, Progressed
from flatclr.training.resolve import chosen_settings, summary_of
from tests.support.images import color_png
from tests.support.training import paired_npz

QUICK = {"steps": 2, "batch_size": 8, "device": "cpu", "eval_start": False, "encoder_options": {"width": 4}}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(20):
        color_png(tmp_path / "my photos" / f"{2019 + i % 2}" / "a b" / f"{i}.png", size=12)
    return tmp_path / "my photos"


def test_a_run_on_photographs_says_what_it_resolved_and_writes_it_down(photos: Path, tmp_path: Path) -> None:
    told: list[Event] = []
    config = TrainConfig(data=str(photos), out=str(tmp_path / "run"), **QUICK)
    train(config, on_event=[told.append])
    started = next(event for event in told if isinstance(event, Started))
    run = RunDirectory.open(tmp_path / "run")

    assert started.summary.startswith(
        "18 images at 12 px (no labels; --labels folders if sub-folders are classes), 2 more held out, resnet18 (0."
    )
    assert started.summary.endswith("M parameters), batch 8, 2 steps an epoch, 2 in all, CPU")
    written = run.config()
    assert (written["encoder"], written["image_size"], written["labels"]) == ("resnet18", 12, "none")
    assert written["eval_samples"] == 10_000
    assert None not in (written["workers"], written["view_size"], written["checkpoint_every"], written["head_width"])
    assert (written["pairing"], written["graph"]) == ("two_view", False)
    assert {"encoder", "image_size", "labels", "pairing", "graph"} <= set(run.asked())
    assert "batch_size" not in run.asked()


def test_the_same_run_is_built_from_what_was_written_down(tmp_path: Path) -> None:
    for data in (None, str(paired_npz(tmp_path / "pairs.npz"))):
        asked = build(TrainConfig(data=data, **QUICK))
        chosen = chosen_settings(asked, tmp_path, own_data=False)
        again = build(asked.config.changed(**chosen))

        assert summary_of(again) == summary_of(asked)
        states = [parts.train_step.network.state_dict() for parts in (asked, again)]
        assert all(bool((states[0][name] == states[1][name]).all()) for name in states[0])
        assert not set(chosen_settings(again, tmp_path, own_data=False)) - {"head_width", "view_size", "image_size"}


def test_the_same_command_goes_on_with_a_run_whose_settings_were_resolved(photos: Path, tmp_path: Path) -> None:
    config = TrainConfig(data=str(photos), out=str(tmp_path / "run"), **QUICK)
    train(config)

    assert train(config, auto_resume=True).steps == 2
    with pytest.raises(ValueError, match=r"image_size must be that of the run in .*, None, got 8"):
        train(config.changed(image_size=8), auto_resume=True)


def test_an_evaluation_on_a_cpu_looks_at_fewer_images_where_the_encoder_is_costly(photos: Path) -> None:
    settings = QUICK | {"encoder_options": {}, "data": str(photos)}
    samples = [
        build(TrainConfig(encoder=encoder, image_size=size, **settings)).validation.samples
        for encoder, size in (("cnn", 12), ("resnet18", 12), ("resnet18", 224))
    ]
    assert samples[0] == 10_000 > samples[1] > samples[2] == 500


def test_an_evaluation_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatclr.training.progress.SIGN_S", 0.0)
    told: list[Event] = []
    config = TrainConfig(**(QUICK | {"eval_start": True, "eval_samples": 1000}), out=str(tmp_path / "run"))
    flatclr.train(config, on_event=[told.append])
    signs = [event for event in told if isinstance(event, Progressed)]

    assert {event.what.partition(",")[0] for event in signs} == {"evaluation", "training"}
    assert signs[0].step == 0
    assert all(event.done <= event.total for event in signs)
