"""What the tests of training share: processes, comparisons, and gradients of one step."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flatclr.training.build import Parts

ROOT = Path(__file__).parents[2]


def wait_for(seen: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    """Until it is seen, or a process has ended; neither within two minutes is a failure."""
    latest = time.monotonic() + 120
    while not seen() and all(process.poll() is None for process in processes):
        assert time.monotonic() < latest
        time.sleep(0.01)


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


def gradients(parts: Parts) -> dict[str, Tensor]:
    step, batch = next(parts.loader.steps(0, 1))
    parts.train_step.backward(parts.train_step.inputs.draw(batch, step), len(batch[0]))
    return {n: p.grad.clone() for n, p in parts.train_step.network.named_parameters() if p.grad is not None}


def paired_npz(path: Path, *, rows: int = 400) -> Path:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(rows, 4))
    x = shared @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(rows, 12))
    y = shared @ rng.normal(size=(4, 2 * 3)).astype(np.float32) + 0.1 * rng.normal(size=(rows, 6))
    np.savez(path, x=x.astype(np.float32), y=y.reshape(rows, 2, 3).astype(np.float32))
    return path
