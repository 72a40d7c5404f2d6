"""Time and memory of the loss, forward + backward, against plain PyTorch that materialises the score matrix.

    make bench        (or: python -m benchmarks.loss_cpu --help)

N counts rows, both views together. The plain losses are written as usual, mask and labels made at every call; "hoisted"
is one that makes them once. Times are medians of interleaved runs in one process; memory is the growth of the
peak resident set over one forward + backward in a process of its own.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor

import flatclr
from benchmarks import record

BETA = 10.0
Loss = Callable[[Tensor, Tensor], Tensor]


def plain_two_view(z_a: Tensor, z_b: Tensor, *, flat: bool) -> Tensor:
    """NT-Xent as usually written; FlatNCE by masking the positive out of the denominator."""
    n = len(z_a)
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    scores = z @ z.T * BETA
    positives = (torch.arange(2 * n, device=z.device) + n) % (2 * n)
    own = torch.eye(2 * n, dtype=torch.bool, device=z.device)
    if not flat:
        return F.cross_entropy(scores.masked_fill(own, -torch.inf), positives)
    positive = scores.gather(1, positives.unsqueeze(1)).squeeze(1)
    negatives = scores.masked_fill(own | own.roll(n, 1), -torch.inf)
    gap = negatives.logsumexp(1) - positive
    return (gap - gap.detach()).exp().mean()


def plain_two_view_hoisted(z_a: Tensor, z_b: Tensor) -> Tensor:
    """NT-Xent with its labels made once and its diagonal filled in place: the fastest plain form known here."""
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    scores = (z @ z.T * BETA).fill_diagonal_(-torch.inf)
    return F.cross_entropy(scores, _labels(len(z), z.device))


@cache
def _labels(rows: int, device: torch.device) -> Tensor:
    return (torch.arange(rows, device=device) + rows // 2) % rows


def plain_cross(z_a: Tensor, z_b: Tensor) -> Tensor:
    """CLIP's loss as usually written."""
    scores = F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T * BETA
    labels = torch.arange(len(z_a), device=z_a.device)
    return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


LOSSES: dict[str, tuple[Loss, Loss]] = {
    "InfoNCE two_view": (lambda a, b: plain_two_view(a, b, flat=False), flatclr.InfoNCE(1 / BETA)),
    "InfoNCE two_view, hoisted": (plain_two_view_hoisted, flatclr.InfoNCE(1 / BETA)),
    "FlatNCE two_view": (lambda a, b: plain_two_view(a, b, flat=True), flatclr.FlatNCE(1 / BETA)),
    "InfoNCE cross": (plain_cross, flatclr.InfoNCE(1 / BETA, pairing="cross")),
}


def embeddings(rows: int, d: int) -> tuple[Tensor, Tensor]:
    z = torch.randn(rows, d, generator=torch.Generator().manual_seed(0))
    z_a, z_b = z.chunk(2)
    return z_a.clone().requires_grad_(), z_b.clone().requires_grad_()


def step(loss: Loss, z_a: Tensor, z_b: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss(z_a, z_b), (z_a, z_b))


def peak_growth_mib(loss: str, ours: bool, rows: int, d: int) -> float:
    """Measured in a fresh process, because a peak never falls."""
    command = [sys.executable, "-m", "benchmarks.loss_cpu", "--peak", loss, str(int(ours)), str(rows), str(d)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=record.RESULTS.parent)
    return float(done.stdout)


def print_peak_growth(loss: str, ours: str, rows: str, d: str) -> None:
    function = LOSSES[loss][int(ours)]
    step(function, *embeddings(64, int(d)))()  # load libraries and thread pools first
    run = step(function, *embeddings(int(rows), int(d)))
    before = peak_resident_mib()
    run()
    print(peak_resident_mib() - before)


def peak_resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kib) / 1024


def measure(loss: str, rows: int, d: int, rounds: int) -> dict[str, Any]:
    z_a, z_b = embeddings(rows, d)
    plain, ours = (step(function, z_a, z_b) for function in LOSSES[loss])
    times = record.interleaved_ms({"plain": plain, "flatclr": ours}, rounds=rounds)
    plain_ms, plain_spread = record.median_and_spread(times["plain"])
    ours_ms, ours_spread = record.median_and_spread(times["flatclr"])
    row = {
        "loss": loss,
        "N": rows,
        "d": d,
        "plain ms": f"{plain_ms:.3g} ± {plain_spread:.2g}",
        "flatclr ms": f"{ours_ms:.3g} ± {ours_spread:.2g}",
        "time ratio": f"{ours_ms / plain_ms:.2f}",
        "plain MiB": "",
        "flatclr MiB": "",
        "memory ratio": "",
    }
    if rows >= 2048 and Path("/proc/self/status").exists():
        plain_mib, ours_mib = (peak_growth_mib(loss, ours, rows, d) for ours in (False, True))
        row |= {
            "plain MiB": f"{plain_mib:.0f}",
            "flatclr MiB": f"{ours_mib:.0f}",
            "memory ratio": f"1/{plain_mib / max(ours_mib, 1):.0f}",
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 2048, 8192])
    parser.add_argument("--d", type=int, default=128, help="embedding size (default: %(default)s)")
    parser.add_argument("--no-save", action="store_true", help="print only, leave results/ alone")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        print_peak_growth(*args.peak)
        return
    if any(n < 4 or n % 2 for n in args.rows):
        parser.error(f"expected even --rows of at least 4, got {args.rows}; N counts the rows of both views together.")
    todo = [(loss, n) for n in args.rows for loss in LOSSES]
    rows = [
        measure(loss, n, args.d, rounds=400 if n <= 256 else 60 if n <= 512 else 7)
        for loss, n in track(todo, description="measuring", console=Console(stderr=True))
    ]
    print(record.markdown(rows))
    print("\nmedian ± interquartile range; " + record.where())
    if not args.no_save:
        command = shlex.join(["python", "-m", "benchmarks.loss_cpu", *sys.argv[1:]])
        print(f"appended to {record.append('loss_cpu', rows, command).relative_to(record.RESULTS.parent)}")


if __name__ == "__main__":
    main()
