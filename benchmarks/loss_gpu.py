"""Time and memory of the loss on a CUDA device, forward + backward, bfloat16, against plain PyTorch.

    make bench-gpu        (or: python -m benchmarks.loss_gpu --help)

N counts rows, both views together. "plain" materialises the score matrix in float32, its labels made once; "plain bf16"
in bfloat16; "auto" is what a user gets who asks for no backend. Eager times are between two events around a call,
launches included, up to 8192 rows of all losses in turns; "host" is the time until the call returns. Graph times are
replays of a CUDA graph of the same call; a "graphed callable" is an eager call of what
`torch.cuda.make_graphed_callables` makes of it.
Memory is the growth of the peak over what was allocated before the call. The floor is the larger of the products (two
views: 5 N^2 d operations, thanks to symmetry; cross: 8 N^2 d for N pairs) at the rate of a large bfloat16 product
measured in the same run, and of the exponentials at 3.9e12 a second.

--tune times tile shapes of every kernel instead; the best go into its tables in
`flatclr.contrast.kernels.fused_triton`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flatclr
from benchmarks import record
from benchmarks.loss_cpu import BETA, Loss, plain_cross, plain_two_view_hoisted, step

EXPONENTIALS_PER_SECOND = 3.9e12
SECONDS_PER_ENTRY = 0.6
LARGEST_GRAPHED = 8192  # rows up to which launches take longer than kernels
TURNS = 5
HOST_BOUND = 0.8  # of an eager call's time, spent until it returns


@dataclass(frozen=True)
class Target:
    pairing: str
    rows: int
    d: int
    target_ms: float | None  # None: no slower than plain
    others: tuple[str, ...] = ("plain", "plain bf16", "torch")  # what fits into memory and time

    @property
    def floor_seconds(self) -> tuple[float, float]:
        """(operations, exponentials)"""
        n = self.rows / 2 if self.pairing == "cross" else self.rows
        products, exponentials = (8, 2) if self.pairing == "cross" else (5, 1.5)
        return products * n * n * self.d, exponentials * n * n


TARGETS = (
    Target("two_view", 32, 128, None),
    Target("two_view", 128, 128, None),
    Target("two_view", 512, 128, None),
    Target("two_view", 1024, 128, None),
    Target("two_view", 2048, 128, None),
    Target("two_view", 8192, 128, 0.35),
    Target("two_view", 65536, 128, 10.0),
    Target("two_view", 65536, 256, None, others=("torch",)),
    Target("two_view", 262144, 256, 350.0, others=()),
    Target("cross", 512, 128, None),
    Target("cross", 131072, 128, 14.0),
)


def losses(pairing: str) -> dict[str, Loss]:
    plain = plain_two_view_hoisted if pairing == "two_view" else plain_cross
    return {
        "plain": lambda a, b: plain(a.float(), b.float()),
        "plain bf16": plain,
        "torch": flatclr.InfoNCE(1 / BETA, pairing=pairing, backend="torch"),
        "auto": flatclr.InfoNCE(1 / BETA, pairing=pairing),
        "triton": flatclr.InfoNCE(1 / BETA, pairing=pairing, backend="triton"),
    }


def embeddings(rows: int, d: int) -> tuple[Tensor, Tensor]:
    z = torch.randn(rows, d, generator=torch.Generator().manual_seed(0)).to("cuda", torch.bfloat16)
    z_a, z_b = z.chunk(2)
    return z_a.clone().requires_grad_(), z_b.clone().requires_grad_()


def product_rate() -> float:
    """Operations a second of a large bfloat16 product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = event_ms(lambda: a @ b, seconds=0.2)
    return 2 * 8192**3 / (1e-3 * record.median_and_spread(times)[0])


