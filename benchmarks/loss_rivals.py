"""The CLIP-style loss of this package beside those of other libraries: one run, with values and gradients compared.

    PYTHONPATH=src:. python3 -m benchmarks.loss_rivals        (or with --help)

N pairs, cross pairing, bfloat16, forward + backward from embeddings that are not normalised, milliseconds between two
events around a call: median of five interleaved rounds. Memory is the growth of the peak over what was allocated before
a call. Errors are those of the loss and of the gradient (relative to its norm) against float64 on the same rounded
embeddings, at 2,048 pairs of each width.

    plain       normalise, one product in the embeddings' type, both cross-entropies in float32
    open_clip   its ClipLoss under autocast, as in its training
    memeff      its MemoryEfficientCLIPLoss with the textbook gradient (stable=False)
    inf-cl      its cal_flash_loss, once for each direction
    flatclr     InfoNCE(pairing="cross")

The others come with `pip install "flatclr[rivals]"`. Where that is not possible, say on a machine without a network,
`pip install --no-deps --target DIR memeff inf-cl open_clip_torch` elsewhere makes a folder of Python files; bring it
along and pass --path DIR. A library that is missing or does not run is named with its reason and left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from benchmarks import record
from benchmarks.loss_widths import plain
from flatclr.checks import checked_device

TEMPERATURE = 0.1  # of `plain` too
SIZES = (
    *((65536, d) for d in (128, 256, 384, 512, 768)),
    *((32768, d) for d in (1024, 2048, 4096)),
    (4096, 512),
    (1024, 512),
)
ROUNDS = 5
PAIRS_OF_ERROR = 2048
Loss = Callable[[Tensor, Tensor], Tensor]


def flatclr_loss(_: torch.device) -> Loss:
    return flatclr.InfoNCE(TEMPERATURE, pairing="cross")


def open_clip_loss(device: torch.device) -> Loss:
    """The file of ClipLoss alone: the package around it imports torchvision, which the loss does not need."""
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'open_clip'")
    file = Path(package.submodule_search_locations[0]) / "loss.py"
    found = importlib.util.spec_from_file_location("open_clip_loss", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    clip, scale = module.ClipLoss(cache_labels=True), torch.tensor(1 / TEMPERATURE, device=device)

    def loss(z_a: Tensor, z_b: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            total: Tensor = clip(F.normalize(z_a, dim=1), F.normalize(z_b, dim=1), scale)
        return total

    return loss


def memeff_loss(_: torch.device) -> Loss:
    made: Loss = importlib.import_module("memeff").MemoryEfficientCLIPLoss(temperature=TEMPERATURE, stable=False)
    return made


def inf_cl_loss(_: torch.device) -> Loss:
    cal_flash_loss = importlib.import_module("inf_cl").cal_flash_loss

    def loss(z_a: Tensor, z_b: Tensor) -> Tensor:
        unit_a, unit_b = F.normalize(z_a, dim=1), F.normalize(z_b, dim=1)
        head = math.gcd(z_a.shape[1], 256)  # it multiplies features in heads of so many
        both = [
            cal_flash_loss(x, y, scale=1 / TEMPERATURE, head_dim=head).mean()
            for x, y in ((unit_a, unit_b), (unit_b, unit_a))
        ]
        return torch.stack(both).mean()

    return loss


WAYS: dict[str, Callable[[torch.device], Loss]] = {
    "plain": lambda _: plain,
    "open_clip": open_clip_loss,
    "memeff": memeff_loss,
    "inf-cl": inf_cl_loss,
    "flatclr": flatclr_loss,
}
PACKAGES = {"open_clip": "open_clip_torch", "memeff": "memeff", "inf-cl": "inf_cl"}


def embeddings(pairs: int, d: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    made = (torch.randn(pairs, d, generator=generator, device=device) for _ in range(2))
    return [z.to(torch.bfloat16).requires_grad_() for z in made]


def usable(device: torch.device) -> tuple[dict[str, Loss], dict[str, str]]:
    """(losses that run here, by name; why the others do not)"""
    losses, problems = {}, {}
    views = embeddings(64, 128, device)
    for name, make in WAYS.items():
        try:
            loss = make(device)
            torch.autograd.grad(loss(*views), views)
            losses[name] = loss
        except Exception as error:  # whatever a library raises where it does not run
            problems[name] = _reason(error)
    return losses, problems


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0][:120]


def measure(losses: dict[str, Loss], pairs: int, d: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """One row: milliseconds, MiB and errors of every way; where one fails, its reason instead."""
    views = embeddings(pairs, d, device)
    row: dict[str, Any] = {"pairs": pairs, "d": d}
    times: dict[str, list[float]] = {}
    for name, loss in losses.items():
        try:
            _step(loss, views)
            row[f"{name} MiB"] = _peak_growth_mib(loss, views, device)
            times[name] = []
        except torch.OutOfMemoryError:
            row[f"{name} ms"] = "out of memory"
        except Exception as error:  # a width that a library does not take
            row[f"{name} ms"] = _reason(error)
    for _ in range(rounds):
        for name, found in times.items():
            found.append(_call_ms(losses[name], views, device))
    for name, found in times.items():
        row[f"{name} ms"] = float(f"{statistics.median(found):.4g}")
        row[f"{name} spread"] = float(f"{max(found) - min(found):.2g}")
    return row | errors({name: losses[name] for name in times}, min(pairs, PAIRS_OF_ERROR), d, device)


def _step(loss: Loss, views: list[Tensor]) -> None:
    torch.autograd.grad(loss(*views), views)


def _call_ms(loss: Loss, views: list[Tensor], device: torch.device) -> float:
    if device.type != "cuda":
        before = time.perf_counter()
        _step(loss, views)
        return 1e3 * (time.perf_counter() - before)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    _step(loss, views)
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop))


def _peak_growth_mib(loss: Loss, views: list[Tensor], device: torch.device) -> int | str:
    if device.type != "cuda":
        return ""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _step(loss, views)
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20)


def errors(losses: dict[str, Loss], pairs: int, d: int, device: torch.device) -> dict[str, float]:
    """Of loss and gradient against float64 on the same rounded embeddings."""
    views = embeddings(pairs, d, device)
    exact_views = [view.detach().double().requires_grad_() for view in views]
    exact_loss = plain_in_float64(*exact_views)
    exact = torch.cat(torch.autograd.grad(exact_loss, exact_views))
    found = {}
    for name, loss in losses.items():
        value = loss(*views)
        gradient = torch.cat(torch.autograd.grad(value, views)).double()
        found[f"{name} loss error"] = _short((value.double() - exact_loss).abs() / exact_loss)
        found[f"{name} gradient error"] = _short((gradient - exact).norm() / exact.norm())
    return found


def plain_in_float64(z_a: Tensor, z_b: Tensor) -> Tensor:
    """CLIP's loss without a cast."""
    scores = F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T / TEMPERATURE
    target = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def _short(x: Tensor) -> float:
    return float(f"{x.item():.2g}")


