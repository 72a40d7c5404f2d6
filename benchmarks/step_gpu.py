"""Milliseconds of a whole training step on a CUDA device, captured in a graph and eager.

    python -m benchmarks.step_gpu --help

ResNet-18 with CIFAR stem on random images of that size, bf16, FlatNCE under ESS control, SGD: indexing, augmentation,
encoder, loss, backward, optimizer and controller. Time is that of the wall over many steps, host work included; "ready"
is what comes before them: building the network, compiling kernels, warming up and capturing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import flatclr
from benchmarks import record
from flatclr.data import Dataset, ResidentImages
from flatclr.models.batch_norm import by_pytorch
from flatclr.training.build import build
from flatclr.training.stepping import batches_from, choose_step
from flatclr.training.throughput import Throughput

WAYS: dict[str, dict[str, Any]] = {
    "graph": {"graph": True},
    "eager": {"graph": False},
    "compiled graph": {"graph": True, "compile": True},
}
# PyTorch's own kernels, one after another
APART = {
    "graph, normalised by PyTorch": "graph",
    "eager, normalised by PyTorch": "eager",
}


def measure(batch: int, way: str, view_size: int, steps: int, views: int = 2) -> dict[str, Any]:
    with by_pytorch() if way in APART else nullcontext():
        return _measure(batch, way, view_size, steps, views)


def _measure(batch: int, way: str, view_size: int, steps: int, views: int) -> dict[str, Any]:
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    config = flatclr.TrainConfig(
        encoder="resnet18",
        batch_size=batch,
        precision="bf16",
        optimizer="sgd",
        learning_rate=0.03,
        view_size=view_size,
        views_per_image=views,
    ).changed(**WAYS[APART.get(way, way)])
    torch.cuda.reset_peak_memory_stats()
    torch.compiler.reset()  # or a second size would be compiled for any size
    begun = time.perf_counter()
    parts = build(config, data=Dataset("random", ResidentImages(images), None))
    take_step = choose_step(parts, batches_from(parts, 0, Throughput(batch, parts.device)), 0).take
    take_step(0)
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - begun
    for step in range(1, 20):
        take_step(step)
    times = []
    for block in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for step in range(steps):
            parts.schedule.apply(parts.train_step, step)
            take_step(20 + block * steps + step)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    middle, spread = record.median_and_spread(times)
    peak = torch.cuda.max_memory_allocated() / 2**20
    return {
        "batch": batch,
        "views": views,
        "pixels of a view": view_size,
        "step": way,
        "ms": f"{middle:.2f} ± {spread:.2f}",
        "images/s": round(1e3 * batch / middle),
        "peak MiB": round(peak),
        "ready s": f"{ready_s:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, *APART], default=["graph", "eager"])
    parser.add_argument("--view-sizes", type=int, nargs="+", default=[32], help="of images of 32 pixels")
    parser.add_argument("--views", type=int, default=2, help="of each image (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="in each of five blocks (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="append here instead of to results/step_gpu.jsonl")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none; run this where there is one.")
    measure(args.batches[0], "eager", args.view_sizes[0], steps=1)  # starts CUDA, which is not for the first row to pay
    rows = [
        measure(batch, way, view_size, args.steps, args.views)
        for batch in args.batches
        for view_size in args.view_sizes
        for way in args.ways
    ]
    print(record.markdown(rows))
    print("\n" + record.where())
    command = shlex.join(["python", "-m", "benchmarks.step_gpu", *sys.argv[1:]])
    record.append("step_gpu", rows, command, args.out)


if __name__ == "__main__":
    main()
