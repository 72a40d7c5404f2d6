"""A run in a process of its own, for tests that kill it or spread it over ranks.

python -m tests.support.training_worker OUT STEPS [--resume] [--auto-resume] [--micro-batch-too] [--sogclr-too]
    [--shards-too] [--views-too] [--signals] [--pids] [--calm] [--slow-last-save] [--slow-evaluation]
    [--images]
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatclr.checkpoint import load_checkpoint, save_checkpoint
from flatclr.data.progress import Progress
from flatclr.training import loop, recorder
from flatclr.training.build import Parts
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingInterruptedError, TrainingStoppedError
from flatclr.training.instruments import evaluation_metrics
from flatclr.training.launch import process_group
from flatclr.training.stopping import RESUME_ME, StopRequest
from flatclr.training.trainer import train

SEVERAL_SIZES: dict[str, object] = {  # of 1,250 steps in an epoch, the first four see other views than the rest
    "size_schedule": [[0, [[2, 20], [1, 16]]], [4 / 1250, [[1, 24], [3, 12]]]]
}

CALM: dict[str, object] = {"temperature": 0.5, "optimizer": "sgd", "learning_rate": 0.01}  # rounding does not grow
ONE_SAVE: dict[str, object] = {"checkpoint_every": 1_000_000}  # only when asked to stop
STREAMED: dict[str, object] = {"resident_gib": 0.0, "eval_samples": 8, "workers": 1}
BY_SHARDS: dict[str, object] = {**STREAMED, "shards_at_once": 2}


def config(out: Path, steps: int, **settings: object) -> TrainConfig:
    """A tiny run without batch normalisation, so that ranks do not matter."""
    return TrainConfig(
        encoder="cnn",
        encoder_options={"norm": "none", "width": 8},
        embedding=16,
        batch_size=8,
        steps=steps,
        warmup_epochs=0.01,
        log_every=20,
        eval_every=10_000,
        eval_start=False,
        eval_samples=500,
        checkpoint_every=4,
        device="cpu",
        out=str(out),
    ).changed(**settings)


def network_of(run: Path) -> dict[str, Tensor]:
    """The weights of a run's last checkpoint."""
    state: dict[str, Tensor] = load_checkpoint(run / "checkpoint").state["train_step"]["network"]
    return state


def save_slowly(folder: Path, *args: Any, **options: Any) -> None:
    time.sleep(6)
    save_checkpoint(folder, *args, **options)


def evaluate_slowly(parts: Parts, step: int, progress: Progress, **options: Any) -> dict[str, Any]:
    """For two minutes, and a file says since when."""
    (Path(parts.config.out).parent / f"evaluating-{parts.ranks.rank}").touch()
    for number in range(1200):
        time.sleep(0.1)
        progress("evaluation", number, 1200)
    return evaluation_metrics(parts, step, progress, **options)


def main() -> None:
    torch.set_num_threads(1)
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    stop = StopRequest() if "--signals" in sys.argv else None
    if "--slow-last-save" in sys.argv:
        recorder.save_checkpoint = save_slowly
    if "--slow-evaluation" in sys.argv:
        loop.evaluation_metrics = evaluate_slowly
    with nullcontext() if stop is None else stop.on_signals():
        try:
            with process_group() as ranks:
                if "--pids" in sys.argv:
                    (out.parent / f"pid-{ranks.rank}").write_text(str(os.getpid()))
                resume, auto_resume = out if "--resume" in sys.argv else None, "--auto-resume" in sys.argv
                settings = CALM if "--calm" in sys.argv else ONE_SAVE if "--slow-last-save" in sys.argv else {}
                if "--images" in sys.argv:
                    settings = {**settings, "data": out.parent / "images", **STREAMED}
                found = train(config(out, steps, **settings), resume=resume, auto_resume=auto_resume, stop=stop)
                sys.stdout.write(f"{found.path}\n")
                if "--micro-batch-too" in sys.argv:
                    train(config(out.with_name("micro"), steps, micro_batch=2))
                if "--sogclr-too" in sys.argv:
                    train(config(out.with_name("sogclr"), 6, objective="sogclr", micro_batch=2))
                if "--shards-too" in sys.argv:
                    shards = {"data": out.parent / "shards", **BY_SHARDS}
                    train(config(out.with_name("by-shards"), 14, micro_batch=2, **shards))
                if "--views-too" in sys.argv:
                    train(config(out.with_name("views"), 6, micro_batch=2, **SEVERAL_SIZES))
        except TrainingInterruptedError:
            sys.exit(RESUME_ME)
        except TrainingStoppedError as error:
            sys.exit(f"flatclr: {error}")


if __name__ == "__main__":
    main()
