"""A long run under seeded faults: it must end with the weights of a run without any, and grow in nothing.

python -m scripts.soak [--minutes 30] [--seed 0] [--record]

Two things are soaked. One run after another is killed, terminated, filled up, robbed of its images and damaged, again
and again, and goes on each time by the same command; when it ends its weights are compared with those of an undisturbed
run. Another goes on for the same time undisturbed while its memory and file handles are counted.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.record import append, markdown
from flatclr.checkpoint import load_checkpoint, steps_in
from flatclr.training import Event, Logged, StopRequest, TrainConfig, TrainingInterruptedError, train
from flatclr.training.stopping import RESUME_ME

WORKER = "import sys; from scripts.soak import work; work(*sys.argv[1:])"
LARGEST_SLOPE_MIB = 1.0  # per 1,000 steps, after warm-up
WARM_UP = 0.3  # share of the steps
NEW_HANDLES = 2


def settings(folder: Path, steps: int, out: str) -> TrainConfig:
    """A tiny run on streamed images."""
    return TrainConfig(
        data=str(folder / "images"),
        resident_gib=0.0,
        workers=1,
        encoder="cnn",
        encoder_options={"norm": "none", "width": 8},
        embedding=16,
        batch_size=8,
        steps=steps,
        log_every=10,
        eval_every=10_000_000,
        eval_start=False,
        eval_samples=16,
        checkpoint_every=20,
        device="cpu",
        out=str(folder / out),
    )


def work(folder: str, steps: str, out: str) -> None:
    """One try of the run that is disturbed, in a process of its own."""
    torch.set_num_threads(1)
    stop = StopRequest()
    try:
        with stop.on_signals():
            train(settings(Path(folder), int(steps), out), auto_resume=True, stop=stop)
    except TrainingInterruptedError:
        sys.exit(RESUME_ME)


class Faults:
    """What can happen to a run, drawn from a seed."""

    def __init__(self, folder: Path, steps: int, seed: int) -> None:
        self.folder, self.steps, self.random = folder, steps, random.Random(seed)
        self.runs, self.count = 1, Counter[str]()
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": lambda: self._signalled(signal.SIGKILL),
            "terminate": lambda: self._signalled(signal.SIGTERM),
            "full disk": self._full_disk,
            "images gone": self._images_gone,
            "damaged checkpoint": self._damaged_checkpoint,
            "damaged settings": lambda: self._refused(self.run / "config.yaml"),
            "damaged image": lambda: self._refused(self.random.choice(sorted((self.folder / "images").iterdir()))),
        }

    @property
    def run(self) -> Path:
        return self.folder / f"run-{self.runs}"

    @property
    def step(self) -> int:
        """The run's last checkpoint."""
        return max(steps_in(self.run / "checkpoint"), default=0)

    def begin_another(self) -> None:
        """In a folder of its own, with the same settings."""
        shutil.rmtree(self.run)
        self.runs += 1

    def inject(self) -> None:
        """One of them, and whatever is needed so that the run can go on."""
        kind = self.random.choice(sorted(self.kinds))
        self.kinds[kind]()
        self.count[kind] += 1

    def finish(self) -> None:
        """To the last step, undisturbed."""
        process = self._start()
        _, said = process.communicate()
        assert process.returncode == 0, said

    def _start(self, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(self.folder), str(self.steps), self.run.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **options)

    def _progressed(self, process: subprocess.Popen[str]) -> None:
        """Until it has come a bit further, or has ended."""
        before = self.step
        while process.poll() is None and self.step <= before:
            time.sleep(0.02)
        time.sleep(self.random.uniform(0, 0.3))

    def _signalled(self, number: signal.Signals) -> None:
        process = self._start()
        self._progressed(process)
        process.send_signal(number)
        _, said = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL if number == signal.SIGKILL else RESUME_ME), said

    def _full_disk(self) -> None:
        """No file may grow beyond what a checkpoint needs: as on a full disk, the next one cannot be written."""
        largest = self.random.randrange(1, 20_000)
        process = self._start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest)))
        _, said = process.communicate()
        assert process.returncode != 0 or self.step >= self.steps, said

    def _images_gone(self) -> None:
        process = self._start()
        self._progressed(process)
        images = self.folder / "images"
        images.rename(self.folder / "away")
        try:
            _, said = process.communicate()
        finally:
            (self.folder / "away").rename(images)
        assert process.returncode in (0, 1, 2), said

    def _damaged_checkpoint(self) -> None:
        there = sorted((self.run / "checkpoint").glob("step-*"))
        if len(there) >= 4:  # of two, the newer
            self._flip_a_bit(self.random.choice(there[-2:]))

    def _refused(self, victim: Path) -> None:
        """Other settings, or other data, than the run began with must not be trained with."""
        if not self.step:
            return  # a run without a checkpoint begins again with what is there
        before, whole = self.step, victim.read_bytes()
        self._flip_a_bit(victim, len(whole) // 2)  # at the end of the settings stands their checksum
        process = self._start()
        _, said = process.communicate()
        victim.write_bytes(whole)
        assert process.returncode != 0, f"{victim} was damaged and is used"
        assert self.step == before, said

    def _flip_a_bit(self, victim: Path, within: int | None = None) -> None:
        content = bytearray(victim.read_bytes())
        content[self.random.randrange(within or len(content))] ^= 1 << self.random.randrange(8)
        victim.write_bytes(content)


def soak(folder: Path, *, minutes: float, seed: int, steps: int) -> dict[str, Any]:
    """Both parts; raises AssertionError where something was lost or grew."""
    torch.set_num_threads(1)
    write_images(folder / "images", seed)
    whole = train(settings(folder, steps, "whole")).path
    faults, ends = Faults(folder, steps, seed), time.monotonic() + 30 * minutes
    while time.monotonic() < ends:
        faults.inject()
        if faults.step >= steps:
            _require_same_weights(whole, faults)
            faults.begin_another()
    _require_same_weights(whole, faults)
    outcome = {"runs": faults.runs, **faults.count, "weights": "identical"}
    return {"seed": seed, "minutes": minutes, **outcome, **_growth(folder, 30 * minutes)}


def _require_same_weights(whole: Path, faults: Faults) -> None:
    faults.finish()
    want, got = (load_checkpoint(run / "checkpoint").state["train_step"]["network"] for run in (whole, faults.run))
    assert all(torch.equal(want[name], got[name]) for name in want), "faults changed the weights"


def write_images(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    for i, image in enumerate(np.random.default_rng(seed).integers(0, 256, (200, 12, 12, 3), dtype=np.uint8)):
        Image.fromarray(image).save(folder / f"{i:03}.png")


def _growth(folder: Path, seconds: float) -> dict[str, float]:
    """Memory and file handles of a run that goes on for so long."""
    seen: list[tuple[int, float, int]] = []
    stop, ends = StopRequest(), time.monotonic() + seconds

    def listen(event: Event) -> None:
        if isinstance(event, Logged):
            seen.append((event.step, _resident_mib(), len(os.listdir("/proc/self/fd"))))
            if time.monotonic() > ends:
                stop.ask("the clock")

    with suppress(TrainingInterruptedError):
        train(settings(folder, 10_000_000, "long"), on_event=[listen], stop=stop)
    late = np.array([row for row in seen if row[0] > WARM_UP * seen[-1][0]])
    slope = float(np.polyfit(late[:, 0], late[:, 1], 1)[0] * 1000) if len(late) > 2 else 0.0
    handles = int(late[:, 2].max() - late[:, 2].min())
    enough = late[-1, 0] - late[0, 0] >= 1000  # over fewer steps the slope is that of the allocator's noise
    assert not enough or slope < LARGEST_SLOPE_MIB, f"memory grows by {slope:.2f} MiB per 1,000 steps"
    assert handles <= NEW_HANDLES, f"file handles grew by {handles}"
    return {"steps": int(late[-1, 0]), "mib_per_1000_steps": round(slope, 3), "handles": handles}


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description="Soak a run in seeded faults.")
    parser.add_argument("--minutes", type=float, default=30.0, help="half for faults, half for growth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000, help="of the run that is disturbed")
    parser.add_argument("--record", action="store_true", help="append the outcome to results/soak.jsonl")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = soak(Path(folder), minutes=options.minutes, seed=options.seed, steps=options.steps)
    print(markdown([row]))
    if options.record:
        print(append("soak", [row], f"python -m scripts.soak --minutes {options.minutes:g} --seed {options.seed}"))


if __name__ == "__main__":
    main()
