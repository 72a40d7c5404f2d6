"""Image files reach the step in the planned order, whoever decodes them; and runs that start at once do not meet."""

import io
import json
import os
import pickle
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import Tensor

import flatclr
from benchmarks import shared_gpu, streaming_gpu
from flatclr.checkpoint import load_checkpoint
from flatclr.data import decoding
from flatclr.data.decoding import Decoders
from flatclr.data.loading import BatchPlan, Loader
from flatclr.data.opening import open_dataset
from flatclr.data.sources import DiskFile, FileImages, SkippedImagesWarning, files
from flatclr.runs import RunDirectory, new_directory
from flatclr.training import pace
from flatclr.training.config import TrainConfig
from flatclr.training.pace import Pace
from flatclr.training.trainer import train

CPU = torch.device("cpu")
BY_PROCESSES = decoding.MOST_THREADS + 1  # the fewest workers that are processes


@pytest.fixture
def _small_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes also for the few images of a test."""
    monkeypatch.setattr(files, "PROCESSES_FROM", 1)


def write_pngs(folder: Path, count: int, size: int = 12) -> Tensor:
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i:03d}.png")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


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


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=made, perf_counter=made))
    return made


def batches_every(seconds: float, clock: Clock) -> Iterator[tuple[Tensor, ...]]:
    for _ in range(4):
        clock.now += seconds
        yield (torch.zeros(1),)


def test_the_share_of_time_without_data_is_that_of_the_clock(clock: Clock) -> None:
    measured = Pace(batch_size=10, device=CPU)
    for _ in measured.timed(batches_every(1.0, clock)):
        clock.now += 3.0  # the step
    assert measured.row(4) == {"images_per_second": 40 / 16, "data_wait_share": 0.25}
    measured.restart(4)
    clock.now += 2.0
    assert measured.row(5) == {"images_per_second": 5.0, "data_wait_share": 0.0}


def test_waiting_while_the_device_has_earlier_steps_to_do_does_not_count(clock: Clock) -> None:
    class Event:
        def elapsed_time(self, end: Any) -> float:
            return 250.0  # ms without work

        def synchronize(self) -> None:
            clock.now += 0.5  # the device catches up

    class OnDevice(Pace):
        def _mark(self) -> Any:
            return Event()

    measured = OnDevice(batch_size=1, device=CPU)
    list(measured.timed(batches_every(1.0, clock)))
    assert clock.now == 4 * 1.0 + 4 * 0.5  # every batch but the first waits for the device, and so does the end
    assert measured.row(4)["data_wait_share"] == pytest.approx(4 * 0.25 / clock.now)


def decoded_row(workers: int, rate: int, busy: float = 0.1) -> dict[str, Any]:
    return {"workers": workers, "by": "processes", "images/s": rate, "cores busy in the main process": busy}


def trained_row(images: str, rate: int, waits: float, replay: float | str = "") -> dict[str, Any]:
    row = {"batch": 64, "images": images, "step": "graph", "images/s": rate, "waiting for data %": waits}
    return {**row, "ms of a replay": replay}


@pytest.mark.parametrize(
    ("streamed", "waits", "expected"),
    [
        (500, 45.0, r"reaches 50% of resident images and is bound by data, for which it waits 45 % .* alone gives 900"),
        (990, 0.5, r"reaches 99% of resident images and is bound by the step: it waits for data 0\.5 %"),
        (700, 1.0, r"reaches 70% .* not waiting for data \(1 %\), yet slower"),
    ],
)
def test_the_benchmark_says_what_bounds_training(streamed: int, waits: float, expected: str) -> None:
    trained = [trained_row("streamed", streamed, waits), trained_row("resident", 1000, 0.0)]
    said, _ = streaming_gpu.what_bounds([decoded_row(8, 800), decoded_row(16, 900)], trained)
    assert re.search(expected, said)


@pytest.mark.parametrize(
    ("replay", "expected"),
    [
        ("", "beside decoding the steps themselves take longer"),
        (85.0, "takes 91.43 ms instead of 64.00, its replay 85 instead of 60: lost in the replay"),
        (61.0, "its replay 61 instead of 60: lost between replays, on the host and in copying"),
    ],
)
def test_the_benchmark_says_where_a_slower_step_loses_its_time(replay: float | str, expected: str) -> None:
    trained = [trained_row("streamed", 700, 1.0, replay), trained_row("resident", 1000, 0.0, 60.0)]
    said, _ = streaming_gpu.what_bounds([decoded_row(8, 800), decoded_row(16, 900)], trained)
    assert expected in said


@pytest.mark.parametrize(
    ("rate", "busy", "expected"),
    [(1900, 0.9, "the number of workers"), (1100, 0.9, "the main process"), (1100, 0.2, "the cores")],
)
def test_the_benchmark_says_what_bounds_decoding(rate: int, busy: float, expected: str) -> None:
    rows = [decoded_row(8, 1000), decoded_row(16, rate, busy)]
    assert f"bound by {expected}" in streaming_gpu.what_bounds_decoding(rows)


def test_the_streaming_benchmark_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["streaming_gpu", "--quick", "--device", "cpu", "--out", str(out)])
    streaming_gpu.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["workers"] for row in rows if "workers" in row] == [1, 2]
    trained = [row for row in rows if "batch" in row]
    assert [row["images"] for row in trained] == ["streamed", "resident"]
    assert all(row["images/s"] > 0 for row in rows if "images/s" in row)
    assert rows[-1]["bound"].startswith("decoding: 1 to 2 workers")


TINY = replace(shared_gpu.quick(shared_gpu.Settings("cpu")), runs=2)


def write_random_npy(folder: Path) -> Path:
    shape = (TINY.images, TINY.image_size, TINY.image_size, 3)
    np.save(folder / "random.npy", np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    return folder / "random.npy"


def train_here(data: Path, out: Path, seed: int = 0) -> shared_gpu.Outcome:
    config = TrainConfig(
        data=str(data),
        batch_size=TINY.batch,
        steps=TINY.steps,
        encoder=TINY.encoder,
        encoder_options={"width": 8},
        device="cpu",
        log_every=TINY.log_every,
        out=str(out),
        seed=seed,
    )
    return shared_gpu.Outcome(0, flatclr.train(config).path, "")


def test_runs_started_at_once_are_whole_and_equal_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = write_random_npy(tmp_path)
    outcomes = shared_gpu.together(TINY, data, tmp_path / "together", 2)
    assert [(outcome.exit_code, outcome.missing(TINY.steps)) for outcome in outcomes] == [(0, []), (0, [])]
    assert len({outcome.path for outcome in outcomes}) == 2
    alone = train_here(data, tmp_path / "alone").weights()
    # the number of threads is another here, and with it the rounding
    assert all(shared_gpu.distance(outcome.weights(), alone) < 1e-5 for outcome in outcomes)


def test_the_shared_benchmark_reports_runs_that_fail_lack_files_or_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_random_npy(tmp_path)
    same, other = (train_here(data, tmp_path / str(seed), seed) for seed in (0, 1))
    (tmp_path / "0" / "report.html").write_text("")
    (tmp_path / "1" / "report.html").write_text("")

    def report(*shared: shared_gpu.Outcome) -> tuple[list[dict[str, Any]], list[str]]:
        monkeypatch.setattr(shared_gpu, "together", lambda *a: [same] if a[-1] == 1 else list(shared))
        return shared_gpu.measure(TINY)

    rows, failures = report(same, same)
    assert failures == []
    assert [row["distance of the weights"] for row in rows] == ["0", "0"]
    assert rows[0].keys() == rows[1].keys()
    assert re.match(
        r"an encoder trained beside others is [\d.e-]+ from the one trained alone", report(same, other)[1][0]
    )
    assert "exit code 3: no space" in report(same, replace(same, exit_code=3, error="no space"))[1][0]
    (tmp_path / "1" / "encoder.json").unlink()
    assert report(same, other)[1] == [f"{tmp_path / '1'} lacks encoder.json"]


def test_directories_made_at_once_are_different(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_directory(tmp_path / "runs" / "run"), range(24)))
    assert sorted(path.name for path in made) == sorted(["run", *(f"run-{n}" for n in range(2, 25))])


def test_of_runs_that_start_in_one_directory_one_gets_it(tmp_path: Path) -> None:
    def create(number: int) -> bool:
        try:
            RunDirectory.create(tmp_path, {"number": number})
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(24)))
    assert won.count(True) == 1
    assert RunDirectory(tmp_path).config() == {"number": won.index(True)}


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