def event_ms(
    call: Callable[[], object], *, seconds: float = SECONDS_PER_ENTRY, host_ms: list[float] | None = None
) -> list[float]:
    """Milliseconds of each call between events, for about as long as asked; `host_ms` gets those until it returned."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    rounds = min(200, max(5, int(seconds / max(time.perf_counter() - start, 1e-6))))
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    for before, after in events:
        start = time.perf_counter()
        before.record()
        call()
        after.record()
        if host_ms is not None:
            host_ms.append(1e3 * (time.perf_counter() - start))
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in events]


def graph_of(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a graph allocates from a pool of its own
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def peak_growth_mib(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@dataclass(frozen=True)
class Measured:
    """Milliseconds, as (median, interquartile range) or the median alone."""

    loss: str
    eager_ms: tuple[float, float]
    host_ms: float  # until an eager call returns, whatever the device still does
    graph_ms: tuple[float, float] | None = None
    extra_mib: float | None = None

    def row(self, floor_ms: float) -> dict[str, str]:
        best_ms, _ = self.graph_ms or self.eager_ms
        return {
            "eager ms": _with_spread(self.eager_ms),
            "host ms": f"{self.host_ms:.3g}",
            "graph ms": "" if self.graph_ms is None else _with_spread(self.graph_ms),
            "floor ms": f"{floor_ms:.3g}",
            "of floor": f"{floor_ms / best_ms:.0%}",
            "extra MiB": "" if self.extra_mib is None else f"{self.extra_mib:.0f}",
        }


def measure(target: Target, rate: float) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each loss, and what they say of the target."""
    z_a, z_b = embeddings(target.rows, target.d)
    operations, exponentials = target.floor_seconds
    floor_ms = 1e3 * max(operations / rate, exponentials / EXPONENTIALS_PER_SECOND)
    known = losses(target.pairing)
    wanted = {name: step(known[name], z_a, z_b) for name in (*target.others, "auto", "triton")}
    calls = {name: call for name, call in wanted.items() if fits(call)}
    captured = {name: in_graph(call) for name, call in calls.items()}
    if target.rows <= LARGEST_GRAPHED:
        graphed: Any = torch.cuda.make_graphed_callables(losses(target.pairing)["triton"], (z_a, z_b))
        calls["triton, graphed callable"] = step(graphed, z_a, z_b)
        eager = in_turns(calls, turns=TURNS)
    else:
        eager = {name: in_turns({name: call}, turns=1)[name] for name, call in calls.items()}
    found = {name: Measured(name, *eager[name], *captured.get(name, ())) for name in calls}
    size = {"pairing": target.pairing, "N": target.rows, "d": target.d}
    target_ms = {"target ms": "" if target.target_ms is None else f"{target.target_ms:g}"}
    table = [size | {"loss": m.loss} | m.row(floor_ms) | target_ms for m in found.values()]
    none = dict.fromkeys(table[0], "") if table else {}
    table += [none | size | {"loss": name, "eager ms": "out of memory"} for name in wanted if name not in calls]
    return table, verdicts(target, found, floor_ms)


def fits(call: Callable[[], object]) -> bool:
    """Whether the device has the memory for it."""
    try:
        call()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def in_graph(call: Callable[[], object]) -> tuple[tuple[float, float], float]:
    """(median and spread of a replay, MiB the call needs)"""
    extra_mib = peak_growth_mib(call)
    graph = graph_of(call)
    times = event_ms(graph.replay)
    del graph
    torch.cuda.empty_cache()
    return record.median_and_spread(times), extra_mib


def in_turns(calls: dict[str, Callable[[], object]], *, turns: int) -> dict[str, tuple[tuple[float, float], float]]:
    """(median and spread between events, median until the call returns) of each, a block of calls at a time.

    What else keeps the host busy changes from second to second; in turns it slows all of them alike.
    """
    between: dict[str, list[float]] = {name: [] for name in calls}
    until_return: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            between[name] += event_ms(call, seconds=SECONDS_PER_ENTRY / turns, host_ms=until_return[name])
    return {n: (record.median_and_spread(between[n]), statistics.median(until_return[n])) for n in calls}


