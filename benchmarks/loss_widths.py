"""Time and memory of the CLIP-style loss by the width of the embeddings, routes against plain PyTorch, on a GPU.

    PYTHONPATH=src:. python3 -m benchmarks.loss_widths        (or with --help)

Cross pairing, N pairs, bfloat16, forward + backward, eager, milliseconds between two events around a call: median of
five interleaved rounds. "plain" normalises, multiplies in the embeddings' type and takes the cross-entropy of both
directions in float32. Memory is the growth of the peak over what was allocated before the call. The error is that of
the gradient against float64 on the same rounded embeddings, relative to its norm, at 2,048 pairs.

A second table has every relation by strips, with the time per score it computes against that of the cross pairing.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from benchmarks import record

SIZES = (
    *((65536, d) for d in (128, 192, 256, 384, 512, 768)),
    *((32768, d) for d in (1024, 2048, 4096)),
    *((n, d) for n in (1024, 4096) for d in (256, 384, 768)),
)
RELATION_WIDTHS = (512,)
RELATION_ROWS = 65536  # of the score matrix of the cross pairing
ROUTES = ("fused", "strips")
ROUNDS = 5
PAIRS_OF_ERROR = 2048


def plain(z_a: Tensor, z_b: Tensor) -> Tensor:
    """CLIP's loss as people write it."""
    scores = (F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T).float() / 0.1
    target = torch.arange(len(z_a), device=z_a.device)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    by_route = {route: flatclr.InfoNCE(0.1, pairing="cross", route=route) for route in ROUTES}
    return {"plain": plain, "auto": flatclr.InfoNCE(0.1, pairing="cross"), **by_route}


