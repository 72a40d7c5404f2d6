"""Time and memory of the CLIP-style loss by the width of the embeddings, routes against plain PyTorch, on a GPU.

    PYTHONPATH=src:. python3 -m benchmarks.loss_widths        (or with --help)

Cross pairing, N pairs, forward + backward, eager, milliseconds between two events around a call: median of
five interleaved rounds. "plain" normalises, multiplies in the embeddings' type and takes the cross-entropy of both
directions in float32. Memory is the growth of the peak over what was allocated before the call. The error is that of
the gradient against float64 on the same rounded embeddings, relative to its norm, at 2,048 pairs.

Strips have the default memory of 512 MiB, and in a column of their own, timed after the others, 1.5 GiB. A second table
has every relation by strips, with the time per score it computes against that of the cross pairing, which is timed in
turns with it. With --dtype float16 both tables are of float16.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from benchmarks import record
from flatclr.contrast.kernels import strips

SIZES = (
    *((65536, d) for d in (128, 192, 256, 384, 512, 768)),
    *((32768, d) for d in (1024, 2048, 4096)),
    *((n, d) for n in (1024, 4096) for d in (256, 384, 768)),
)
RELATION_WIDTHS = (512,)
RELATION_ROWS = 65536  # of the score matrix of the cross pairing
ROUTES = ("fused", "strips")
ROUNDS = 5
DEVICE = "cuda"
PAIRS_OF_ERROR = 2048
LARGE_STRIP_BYTES = 3 * 2**29
SCALE = 2**12  # of the loss whose gradient is compared
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def plain(z_a: Tensor, z_b: Tensor) -> Tensor:
    """CLIP's loss as people write it."""
    scores = (F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T).float() / 0.1
    target = torch.arange(len(z_a), device=z_a.device)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    by_route = {route: flatclr.InfoNCE(0.1, pairing="cross", route=route) for route in ROUTES}
    return {"plain": plain, "auto": flatclr.InfoNCE(0.1, pairing="cross"), **by_route}


def embeddings(pairs: int, d: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    made = (torch.randn(pairs, d, generator=generator, device=DEVICE) for _ in range(2))
    return [z.to(dtype).requires_grad_() for z in made]


def step_of(loss: Callable[..., Tensor], views: list[Tensor], **said: Tensor) -> Callable[[], None]:
    def step() -> None:
        torch.autograd.grad(loss(*views, **said), views)

    return step


@contextmanager
def larger_strips() -> Iterator[None]:
    """A plan remembers the strips of its shape, so plans are made anew before and after."""
    from flatclr.contrast.kernels.whole_triton import _plan

    default = strips.STRIP_BYTES
    strips.STRIP_BYTES = LARGE_STRIP_BYTES
    _plan.cache_clear()
    try:
        yield
    finally:
        strips.STRIP_BYTES = default
        _plan.cache_clear()


class Timed(NamedTuple):
    """Median milliseconds, from least to most of them, and MiB of the peak over what was there."""

    ms: float
    spread: float
    mib: int


def in_turns(steps: dict[str, Callable[[], None]]) -> dict[str, Timed | None]:
    """Of each step, one after another in every round; None of one that does not fit into memory."""
    peaks: dict[str, int] = {}
    for name, step in steps.items():
        try:
            step()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            peaks[name] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    times: dict[str, list[float]] = {name: [] for name in peaks}
    for _ in range(ROUNDS):
        for name, found in times.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            steps[name]()
            stop.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(stop))
    timed = {
        name: Timed(round(statistics.median(found), 2), round(max(found) - min(found), 2), peaks[name])
        for name, found in times.items()
    }
    return {name: timed.get(name) for name in steps}


def measure(pairs: int, d: int, dtype: torch.dtype) -> dict[str, Any]:
    """One row: milliseconds, MiB and error of every way that fits into memory."""
    views = embeddings(pairs, d, dtype)
    found = in_turns({name: step_of(loss, views) for name, loss in losses().items()})
    with larger_strips():
        found |= in_turns({"strips of 1.5 GiB": step_of(flatclr.InfoNCE(0.1, pairing="cross", route="strips"), views)})
    row: dict[str, Any] = {"pairs": pairs, "d": d}
    for name, timed in found.items():
        if timed is None:
            row[f"{name} ms"] = "out of memory"
        else:
            row |= {f"{name} MiB": timed.mib, f"{name} ms": timed.ms, f"{name} spread": timed.spread}
    return row | errors(d, dtype)


