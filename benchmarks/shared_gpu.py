"""`flatclr train` started several times at once on one device, against the same run alone.

    python -m benchmarks.shared_gpu

Runs of one seed, each a process of its own, started together in one folder without being told where to write; before
them, the same run twice alone. Every run must exit with 0 and leave a whole run directory, and its encoder must not be
further from that of the run alone than runs alone are from each other, times three (or --tolerance, if that is more: a
busy GPU may choose other convolution algorithms). Images are random and of CIFAR's shape.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flatclr
from benchmarks import record
from flatclr.runs import RunDirectory

WHOLE = ("config.yaml", "environment.json", "metrics.jsonl", "encoder.safetensors", "encoder.json", "report.html")


@dataclass(frozen=True)
class Settings:
    device: str
    runs: int = 4
    batch: int = 32
    steps: int = 1000
    images: int = 10_000
    image_size: int = 32
    encoder: str = "resnet18"
    options: str = "{}"
    precision: str = "bf16"
    log_every: int = 100
    tolerance: float = 0.0


def quick(settings: Settings) -> Settings:
    small = replace(settings, batch=8, steps=4, images=64, image_size=8, log_every=2)
    return replace(small, encoder="cnn", options="{width: 8}", precision="fp32")


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    path: Path | None
    error: str

    def missing(self, steps: int) -> list[str]:
        """What a run directory should have and this one has not."""
        if self.path is None:
            return ["a run directory"]
        lacking = [name for name in WHOLE if not (self.path / name).is_file()]
        last = max((row["step"] for row in RunDirectory(self.path).metrics()), default=0)
        return lacking if last == steps else [*lacking, f"metrics after step {last}"]

    def images_per_second(self) -> float:
        """Of the middle line; the first one includes the start."""
        assert self.path is not None
        rates = [row["images_per_second"] for row in RunDirectory(self.path).metrics() if row["kind"] == "log"]
        return float(statistics.median(rates[1:] or rates))

    def weights(self) -> torch.Tensor:
        assert self.path is not None
        parameters = flatclr.load_encoder(self.path).parameters()
        return torch.cat([parameter.detach().double().flatten() for parameter in parameters])


def command(settings: Settings, data: Path) -> list[str]:
    values = {
        "--data": data,
        "--batch-size": settings.batch,
        "--steps": settings.steps,
        "--encoder": settings.encoder,
        "--precision": settings.precision,
        "--device": settings.device,
        "--log-every": settings.log_every,
        "--set": f"encoder_options={settings.options}",
    }
    options = [str(part) for pair in values.items() for part in pair]
    return [sys.executable, "-m", "flatclr", "train", *options, "--json"]


def together(settings: Settings, data: Path, folder: Path, runs: int) -> list[Outcome]:
    """So many runs at once, in an empty folder."""
    folder.mkdir()
    package = Path(flatclr.__file__).parents[1]  # the one imported here, wherever the runs are started
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])}
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command(settings, data), cwd=folder, env=environment, **streams) for _ in range(runs)]
    errors = [process.communicate()[1].decode() for process in started]
    paths = sorted(folder.glob("runs/*"))
    claimed = [*paths, *[None] * runs][:runs]
    return [
        Outcome(process.returncode, path, error) for process, path, error in zip(started, claimed, errors, strict=True)
    ]


def distance(weights: torch.Tensor, reference: torch.Tensor) -> float:
    """|a - b| / |b|"""
    return float((weights - reference).norm() / reference.norm())


def measure(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """A row per way of running, and what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, data = Path(scratch), Path(scratch) / "random.npy"
        shape = (settings.images, settings.image_size, settings.image_size, 3)
        np.save(data, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
        alone = [together(settings, data, folder / f"alone{i}", 1)[0] for i in range(2)]
        start = time.perf_counter()
        shared = together(settings, data, folder / "together", settings.runs)
        wall_s = time.perf_counter() - start
        failures = [problem for outcome in (*alone, *shared) for problem in _problems(outcome, settings.steps)]
        if failures:
            return [], failures
        reference = alone[0].weights()
        yardstick = distance(alone[1].weights(), reference)
        furthest = max(distance(outcome.weights(), reference) for outcome in shared)
        alone_pace, rates = alone[0].images_per_second(), [outcome.images_per_second() for outcome in shared]
    if furthest > max(3 * yardstick, settings.tolerance):
        failures.append(
            f"an encoder trained beside others is {furthest:.2g} from the one trained alone, which differs from its "
            f"repetition by {yardstick:.2g}"
        )
    rows: list[dict[str, Any]] = [
        {"runs": 1, "images/s of each": round(alone_pace), "images/s in total": round(alone_pace)},
        {"runs": settings.runs, "images/s of each": ", ".join(f"{rate:.0f}" for rate in rates)},
    ]
    rows[0] |= {"distance of the weights": f"{yardstick:.2g}", "wall s": ""}
    rows[1] |= {"images/s in total": round(sum(rates)), "distance of the weights": f"{furthest:.2g}"}
    rows[1] |= {"wall s": f"{wall_s:.1f}"}
    return rows, failures


def _problems(outcome: Outcome, steps: int) -> list[str]:
    found = [f"a run ended with exit code {outcome.exit_code}: {outcome.error[-500:]}"] if outcome.exit_code else []
    return found + [f"{outcome.path} lacks {what}" for what in outcome.missing(steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=Settings.runs)
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tolerance", type=float, default=Settings.tolerance, help="relative; default %(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny runs; kept only where --out says")
    parser.add_argument("--out", type=Path, help="append here instead of to results/shared_gpu.jsonl")
    args = parser.parse_args()
    settings = Settings(args.device, args.runs, args.batch, args.steps, tolerance=args.tolerance)
    rows, failures = measure(quick(settings) if args.quick else settings)
    if rows:
        print(record.markdown(rows) + "\n")
        print(record.where())
    if failures:
        sys.exit("\n".join(failures))
    if args.out is not None or not args.quick:
        line = shlex.join(["python", "-m", "benchmarks.shared_gpu", *sys.argv[1:]])
        record.append("shared_gpu", rows, line, args.out)


if __name__ == "__main__":
    main()