def embeddings(pairs: int, d: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    made = (torch.randn(pairs, d, generator=generator, device="cuda") for _ in range(2))
    return [z.to(dtype).requires_grad_() for z in made]


def measure(pairs: int, d: int) -> dict[str, Any]:
    """One row: milliseconds, MiB and error of every way that fits into memory."""
    views = embeddings(pairs, d)
    row: dict[str, Any] = {"pairs": pairs, "d": d}
    ways = {}
    for name, loss in losses().items():

        def step(loss: Callable[[Tensor, Tensor], Tensor] = loss) -> None:
            torch.autograd.grad(loss(*views), views)

        try:
            step()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            row[f"{name} MiB"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
            ways[name] = step
        except torch.cuda.OutOfMemoryError:
            row[f"{name} ms"] = "out of memory"
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, step in ways.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            stop.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(stop))
    for name, found in times.items():
        row[f"{name} ms"] = round(statistics.median(found), 2)
        row[f"{name} spread"] = round(max(found) - min(found), 2)
    return row | errors(d)


def errors(d: int) -> dict[str, float]:
    """Relative error of each route's gradient."""
    views = embeddings(PAIRS_OF_ERROR, d)
    exact_views = [view.detach().double().requires_grad_() for view in views]
    exact = torch.cat(torch.autograd.grad(plain(*exact_views), exact_views))
    found = {}
    for route in ROUTES:
        loss = flatclr.InfoNCE(0.1, pairing="cross", route=route)(*views)
        gradient = torch.cat(torch.autograd.grad(loss, views)).double()
        found[f"{route} error"] = float(f"{float((gradient - exact).norm() / exact.norm()):.2g}")
    return found


def relations(d: int, n: int = RELATION_ROWS) -> list[dict[str, Any]]:
    """Every relation by strips, n rows: milliseconds, and time per score in that of the cross pairing."""
    labels = torch.arange(n, device="cuda") % (n // 8)
    queue = torch.randn(n // 2, d, device="cuda").bfloat16()
    hard = torch.randn(n, 4, d, device="cuda").bfloat16()
    control = flatclr.EssControl(0.25)
    info_nce: dict[str, Any] = {"route": "strips", "pairing": "cross"}
    # name -> (views, rows of each, scores, objective, what is said)
    table: dict[str, tuple[int, int, int, flatclr.Objective, dict[str, Any]]] = {
        "cross": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {}),
        "two_view": (2, n // 2, n * n, flatclr.InfoNCE(0.1, route="strips"), {}),
        "one_way": (2, n, n * n, flatclr.InfoNCE(0.1, route="strips", pairing="one_way"), {}),
        "within": (2, n, 2 * n * n, flatclr.InfoNCE(0.1, route="strips", pairing="within"), {}),
        "queue": (2, n, 2 * n * n, flatclr.InfoNCE(0.1, **info_nce), {"negatives": queue}),
        "4 views": (4, n // 4, n * n, flatclr.InfoNCE(0.1, route="strips"), {}),
        "8 views": (8, n // 8, n * n, flatclr.FlatNCE(0.1, route="strips"), {}),
        "labels": (2, n, n * n, flatclr.FlatNCE(0.1, **info_nce), {"labels": labels}),
        "labels, InfoNCE": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"labels": labels}),
        "ids": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"ids": labels}),
        "labels, 4 views": (4, n // 4, n * n, flatclr.FlatNCE(0.1, route="strips"), {"labels": labels[: n // 4]}),
        "hard negatives": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"hard_negatives": hard}),
        "margin": (2, n, n * n, flatclr.FlatNCE(0.1, false_negative_margin=0.1, **info_nce), {}),
        "learned temperature": (2, n, n * n, flatclr.InfoNCE(0.1, learn_temperature=True, **info_nce).cuda(), {}),
        "temperature 0.02": (2, n, n * n, flatclr.InfoNCE(0.02, **info_nce), {}),
        "FlatNCE with ESS": (2, n, n * n, flatclr.FlatNCE(control, **info_nce).cuda(), {}),
        "mean of phi": (2, n, n * n, flatclr.FMICL("js", **info_nce), {}),
    }
    rows: list[dict[str, Any]] = []
    for name, (count, each, scores, objective, said) in table.items():
        views = [z.to(torch.bfloat16) for z in torch.randn(count, each, d, device="cuda").unbind()]
        leaves = [view.requires_grad_() for view in views]

        def step(objective: flatclr.Objective = objective, said: dict[str, Any] = said, z: Any = leaves) -> None:
            torch.autograd.grad(objective(*z, **said), z)

        milliseconds, peak = timed(step)
        per_score = milliseconds / scores
        ratio = per_score / (rows[0]["ms"] / n**2) if rows else 1.0
        rows.append({"relation": name, "d": d, "ms": milliseconds, "MiB": peak, "per score": round(ratio, 2)})
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    return rows


def timed(step: Callable[[], None]) -> tuple[float, int]:
    """Median milliseconds of five calls after one, and MiB of the peak over what was there."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return round(statistics.median(times), 2), round((torch.cuda.max_memory_allocated() - before) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=record.RESULTS / "loss_widths.jsonl", help="where a line is added")
    parser.add_argument("--relations", action="store_true", help="the second table alone")
    parser.add_argument("--rows", type=int, default=RELATION_ROWS, help="of the second table (default: %(default)s)")
    parser.add_argument("--sizes", nargs="+", metavar="PAIRSxD", help="these of the first table alone, say 65536x128")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.loss_widths needs a CUDA device, got none; run it where there is one.")
    sizes = SIZES if args.sizes is None else [(int(n), int(d)) for n, d in (size.split("x") for size in args.sizes)]
    rows = []
    for pairs, d in () if args.relations else sizes:
        rows.append(measure(pairs, d))
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    if args.relations or args.sizes is None:
        rows += [row for d in RELATION_WIDTHS for row in relations(d, args.rows)]
    command = shlex.join(["python3", "-m", "benchmarks.loss_widths", *sys.argv[1:]])
    print(record.append("loss_widths", rows, command, args.out))


if __name__ == "__main__":
    main()
