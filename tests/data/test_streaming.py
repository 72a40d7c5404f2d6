"""Image files reach the step in the planned order, whoever decodes them."""

import io
import os
import pickle
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import Tensor

from flatclr.checkpoint import load_checkpoint
from flatclr.data import decoding
from flatclr.data.decoding import Decoders
from flatclr.data.loading import BatchPlan, Loader
from flatclr.data.opening import open_dataset
from flatclr.data.sources import DiskFile, FileImages, SkippedImagesWarning, files
from flatclr.runs import RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.trainer import train
from tests.support.images import write_pngs

CPU = torch.device("cpu")
BY_PROCESSES = decoding.MOST_THREADS + 1  # the fewest workers that are processes


@pytest.fixture
def _small_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes also for the few images of a test."""
    monkeypatch.setattr(files, "PROCESSES_FROM", 1)


def files_in(folder: Path, workers: int) -> FileImages:
    source = open_dataset(folder, test_fraction=0).train
    assert isinstance(source, FileImages)
    source.use_workers(workers)
    return source


@pytest.mark.usefixtures("_small_is_many")
@pytest.mark.parametrize("workers", [1, 2, BY_PROCESSES, 5])
def test_batches_are_the_planned_ones_whatever_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    pixels = write_pngs(tmp_path, 70)
    source, plan = files_in(tmp_path, workers), BatchPlan(samples=70, batch_size=20, seed=3)
    assert source.decoders.processes == (workers >= BY_PROCESSES)
    for step, (images,) in Loader(source, plan, own=slice(2, 20), device=CPU).steps(1, 9):
        assert torch.equal(images, pixels[plan.indices(step)[2:20]])


def test_a_slow_batch_does_not_lose_its_turn() -> None:
    second_was_read = threading.Event()

    class Uneven:
        def batches_in_flight(self, batch_size: int) -> int:
            return 24 // batch_size

        def __len__(self) -> int:
            return 40

        def batch(self, index: Tensor) -> Tensor:
            if torch.equal(index, plan.indices(0)):
                assert second_was_read.wait(timeout=30)
            if torch.equal(index, plan.indices(1)):
                second_was_read.set()
            return index.view(-1, 1)

    plan = BatchPlan(samples=40, batch_size=4, seed=0)
    loader = Loader(Uneven(), plan, own=slice(0, 4), device=CPU)
    assert loader.readers == 6
    read = [rows.flatten() for _, (rows,) in loader.steps(0, 20)]
    assert all(torch.equal(rows, plan.indices(step)) for step, rows in enumerate(read))


@pytest.mark.usefixtures("_small_is_many")
def test_processes_decode_members_of_a_shard(tmp_path: Path) -> None:
    pixels = write_pngs(tmp_path / "images", 20)
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for path in sorted((tmp_path / "images").iterdir()):
            tar.add(path, path.name)
    source = files_in(tmp_path / "shard.tar", BY_PROCESSES)
    assert source.decoders.processes
    assert torch.equal(source.batch(torch.arange(20)), pixels)


@pytest.mark.usefixtures("_small_is_many")
def test_a_relative_folder_is_found_by_processes_started_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = write_pngs(tmp_path / "images", 18)
    source = files_in(tmp_path / "images", BY_PROCESSES)
    source.batch(torch.arange(18))  # starts them here
    source.files = [DiskFile(Path(file.name).relative_to(tmp_path)) for file in source.files]
    monkeypatch.chdir(tmp_path)
    assert torch.equal(source.batch(torch.arange(18)), pixels)


@pytest.mark.usefixtures("_small_is_many")
@pytest.mark.parametrize("workers", [2, BY_PROCESSES])
def test_a_damaged_image_has_one_stand_in_and_one_notice_in_every_batch(tmp_path: Path, workers: int) -> None:
    pixels = write_pngs(tmp_path, 40)
    whole = (tmp_path / "007.png").read_bytes()
    (tmp_path / "007.png").write_bytes(whole[: len(whole) // 2])
    source, plan = files_in(tmp_path, workers), BatchPlan(samples=40, batch_size=8, seed=0)
    expected = torch.cat([pixels[:7], pixels[8:9], pixels[8:]])
    with pytest.warns(SkippedImagesWarning) as seen:
        read = list(Loader(source, plan, own=slice(0, 8), device=CPU).steps(0, 10))
    assert all(torch.equal(images, expected[plan.indices(step)]) for step, (images,) in read)
    assert len(seen) == 1
    assert [Path(path).name for path, _ in source.skipped] == ["007.png"]


@pytest.mark.usefixtures("_small_is_many")
def test_what_pillow_is_set_to_holds_in_the_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(random).save(encoded, "JPEG")
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(encoded.getvalue()[: encoded.tell() // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    by_threads, by_processes = (files_in(tmp_path, n).batch(torch.tensor([0, 1])) for n in (2, BY_PROCESSES))
    assert torch.equal(by_threads, by_processes)
    assert by_threads.float().std() > 1


@pytest.mark.usefixtures("_small_is_many")
def test_a_decoding_process_that_dies_is_named(tmp_path: Path) -> None:
    write_pngs(tmp_path, 4)
    source = files_in(tmp_path, BY_PROCESSES)
    source.batch(torch.arange(4))
    (process,) = source.decoders._hired().started
    process.child.kill()
    process.child.wait()
    expected = r"a process that decodes images must stay alive, got exit code -9 .*000\.png; set fewer workers"
    with pytest.raises(ChildProcessError, match=expected):
        process.decode(source.files, torch.empty(4, 3, 12, 12, dtype=torch.uint8).numpy())


@pytest.mark.usefixtures("_small_is_many")
@pytest.mark.parametrize("end", ["close", "forget"])
def test_decoding_processes_end_with_their_source(tmp_path: Path, end: str) -> None:
    pixels = write_pngs(tmp_path, 40)
    source = files_in(tmp_path, BY_PROCESSES)
    source.batch(torch.arange(40))
    children = [process.child for process in source.decoders._hired().started]
    assert children
    assert all(child.poll() is None for child in children)
    if end == "close":
        source.decoders.close()
        assert torch.equal(source.batch(torch.arange(40)), pixels)  # by others
    else:
        del source
    assert all(child.returncode == 0 for child in children)


def test_few_images_or_workers_start_no_process(tmp_path: Path) -> None:
    write_pngs(tmp_path, 4)
    assert not files_in(tmp_path, 16).decoders.processes
    assert not Decoders(decoding.MOST_THREADS, processes=True).processes


@pytest.mark.parametrize(("batch", "expected"), [(256, 2), (64, 8), (48, 11), (8, 32), (1, 32), (10_000, 1)])
def test_sixteen_workers_have_two_jobs_each(tmp_path: Path, batch: int, expected: int) -> None:
    write_pngs(tmp_path, 2)
    assert files_in(tmp_path, 16).batches_in_flight(batch) == expected


def run_on(folder: Path, out: Path, **settings: Any) -> Path:
    config = TrainConfig(
        data=str(folder),
        encoder="cnn",
        encoder_options={"width": 8},
        batch_size=8,
        steps=6,
        log_every=3,
        eval_samples=40,
        device="cpu",
        out=str(out),
    )
    return train(config.changed(**settings)).path


@pytest.mark.usefixtures("_small_is_many")
def test_streamed_images_train_the_encoder_of_resident_ones(tmp_path: Path) -> None:
    write_pngs(tmp_path / "images", 50)
    resident = run_on(tmp_path / "images", tmp_path / "resident")
    weights = load_checkpoint(resident / "checkpoint").state["train_step"]["network"]
    assert not any("data_wait_share" in row for row in RunDirectory(resident).metrics())
    for workers in (1, BY_PROCESSES):
        out = tmp_path / f"streamed{workers}"
        streamed = run_on(tmp_path / "images", out, workers=workers, resident_gib=0.0)
        torch.testing.assert_close(
            load_checkpoint(streamed / "checkpoint").state["train_step"]["network"], weights, rtol=0, atol=0
        )
        shares = [row["data_wait_share"] for row in RunDirectory(streamed).metrics() if row["kind"] == "log"]
        assert len(shares) == 2
        assert all(0 <= share <= 1 for share in shares)


def test_image_files_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write_pngs(tmp_path, 3)
    source = files_in(tmp_path, BY_PROCESSES)
    copy = pickle.loads(pickle.dumps(source))
    assert torch.equal(copy.batch(torch.tensor([0])), source.batch(torch.tensor([0])))


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="needs priorities of processes")
@pytest.mark.usefixtures("_small_is_many")
def test_decoding_processes_let_the_training_process_go_first(tmp_path: Path) -> None:
    write_pngs(tmp_path, 40)
    source = files_in(tmp_path, BY_PROCESSES)
    source.batch(torch.arange(40))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    children = [process.child.pid for process in source.decoders._team.started]
    assert children
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in children} == {min(own + decoding.NICENESS, 19)}
    source.decoders.close()