def verdicts(target: Target, found: dict[str, Measured], floor_ms: float) -> list[str]:
    """Whether the target is met in a graph and eagerly and, if not, what is in the way; from the numbers alone."""
    fused = found.get("triton")
    if fused is None or fused.graph_ms is None:
        return []
    size = f"{target.pairing}, N = {target.rows}, d = {target.d}"
    if target.target_ms is None:
        plain = found.get("plain")
        if plain is None or plain.graph_ms is None:
            return []
        auto = found["auto"]
        graph_share, eager_share = fused.graph_ms[0] / plain.graph_ms[0], auto.eager_ms[0] / plain.eager_ms[0]
        why = ""
        if eager_share > 1 and auto.host_ms >= HOST_BOUND * auto.eager_ms[0]:
            why = f": the host takes {auto.host_ms:.3g} ms to launch it, {plain.host_ms:.3g} for plain"
        return [
            f"{size}: in a graph the fused loss takes {_share(graph_share)} of plain's time; eager, auto takes "
            f"{_share(eager_share)}{why}."
        ]
    graph_ms = fused.graph_ms[0]
    why = "" if graph_ms <= target.target_ms else f": its arithmetic alone needs {floor_ms:.3g} ms"
    lines = [f"{size}: {graph_ms:.3g} ms in a graph, {_met(graph_ms, target.target_ms)}{why}."]
    for eager in (m for m in found.values() if m.loss.startswith("triton")):
        eager_ms = eager.eager_ms[0]
        why = ""
        if eager_ms > target.target_ms:
            why = f": the device needs {graph_ms:.3g} ms"
            if eager.host_ms >= HOST_BOUND * eager_ms:
                why = f": the host takes {eager.host_ms:.3g} ms to launch what the device does in {graph_ms:.3g}"
        lines.append(f"{size}: {eager_ms:.3g} ms eager ({eager.loss}), {_met(eager_ms, target.target_ms)}{why}.")
    return lines


def _met(taken_ms: float, target_ms: float) -> str:
    return f"{'meets' if taken_ms <= target_ms else 'misses'} {target_ms:g}"


def _share(of_plain: float) -> str:
    return f"{of_plain:.2f} ({'no slower' if of_plain <= 1 else 'slower'})"


def _with_spread(times: tuple[float, float]) -> str:
    return f"{times[0]:.3g} ± {times[1]:.2g}"


