"""Images per second from an image folder, against the same images held on the device, and what bounds them.

    python -m benchmarks.streaming_gpu --folder path/to/imagenette/train

Decoding alone, as fast as the trainer could take batches, by number of workers; then training (ResNet-18, bf16, FlatNCE
under ESS control, SGD) on streamed and on resident images, captured in a CUDA graph and eager. The folder is read once
before anything is timed, so that its files are in the system's cache. Time is that of the wall; a block is some tens of
steps, and every number the median of five blocks.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import flatclr
from benchmarks import record
from flatclr.capture import Graph
from flatclr.data import BatchPlan, Dataset, FileImages, Loader, open_dataset
from flatclr.training.build import build
from flatclr.training.graph import GraphedSteps
from flatclr.training.stepping import batches_from, choose_step
from flatclr.training.throughput import Throughput

BLOCKS = 5
FED = 0.05  # waiting less than this, a run is not bound by its data


@dataclass(frozen=True)
class Settings:
    folder: Path
    device: str
    batches: tuple[int, ...] = (64, 256)
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    image_size: int = 96
    encoder: str = "resnet18"
    encoder_options: tuple[tuple[str, Any], ...] = ()
    precision: str = "bf16"
    steps: int = 50  # in a block
    warmup: int = 20


def quick(settings: Settings) -> Settings:
    return replace(
        settings,
        batches=(8,),
        workers=(1, 2),
        image_size=16,
        encoder="cnn",
        encoder_options=(("width", 8),),
        precision="fp32",
        steps=2,
        warmup=1,
    )


def decoding(settings: Settings, workers: int) -> dict[str, Any]:
    """Batches of the largest size onto the device, with nothing done there."""
    source = image_files(settings)
    source.use_workers(workers)
    batch, device = max(settings.batches), torch.device(settings.device)
    loader = Loader(source, BatchPlan(len(source), batch, seed=0), own=slice(0, batch), device=device)
    batches = loader.steps(0, settings.warmup + BLOCKS * settings.steps)
    for _ in range(settings.warmup):
        next(batches)
    rates, shares = [], []
    for _ in range(BLOCKS):
        start, own_start = time.perf_counter(), time.process_time()
        for _ in range(settings.steps):
            next(batches)
        elapsed_s = time.perf_counter() - start
        rates.append(batch * settings.steps / elapsed_s)
        shares.append((time.process_time() - own_start) / elapsed_s)
    source.decoders.close()
    return {
        "workers": workers,
        "by": "processes" if source.decoders.processes else "threads",
        **_rate(rates),
        "cores busy in the main process": round(statistics.median(shares), 2),
    }


def training(settings: Settings, batch: int, *, streamed: bool, graph: bool) -> dict[str, Any]:
    config = flatclr.TrainConfig(
        encoder=settings.encoder,
        encoder_options=dict(settings.encoder_options),
        batch_size=batch,
        precision=settings.precision,
        optimizer="sgd",
        learning_rate=0.03,
        steps=settings.warmup + BLOCKS * settings.steps,
        workers=max(settings.workers),
        resident_gib=0.0 if streamed else 64.0,
        graph=graph,
        device=settings.device,
    )
    parts = build(config, data=Dataset("folder", image_files(settings), None))
    throughput, finished = Throughput(batch, parts.device), _synchronizer(parts.device)
    take_step = choose_step(parts, batches_from(parts, 0, throughput), 0).take
    for step in range(settings.warmup):
        take_step(step)
    replays = None
    if isinstance(take_step, GraphedSteps):
        (captured,) = take_step.steps.values()
        captured.graph = replays = TimedReplays(captured.graph)
    measured = []
    for block in range(BLOCKS):
        finished()
        first = settings.warmup + block * settings.steps
        throughput.restart(first)
        for step in range(first, first + settings.steps):
            parts.schedule.apply(parts.train_step, step)
            take_step(step)
        finished()
        measured.append(throughput.row(first + settings.steps))
    waits = [row.get("data_wait_share", 0.0) for row in measured]
    return {
        "batch": batch,
        "images": "streamed" if streamed else "resident",
        "step": "graph" if graph else "eager",
        **_rate([row["images_per_second"] for row in measured]),
        "waiting for data %": round(100 * statistics.median(waits), 1),
        "ms of a replay": "" if replays is None else round(replays.median_ms(), 2),
    }


class TimedReplays:
    """A CUDA graph whose time on the device is taken, apart from what the host does between replays."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def replay(self) -> None:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        self.graph.replay()
        after.record()
        self.events.append((before, after))

    def median_ms(self) -> float:
        return float(statistics.median(before.elapsed_time(after) for before, after in self.events))