def versions() -> dict[str, str]:
    """Of the libraries that say it."""
    found = {"flatclr": flatclr.__version__}
    for name, package in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def table(rows: list[dict[str, Any]], names: list[str], what: str) -> str:
    """One quantity of every way, as Markdown."""
    shown = [{"pairs": row["pairs"], "d": row["d"]} | {n: row.get(f"{n} {what}", "") for n in names} for row in rows]
    return f"{what}\n\n{record.markdown(shown)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, help="a folder of Python packages to look into first")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--sizes", nargs="+", metavar="NxD", help="pairs x width (default: the table)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="append the run here (default: results/loss_rivals.jsonl)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    if args.path is not None:
        if not args.path.is_dir():
            parser.error(
                f"expected --path to be a folder of packages, got {args.path}; pip install --target makes one."
            )
        sys.path.insert(0, str(args.path.resolve()))
    device = checked_device(args.device)
    sizes = [(int(n), int(d)) for n, _, d in (size.partition("x") for size in args.sizes)] if args.sizes else SIZES
    losses, problems = usable(device)
    for name, problem in problems.items():
        print(f"{name} is left out: {problem}", flush=True)
    rows = []
    for pairs, d in sizes:
        rows.append(measure(losses, pairs, d, device, args.rounds))
        print(f"{pairs} x {d} done", file=sys.stderr, flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for what in ("ms", "MiB", "loss error", "gradient error"):
        print(table(rows, list(losses), what))
    found = versions()
    print(", ".join(f"{name} {version}" for name, version in found.items()) + "; " + record.where())
    if not args.no_save:
        command = shlex.join(["python3", "-m", "benchmarks.loss_rivals", *sys.argv[1:]])
        kept = [row | {"versions": found, "left out": problems} for row in rows]
        print(f"appended to {record.append('loss_rivals', kept, command, args.out)}")


if __name__ == "__main__":
    main()