def errors(d: int, dtype: torch.dtype) -> dict[str, float]:
    """Relative error of each route's gradient, scaled as float16 needs it."""
    views = embeddings(PAIRS_OF_ERROR, d, dtype)
    exact_views = [view.detach().double().requires_grad_() for view in views]
    exact = torch.cat(torch.autograd.grad(SCALE * plain(*exact_views), exact_views))
    found = {}
    for route in ROUTES:
        loss = SCALE * flatclr.InfoNCE(0.1, pairing="cross", route=route)(*views)
        gradient = torch.cat(torch.autograd.grad(loss, views)).double()
        found[f"{route} error"] = float(f"{float((gradient - exact).norm() / exact.norm()):.2g}")
    return found


def relations(d: int, dtype: torch.dtype, n: int = RELATION_ROWS, only: str = "") -> Iterator[dict[str, Any]]:
    """Relations by strips, n rows: milliseconds, and time per score in that of the cross pairing beside it.

    `only`: those whose name begins with it.
    """
    labels = torch.arange(n, device=DEVICE) % (n // 8)
    queue = torch.randn(n // 2, d, device=DEVICE).to(dtype)
    hard = torch.randn(n, 4, d, device=DEVICE).to(dtype)
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
        "labels, 10 classes": (2, n, n * n, flatclr.FlatNCE(0.1, **info_nce), {"labels": labels % 10}),
        "labels, 10 classes, InfoNCE": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"labels": labels % 10}),
        "ids": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"ids": labels}),
        "labels, 4 views": (4, n // 4, n * n, flatclr.FlatNCE(0.1, route="strips"), {"labels": labels[: n // 4]}),
        "hard negatives": (2, n, n * n, flatclr.InfoNCE(0.1, **info_nce), {"hard_negatives": hard}),
        "margin": (2, n, n * n, flatclr.FlatNCE(0.1, false_negative_margin=0.1, **info_nce), {}),
        "learned temperature": (2, n, n * n, flatclr.InfoNCE(0.1, learn_temperature=True, **info_nce).to(DEVICE), {}),
        "temperature 0.02": (2, n, n * n, flatclr.InfoNCE(0.02, **info_nce), {}),
        "FlatNCE with ESS": (2, n, n * n, flatclr.FlatNCE(control, **info_nce).to(DEVICE), {}),
        "mean of phi": (2, n, n * n, flatclr.FMICL("js", **info_nce), {}),
    }
    cross = step_of(table["cross"][3], embeddings(n, d, dtype))
    for name, (count, each, scores, objective, said) in table.items():
        if not name.startswith(only):
            continue
        views = [z.to(dtype).requires_grad_() for z in torch.randn(count, each, d, device=DEVICE).unbind()]
        found = in_turns({"cross": cross, name: cross if name == "cross" else step_of(objective, views, **said)})
        timed, beside = found[name], found["cross"]
        if timed is None or beside is None:
            yield {"relation": name, "d": d, "ms": "out of memory"}
            continue
        ratio = (timed.ms / scores) / (beside.ms / n**2)
        yield {"relation": name, "d": d, "ms": timed.ms, "MiB": timed.mib, "per score": round(ratio, 2)}
        torch.cuda.empty_cache()


def planned(sizes: Sequence[tuple[int, int]], dtype: torch.dtype, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows that were asked for, as they are measured."""
    for pairs, d in () if args.relations else sizes:
        yield measure(pairs, d, dtype)
    for d in RELATION_WIDTHS if args.relations or args.sizes is None else ():
        yield from relations(d, dtype, args.rows, args.only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=record.RESULTS / "loss_widths.jsonl", help="where a line is added")
    parser.add_argument("--relations", action="store_true", help="the second table alone")
    parser.add_argument("--only", default="", metavar="NAME", help="rows of the second table that begin so, say labels")
    parser.add_argument("--rows", type=int, default=RELATION_ROWS, help="of the second table (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the embeddings (default: %(default)s)")
    parser.add_argument("--sizes", nargs="+", metavar="PAIRSxD", help="these of the first table alone, say 65536x128")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.loss_widths needs a CUDA device, got none; run it where there is one.")
    sizes = SIZES if args.sizes is None else [(int(n), int(d)) for n, d in (size.split("x") for size in args.sizes)]
    dtype, rows = DTYPES[args.dtype], []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("loss_widths was told to stop; what it has measured is kept."))
    try:
        for row in planned(sizes, dtype, args):
            rows.append({"dtype": args.dtype, **row})
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
    finally:
        command = shlex.join(["python3", "-m", "benchmarks.loss_widths", *sys.argv[1:]])
        print(record.append("loss_widths", rows, command, args.out))


if __name__ == "__main__":
    main()