def what_bounds(decoded: Sequence[dict[str, Any]], trained: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each kind of step, from the numbers alone."""
    rate = {(row["batch"], row["step"], row["images"]): row for row in trained}
    most = max(decoded, key=lambda row: row["workers"])
    lines = []
    for batch, step in dict.fromkeys((row["batch"], row["step"]) for row in trained):
        streamed, resident = rate[batch, step, "streamed"], rate[batch, step, "resident"]
        share = streamed["images/s"] / resident["images/s"]
        waits = streamed["waiting for data %"]
        if waits >= 100 * FED:
            why = (
                f"bound by data, for which it waits {waits:g} % of the time; decoding alone gives {most['images/s']} "
                f"images/s with {most['workers']} workers"
            )
        elif share < 1 - FED:
            why = f"not waiting for data ({waits:g} %), yet slower: {where_lost(streamed, resident)}"
        else:
            why = f"bound by the step: it waits for data {waits:g} % of the time"
        lines.append(f"batch {batch}, {step}: streaming reaches {share:.0%} of resident images and is {why}.")
    return [*lines, what_bounds_decoding(decoded)]


def where_lost(streamed: dict[str, Any], resident: dict[str, Any]) -> str:
    """In the replay or outside of it, where there is one."""
    replay, alone = streamed["ms of a replay"], resident["ms of a replay"]
    if not replay or not alone:
        return "beside decoding the steps themselves take longer"
    taken, needed = (1e3 * row["batch"] / row["images/s"] for row in (streamed, resident))
    on_device = (replay - alone) / (taken - needed)
    where = "in the replay" if on_device > 0.5 else "between replays, on the host and in copying the batch"
    return (
        f"a step takes {taken:.2f} ms instead of {needed:.2f}, its replay {replay:g} instead of {alone:g}: lost {where}"
    )


def what_bounds_decoding(decoded: Sequence[dict[str, Any]]) -> str:
    """Whether the last workers still brought something; if not, whether the main process was what they waited for."""
    *fewer, most = sorted(decoded, key=lambda row: row["workers"])
    if not fewer:
        return f"decoding with {most['workers']} workers: {most['images/s']} images/s."
    gained = most["images/s"] / fewer[-1]["images/s"]
    possible = most["workers"] / fewer[-1]["workers"]
    busy = most["cores busy in the main process"]
    if gained >= 1 + 0.5 * (possible - 1):
        why = "bound by the number of workers"
    elif busy >= 0.8:
        why = f"bound by the main process, which keeps {busy:g} cores busy"
    else:
        why = f"bound by the cores: the main process keeps only {busy:g} of them busy"
    return f"decoding: {fewer[-1]['workers']} to {most['workers']} workers give {gained:.2f} times the images, {why}."


def image_files(settings: Settings) -> FileImages:
    source = open_dataset(settings.folder, image_size=settings.image_size, test_fraction=0).train
    if not isinstance(source, FileImages):
        raise ValueError(f"--folder must hold image files, got {settings.folder}; unpack them first.")
    return source


def write_random_folder(folder: Path, images: int) -> Path:
    """Small JPEG files, for a quick look."""
    random = np.random.default_rng(0)
    for i in range(images):
        Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / f"{i:04d}.jpg")
    return folder


def _rate(rates: list[float]) -> dict[str, Any]:
    middle, spread = record.median_and_spread(rates)
    return {"images/s": round(middle), "spread": round(spread)}


def _synchronizer(device: torch.device) -> Callable[[], None]:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)


def measure(settings: Settings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    image_files(settings).resident(2**40)  # puts the files into the system's cache
    decoded = [decoding(settings, workers) for workers in settings.workers]
    graphs = (True, False) if settings.device == "cuda" else (False,)
    trained = [
        training(settings, batch, streamed=streamed, graph=graph)
        for batch in settings.batches
        for graph in graphs
        for streamed in (True, False)
    ]
    return decoded, trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of images, in class folders or not; random ones with --quick")
    parser.add_argument("--batches", type=int, nargs="+", default=list(Settings.batches))
    parser.add_argument("--workers", type=int, nargs="+", default=list(Settings.workers))
    parser.add_argument("--image-size", type=int, default=Settings.image_size)
    parser.add_argument(
        "--steps", type=int, default=Settings.steps, help="in each of five blocks (default: %(default)s)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="a tiny encoder and few steps; kept only where --out says")
    parser.add_argument("--out", type=Path, help="append here instead of to results/streaming_gpu.jsonl")
    args = parser.parse_args()
    if args.folder is None and not args.quick:
        parser.error("expected --folder with images, got none; pass one, or --quick for random images.")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or write_random_folder(Path(scratch), images=64)
        settings = Settings(
            folder,
            args.device,
            batches=tuple(args.batches),
            workers=tuple(args.workers),
            image_size=args.image_size,
            steps=args.steps,
        )
        decoded, trained = measure(quick(settings) if args.quick else settings)
    print(record.markdown(decoded) + "\n\n" + record.markdown(trained) + "\n")
    bounds = what_bounds(decoded, trained)
    print("\n".join(bounds) + "\n\n" + record.where())
    if args.out is not None or not args.quick:
        command = shlex.join(["python", "-m", "benchmarks.streaming_gpu", *sys.argv[1:]])
        rows = [*decoded, *trained, *({"bound": sentence} for sentence in bounds)]
        record.append("streaming_gpu", rows, command, args.out)


if __name__ == "__main__":
    main()
