"""Files that cannot be reached are no damaged images; more damaged ones than allowed stop a run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flatclr.checkpoint import load_checkpoint
from flatclr.cli.main import app
from flatclr.data.opening import open_dataset
from flatclr.data.sources import FileImages, SkippedImagesWarning, UnusableImagesError, lost
from flatclr.training.config import TrainConfig
from flatclr.training.display import JsonLines
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.events import Event, Logged, Started, Warned
from flatclr.training.trainer import train
from tests.support.images import color_png, shorten
from tests.support.training import assert_same
from tests.support.training_worker import config, network_of

pytestmark = pytest.mark.usefixtures("_nowhere_else")


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "PAUSES_S", (0.01, 0.01))


def folder_of(path: Path, count: int = 40) -> Path:
    for i in range(count):
        color_png(path / f"{i:03}.png", size=12)
    return path


def test_a_file_that_comes_back_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [color_png(tmp_path / f"{i}.png") for i in range(3)]
    source = FileImages(sorted(tmp_path.glob("*.png")))
    (tmp_path / "1.png").rename(tmp_path / "away")
    monkeypatch.setattr(lost.time, "sleep", lambda _: (tmp_path / "away").rename(tmp_path / "1.png"))
    assert np.array_equal(source.batch(torch.arange(3)).numpy(), np.stack(images))
    assert source.skipped == []


def test_a_missing_file_is_named_and_no_other_image_stands_in(tmp_path: Path) -> None:
    source = FileImages(sorted(folder_of(tmp_path, 4).glob("*.png")))
    (tmp_path / "002.png").unlink()
    with pytest.raises(UnusableImagesError, match=r"got 1 of 4 that cannot be reached, the first .*002\.png \(No such"):
        source.batch(torch.arange(4))
    assert source.skipped == []


def test_a_run_whose_files_vanish_stops_with_a_checkpoint_and_goes_on_when_they_are_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder_of(tmp_path / "images")
    streamed = {"data": data, "resident_gib": 0, "image_size": 12, "eval_samples": 8, "workers": 1}
    whole = train(config(tmp_path / "whole", 12, **streamed)).path

    def lose(event: Event) -> None:
        if isinstance(event, Logged) and event.step == 2:
            data.rename(tmp_path / "away")

    settings = config(tmp_path / "run", 12, log_every=1, checkpoint_every=100, **streamed)
    with pytest.raises(TrainingStoppedError, match=r"cannot be reached.*put them back, then go on with --resume .*run"):
        train(settings, on_event=[lose, JsonLines()])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["kind"], last["reason"]) == ("stopped", None)
    assert load_checkpoint(tmp_path / "run" / "checkpoint").step == last["step"] >= 2
    (tmp_path / "away").rename(data)
    train(TrainConfig(), resume=tmp_path / "run")
    assert_same(network_of(tmp_path / "run"), network_of(whole))


def test_damaged_images_of_a_stream_are_told_as_events_and_too_many_stop_the_run(tmp_path: Path) -> None:
    data, heard = folder_of(tmp_path / "images"), list[Event]()
    streamed = {"data": data, "resident_gib": 0, "image_size": 12, "eval_samples": 8, "workers": 1, "log_every": 1}
    settings = config(tmp_path / "run", 40, **streamed)

    def damage(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Logged) and event.step in (2, 12):
            for image in sorted(data.iterdir())[:: 20 if event.step == 2 else 3]:
                shorten(image, by=200)

    with pytest.raises(TrainingStoppedError, match=r"at most 0\.1 of its images unreadable, got .*--max-bad-images"):
        train(settings, on_event=[damage])
    said = [event.message for event in heard if isinstance(event, Warned)]
    assert any(re.search("more images? (is|are) damaged", message) and ".png: " in message for message in said)


def test_a_run_that_stopped_at_too_many_damaged_images_goes_on_when_more_are_allowed(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "images")
    for image in sorted(data.iterdir())[::3]:
        shorten(image, by=200)  # its header is whole
    settings = config(tmp_path / "run", 20, data=data, resident_gib=0, image_size=12, eval_samples=8, workers=1)
    heard = list[Event]()  # who listens is told by events, not by warnings
    with pytest.raises(TrainingStoppedError, match=r"allow more with --max-bad-images, then go on with --resume .*run"):
        train(settings, on_event=[heard.append])
    with pytest.raises(TrainingStoppedError, match=r"at most 0\.2 of its images unreadable"):
        train(settings.changed(max_bad_images=0.2), auto_resume=True, on_event=[heard.append])
    done = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "--max-bad-images", "0.9", "--json"])
    assert done.exit_code == 0, done.output
    with pytest.raises(ValueError, match=r"max_bad_images must be in the config of a run that begins, got 0\.5"):
        train(settings, max_bad_images=0.5)


def test_new_damage_of_one_part_is_told_apart_from_the_known_damage_of_the_other(tmp_path: Path) -> None:
    parts = {part: folder_of(tmp_path / "images" / part, 24) for part in ("train", "test")}
    (parts["test"] / "003.png").write_text("no image")
    heard = list[str]()

    def damage(event: Event) -> None:
        if isinstance(event, Warned):
            heard.append(event.message)
        if isinstance(event, Started):
            shorten(parts["train"] / "005.png", by=200)

    streamed = {"resident_gib": 0, "image_size": 12, "eval_samples": 8, "workers": 1}
    train(config(tmp_path / "run", 6, data=tmp_path / "images", **streamed), on_event=[damage])
    (said,) = [message for message in heard if "more image is damaged" in message]
    assert said.startswith("1 more image is damaged, 2 in all; ")
    assert re.search(r"the first is .*train/005\.png: ", said)


def test_files_that_cannot_be_reached_when_their_headers_are_read_are_no_damaged_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(folder_of(tmp_path, 12).glob("*.png"))
    (tmp_path / "003.png").rename(tmp_path / "away")
    with pytest.raises(
        UnusableImagesError, match=r"got 1 of 12 that cannot be reached, the first .*003\.png \(No such"
    ):
        FileImages(paths)
    monkeypatch.setattr(lost.time, "sleep", lambda _: (tmp_path / "away").rename(tmp_path / "003.png"))
    assert len(FileImages(paths)) == 12


def test_a_link_that_leads_nowhere_is_left_out_and_counted(tmp_path: Path) -> None:
    folder_of(tmp_path / "images", 12)
    (tmp_path / "images" / "gone.png").symlink_to(tmp_path / "nowhere")
    with pytest.warns(SkippedImagesWarning, match=r"1 of 13 files .*gone\.png: a link that leads nowhere"):
        assert len(open_dataset(tmp_path / "images", test_fraction=0).train) == 12


def test_too_many_unreadable_headers_are_refused_before_any_work(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "images")
    for image in sorted(data.iterdir())[::3]:
        image.write_text("no image")
    with pytest.warns(SkippedImagesWarning), pytest.raises(UnusableImagesError, match=r"images unreadable, got 14 of"):
        train(config(tmp_path / "run", 2, data=data))
    assert not (tmp_path / "run").exists()
    with pytest.warns(SkippedImagesWarning):
        assert train(config(tmp_path / "run", 2, data=data, max_bad_images=0.5)).steps == 2


def test_pipes_and_sockets_named_like_images_are_left_out_and_counted(tmp_path: Path) -> None:
    folder_of(tmp_path / "images", 12)
    os.mkfifo(tmp_path / "images" / "pipe.png")
    (tmp_path / "images" / "null.png").symlink_to("/dev/zero")
    here = os.getcwd()
    os.chdir(tmp_path / "images")
    try:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind("socket.png")
    finally:
        os.chdir(here)
    with bound, pytest.warns(SkippedImagesWarning, match=r"3 of 15 files are no readable images"):
        data = open_dataset(tmp_path / "images", test_fraction=0)
    assert len(data.train) == 12


def test_a_pipe_in_the_place_of_a_data_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.npy", "a.npz", "a.tar"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"data must be a file or a folder, got .*{name}"):
            open_dataset(tmp_path / name)


def test_deeply_nested_folders_are_read(tmp_path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        for i in range(3):
            color_png(Path(f"{i}.png"))
    finally:
        os.chdir(here)
    try:
        assert len(open_dataset(tmp_path, test_fraction=0).train) == 3
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # Python's own removal goes down by calls


def test_names_that_are_not_utf8_train_checkpoint_and_resume(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "images", 24)
    for i, name in enumerate((b"\xff\xfe.png", b"caf\xe9.png")):
        os.rename(data / f"{i:03}.png", os.path.join(os.fsencode(data), name))
    for streamed in (0, 4):
        run = train(config(tmp_path / f"run{streamed}", 4, data=data, resident_gib=streamed, image_size=12)).path
        assert train(TrainConfig(), resume=run).steps == 4
    odd = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"b\xe4d"))
    os.rename(data, odd)
    run = train(config(tmp_path / "odd", 4, data=odd)).path
    assert train(TrainConfig(), resume=run).steps == 4