def breakdown(rows: int, d: int) -> list[dict[str, Any]]:
    """Where the time of a fused step goes, by kernel."""
    call = step(losses("two_view")["triton"], *embeddings(rows, d))
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda e: -e.device_time_total)
    return [
        {"N": rows, "d": d, "kernel": e.key[:60], "calls": e.count // 10, "us": f"{e.device_time_total / 10:.1f}"}
        for e in events[:12]
        if e.device_time_total > 0
    ]


KERNELS = ("sums", "mirrored", "gradients")
TUNED_ROWS = {64: 32768, 128: 32768, 256: 32768}


def candidates(kernel: str, d: int, itemsize: int) -> list[Any]:
    from flatclr.contrast.kernels.fused_triton import Tiling

    heights, widths = ((64, 128, 256), (32, 64, 128)) if itemsize == 2 else ((32, 64, 128), (16, 32, 64))
    grid = (Tiling(*shape) for shape in itertools.product(heights, widths, (4, 8), (2, 3, 4), (None, 128)))
    usable = []
    for tiling in grid:
        shared = itemsize * d * (tiling.rows + tiling.stages * tiling.columns)
        per_thread = tiling.rows * tiling.columns / (32 * tiling.warps)
        held = per_thread * (3 if kernel == "mirrored" else 1)
        if kernel == "gradients":
            held += tiling.rows * d / (32 * tiling.warps)
        fits = shared <= 220_000 and held <= (tiling.registers or 255) - 31 and per_thread >= 16
        fits = fits and (tiling.registers is None or held > 48)  # what is small anyway needs no limit
        if kernel == "mirrored":
            fits = fits and tiling.rows % tiling.columns == 0 and (itemsize == 4 or tiling.columns >= 64)
        if fits:
            usable.append(tiling)
    return usable


def kernel_call(kernel: str, rows: int, d: int, dtype: torch.dtype, tiling: Any) -> Callable[[], object]:
    """One pass over a symmetric block by one kernel."""
    from flatclr.contrast.kernels import fused_triton
    from flatclr.contrast.kernels.reductions import Block, Embeddings, LogSumExp, LogSumExpSums, Side
    from flatclr.contrast.relation import Diagonal

    unit = torch.nn.functional.normalize(torch.randn(rows, d, device="cuda"), dim=1)
    z = fused_triton.operand(Embeddings(unit.to(dtype), unit, normalized=True), dtype)
    block = Block(z, z, BETA, excluded=(Diagonal(0, rows, 0),), symmetric=True, bounded=True)
    side = Side(torch.full((rows,), 12.0, device="cuda"), torch.full((rows,), 1 / rows, device="cuda"))

    @contextmanager
    def patched() -> Iterator[None]:
        names = {f"{k}_tiling": lambda *_: tiling for k in KERNELS}
        new: dict[str, Any] = names | {"MIRRORED_BYTES": 2**40 if kernel == "mirrored" else 0}
        old = {name: getattr(fused_triton, name) for name in new}
        for name, value in new.items():
            setattr(fused_triton, name, value)
        yield
        for name, value in old.items():
            setattr(fused_triton, name, value)

    def call() -> None:
        with patched():
            if kernel == "gradients":
                fused_triton.block_gradients(block, LogSumExp(), side, side, need_rows=True, need_columns=False)
            else:
                fused_triton.reduce_block(block, LogSumExpSums.start(rows, unit, with_moment=False))

    return call


def compile_one(job: tuple[str, int, torch.dtype, Any]) -> str | None:
    """Fill Triton's cache in a process of its own; returns what went wrong."""
    kernel, d, dtype, tiling = job
    try:
        kernel_call(kernel, 512, d, dtype, tiling)()
        torch.cuda.synchronize()
    except Exception as error:  # whatever a shape that does not fit raises
        return f"{type(error).__name__}: {error}"[:80]
    return None


def tune(sizes: list[int], dtype: torch.dtype) -> list[dict[str, Any]]:
    jobs = [(k, d, dtype, t) for d in sizes for k in KERNELS for t in candidates(k, d, dtype.itemsize)]
    print(f"compiling {len(jobs)} kernels", file=sys.stderr)
    with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
        problems = list(pool.map(compile_one, jobs))
    table = []
    for (kernel, d, _, tiling), problem in zip(jobs, problems, strict=True):
        row = {"kernel": kernel, "d": d, "rows": tiling.rows, "columns": tiling.columns}
        row |= {"warps": tiling.warps, "stages": tiling.stages, "registers": tiling.registers or ""}
        if problem is None:
            rows = TUNED_ROWS.get(d, 16384)
            median, spread = record.median_and_spread(
                event_ms(kernel_call(kernel, rows, d, dtype, tiling), seconds=0.03)
            )
            operations = {"sums": 2, "mirrored": 1, "gradients": 4}[kernel] * rows * rows * d
            row |= {"ms": round(median, 4), "spread": round(spread, 4), "TFLOP/s": round(operations / median / 1e9)}
        else:
            row |= {"ms": float("inf"), "spread": 0.0, "TFLOP/s": problem}
        table.append(row)
    return sorted(table, key=lambda row: (row["d"], row["kernel"], row["ms"]))


def best(table: list[dict[str, Any]], count: int = 4) -> list[dict[str, Any]]:
    groups = itertools.groupby(table, key=lambda row: (row["d"], row["kernel"]))
    return [row for _, group in groups for row in itertools.islice(group, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append the rows here (default: results/loss_gpu.jsonl)")
    parser.add_argument("--quick", action="store_true", help="the fused loss alone, at the sizes with a target")
    parser.add_argument("--tune", action="store_true", help="time tile shapes of every kernel")
    parser.add_argument("--d", type=int, nargs="+", default=[64, 128, 256], help="embedding sizes to tune for")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16", help="to tune for")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none; benchmarks.loss_cpu measures on the CPU.")
    torch.manual_seed(0)
    if args.tune:
        table = tune(args.d, getattr(torch, args.dtype))
        shown = best(table)
    else:
        rate = product_rate()
        chosen = [t for t in TARGETS if not args.quick or t.target_ms is not None]
        if args.quick:
            chosen = [Target(t.pairing, t.rows, t.d, t.target_ms, others=()) for t in chosen]
        measured = [measure(target, rate) for target in chosen]
        shown = [row for rows, _ in measured for row in rows]
        said = [sentence for _, sentences in measured for sentence in sentences]
        table = shown
        print(f"bf16 products: {rate / 1e12:.0f} TFLOP/s")
        for rows in (512, 8192, 65536):
            print(record.markdown(breakdown(rows, 128)) + "\n")
        print("\n".join(said) + "\n")
    print(record.markdown(shown))
    print("\nmedian ± interquartile range; " + record.where())
    command = shlex.join(["python", "-m", "benchmarks.loss_gpu", *sys.argv[1:]])
    print(f"appended to {record.append('tune_gpu' if args.tune else 'loss_gpu', table, command, args.out)}")


if __name__ == "__main__":
    main()
