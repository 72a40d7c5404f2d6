"""Where the loss is slower than plain PyTorch: a grid of rows and widths, forward + backward, each cell with its limit.

    PYTHONPATH=src:. python3 -m benchmarks.loss_grid        (or with --help)

Rows are those of the score matrix [rows, rows]: with pairing "two_view" both views together, rows / 2 samples; with
"cross" the pairs. Plain normalises, makes one product in the embeddings' type and takes the cross-entropy in float32,
labels and masks made once; FlatNCE + ESS is held against a plain FlatNCE that steps the same controller. Embeddings are
bfloat16 on a GPU and float32 on a CPU. "graphed" is the objective with graphed=True, against the same eager plain loss.

A round calls each way as often as fits into some milliseconds: on a GPU it waits for the device once, behind them, and
counts their mean; on a CPU it counts their median. Ways take turns, and a cell's time is the median of its rounds. The
ratio to plain may be 1.05 from 1,024 rows on; below that 1.5 eager and 1.05 graphed. Where plain does not fit into
memory the cell says so.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from benchmarks import record
from flatclr.checks import checked_device

TEMPERATURE, TARGET, RATE = 0.1, 0.25, 0.01
GPU_ROWS, GPU_WIDTHS = (32, 128, 512, 2048, 8192, 32768, 131072), (64, 128, 384, 768, 1536, 4096)
CPU_ROWS, CPU_WIDTHS = (32, 128, 512, 1024, 2048, 4096), (64, 128, 384, 768)
ROUNDS = 5
SECONDS_PER_ROUND = 0.02
LARGE = 1024  # rows from which no way may be slower
NO_SLOWER, SMALL_EAGER = 1.05, 1.5
Loss = Callable[[Tensor, Tensor], Tensor]


def plain_scores(z_a: Tensor, z_b: Tensor, beta: float | Tensor, pairing: str) -> Tensor:
    """[rows, rows] in float32; a row of two views does not meet itself."""
    if pairing == "cross":
        return (F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T).float() * beta
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    return ((z @ z.T).float() * beta).fill_diagonal_(-torch.inf)


@cache
def positives(rows: int, pairing: str, device: torch.device) -> Tensor:
    """The column of every row's positive."""
    index = torch.arange(rows, device=device)
    return index if pairing == "cross" else index.roll(rows // 2)


@cache
def same_sample(rows: int, pairing: str, device: torch.device) -> Tensor:
    """[rows, rows]: which pairs are no negatives."""
    own = torch.eye(rows, dtype=torch.bool, device=device)
    return own if pairing == "cross" else own | own.roll(rows // 2, 1)


def plain_info_nce(z_a: Tensor, z_b: Tensor, *, pairing: str) -> Tensor:
    """NT-Xent or CLIP's loss as people write it, without what can be made once."""
    scores = plain_scores(z_a, z_b, 1 / TEMPERATURE, pairing)
    target = positives(len(scores), pairing, scores.device)
    if pairing == "cross":
        return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
    return F.cross_entropy(scores, target)


class PlainFlatNCE:
    """The paper's loss, and a step of beta towards the target ESS, on a stored matrix."""

    def __init__(self, pairing: str, device: torch.device) -> None:
        self.pairing, self.beta = pairing, torch.tensor(1 / TEMPERATURE, device=device)

    def __call__(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        scores = plain_scores(z_a, z_b, self.beta, self.pairing)
        rows = len(scores)
        same = same_sample(rows, self.pairing, scores.device)
        positive = scores.gather(1, positives(rows, self.pairing, scores.device).unsqueeze(1)).squeeze(1)
        negatives = scores.masked_fill(same, -torch.inf)
        total = negatives.logsumexp(1)
        gap, count = total - positive, rows - (1 if self.pairing == "cross" else 2)
        squares = (2 * negatives.detach()).logsumexp(1)
        if self.pairing == "cross":
            other = negatives.logsumexp(0)
            gap, total = torch.cat([gap, other - positive]), torch.cat([total, other])
            squares = torch.cat([squares, (2 * negatives.detach()).logsumexp(0)])
        with torch.no_grad():
            ess = ((2 * total - squares).exp() / count).mean()
            self.beta = (self.beta * torch.where(ess > TARGET, 1 + RATE, 1 - RATE)).clamp(1, 100)
        return (gap - gap.detach()).exp().mean()


def controlled(pairing: str, device: torch.device, **options: Any) -> flatclr.Objective:
    """FlatNCE under the same controller."""
    control = flatclr.EssControl(TARGET, rate=RATE, initial=1 / TEMPERATURE)
    return flatclr.FlatNCE(control, pairing=pairing, **options).to(device)


def ways(pairing: str, device: torch.device, modes: list[str]) -> dict[str, dict[str, Loss]]:
    """By objective: plain, and ours in every mode."""
    options: dict[str, dict[str, Any]] = {"eager": {}, "graphed": {"graphed": True}}
    return {
        "InfoNCE": {
            "plain": lambda a, b: plain_info_nce(a, b, pairing=pairing),
            **{mode: flatclr.InfoNCE(TEMPERATURE, pairing=pairing, **options[mode]) for mode in modes},
        },
        "FlatNCE + ESS": {
            "plain": PlainFlatNCE(pairing, device),
            **{mode: controlled(pairing, device, **options[mode]) for mode in modes},
        },
    }


def embeddings(rows: int, d: int, pairing: str, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Two views that are related, as those of an encoder are."""
    samples = rows if pairing == "cross" else rows // 2
    z = torch.randn(samples, d, generator=torch.Generator(device).manual_seed(0), device=device)
    noise = torch.randn(samples, d, generator=torch.Generator(device).manual_seed(1), device=device)
    return [view.to(dtype).requires_grad_() for view in (z, z + noise)]


def round_ms(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Milliseconds a call takes: on a GPU the mean of several that follow each other, on a CPU their median."""
    on_gpu, times = device.type == "cuda", []
    for _ in range(1 if on_gpu else calls):
        start = time.perf_counter()
        for _ in range(calls if on_gpu else 1):
            call()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times[0] / calls if on_gpu else statistics.median(times)


def median_ms(calls: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float | None]:
    """The median over interleaved rounds of each call that fits into memory; None of the others."""
    often: dict[str, int] = {}
    for name, call in calls.items():
        try:
            call()  # compiles and captures
            round_ms(call, 1, device)
            often[name] = max(1, min(100, int(SECONDS_PER_ROUND / (1e-3 * round_ms(call, 1, device)))))
        except (torch.OutOfMemoryError, MemoryError):
            if device.type == "cuda":
                torch.cuda.empty_cache()
    times: dict[str, list[float]] = {name: [] for name in often}
    for _ in range(rounds):
        for name, count in often.items():
            times[name].append(round_ms(calls[name], count, device))
    return {name: statistics.median(times[name]) if name in times else None for name in calls}


def limit(rows: int, mode: str) -> float:
    """The largest ratio to plain a cell may have."""
    return SMALL_EAGER if rows < LARGE and mode == "eager" else NO_SLOWER


def measure(
    rows: int, d: int, pairing: str, dtype: torch.dtype, device: torch.device, modes: list[str], rounds: int
) -> list[dict[str, Any]]:
    """The cells of one size: a row for each objective and mode."""
    views = embeddings(rows, d, pairing, dtype, device)
    cells = []
    for objective, losses in ways(pairing, device, modes).items():
        calls = {name: _step(loss, views) for name, loss in losses.items()}
        found = median_ms(calls, device, rounds)
        plain = found.pop("plain")
        for mode, ours in found.items():
            ratio = None if plain is None or ours is None else ours / plain
            cells.append(
                {
                    "objective": objective,
                    "mode": mode,
                    "rows": rows,
                    "d": d,
                    "plain ms": _shown(plain),
                    "flatclr ms": _shown(ours),
                    "ratio": "" if ratio is None else round(ratio, 2),
                    "limit": limit(rows, mode),
                    "holds": ours is not None and (ratio is None or ratio <= limit(rows, mode)),
                }
            )
    return cells


def _step(loss: Loss, views: list[Tensor]) -> Callable[[], object]:
    """Loss and gradient, and the controller's step, which an optimizer's would bring."""
    controls = loss.controls if isinstance(loss, flatclr.Objective) else []

    def step() -> None:
        torch.autograd.grad(loss(*views), views)
        for control in controls:
            control.advance()

    return step


def _shown(milliseconds: float | None) -> str | float:
    return "out of memory" if milliseconds is None else float(f"{milliseconds:.4g}")


def report(cells: list[dict[str, Any]]) -> str:
    """The table, then every cell above its limit."""
    above = [cell for cell in cells if not cell["holds"]]
    lines = [record.markdown(cells), "", f"{len(above)} of {len(cells)} cells are above their limit."]
    for c in above:
        what = f"{c['objective']} {c['mode']}, {c['rows']} x {c['d']}"
        times = f"{c['flatclr ms']} ms against {c['plain ms']}"
        lines.append(f"above: {what}: {times}, ratio {c['ratio']}, limit {c['limit']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--rows", type=int, nargs="+", help="of the score matrix (default: the grid of the device)")
    parser.add_argument("--d", type=int, nargs="+", help="widths (default: the grid of the device)")
    parser.add_argument("--pairing", choices=["two_view", "cross"], default="two_view")
    parser.add_argument("--modes", choices=["eager", "graphed"], nargs="+", help="default: both on a GPU, else eager")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="default: bfloat16 on a GPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="append the run here (default: results/loss_grid.jsonl)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    device = checked_device(args.device)
    on_gpu = device.type == "cuda"
    rows = args.rows or (GPU_ROWS if on_gpu else CPU_ROWS)
    if any(n < 4 or n % 2 for n in rows):
        parser.error(f"expected even --rows of at least 4, got {rows}; two views have half of them each.")
    modes = args.modes or (["eager", "graphed"] if on_gpu else ["eager"])
    dtype = getattr(torch, args.dtype or ("bfloat16" if on_gpu else "float32"))
    cells = []
    for d in args.d or (GPU_WIDTHS if on_gpu else CPU_WIDTHS):
        for n in rows:
            cells += measure(n, d, args.pairing, dtype, device, modes, args.rounds)
            print(f"{n} x {d} done", file=sys.stderr, flush=True)
            positives.cache_clear()
            same_sample.cache_clear()
            gc.collect()  # graphs of objectives that are gone
            if on_gpu:
                torch.cuda.empty_cache()
    print(report(cells))
    print(f"\n{args.pairing}, {dtype}, median of {args.rounds} rounds; " + record.where())
    if not args.no_save:
        command = shlex.join(["python3", "-m", "benchmarks.loss_grid", *sys.argv[1:]])
        print(f"appended to {record.append('loss_grid', cells, command, args.out)}")


if __name__ == "__main__":
    main()
