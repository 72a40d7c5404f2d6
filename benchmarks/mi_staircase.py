"""Bias, variance and mean squared error of every method on the Gaussian staircase, beside what theory says.

    python -m benchmarks.mi_staircase            both staircases, as in results/mi_staircase.md

Gaussian pairs in 20 dimensions of 2, 4, 6, 8 and 10 nats, plain and with y cubed. Learned methods train a separable
critic on fresh batches of 128, from step to step of the staircase; then each of many fresh batches of 128 gives one
estimate. FlatNCE, whose batch does not limit what it learns, reads from 2,048 rows. Copulas, neighbours and the default
have no staircase to climb: they start anew on each batch of 128, the default with small networks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from flatclr.mi import FAST, METHODS, estimate, limits, tasks
from flatclr.mi.arrays import as_tensor
from flatclr.mi.critics import make_critic
from flatclr.mi.density import DENSITY_BOUNDS, Conditional, gaussian_entropy_nats
from flatclr.mi.methods import VARIATIONAL
from flatclr.mi.variational import Flat, Variational

BATCH, POOL = 128, 2048
HIDDEN = 128
LEARNING_RATE = 1e-3

Batches = Callable[[int], tuple[Tensor, Tensor]]


def fresh_batches(task: tasks.Task, seed: int) -> Batches:
    """Rows nobody has seen, at every call."""
    state = {"seed": seed * 1_000_003}

    def batch(rows: int) -> tuple[Tensor, Tensor]:
        state["seed"] += 1
        x, y = task.sample(rows, state["seed"])
        return as_tensor(x), as_tensor(y)

    return batch


def train(learner: Variational | Conditional, batch: Batches, steps: int) -> None:
    optimizer = torch.optim.Adam(learner.parameters(), LEARNING_RATE)
    for _ in range(steps):
        loss = learner.loss(*batch(BATCH))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()


def estimates(name: str, staircase: list[tasks.Task], *, steps: int, repeats: int, seed: int) -> list[list[float]]:
    """For each step of the staircase, `repeats` estimates from a fresh batch each."""
    torch.manual_seed(seed)
    found: list[list[float]] = []
    learner: Variational | None = None
    conditional: Conditional | None = None
    for level, task in enumerate(staircase):
        batch = fresh_batches(task, seed + level + 1)
        if name in VARIATIONAL:
            if learner is None:
                critic = make_critic("cosine" if name == "flatnce" else "separable", 20, 20, hidden=HIDDEN)
                learner = VARIATIONAL[name](critic, 20, 20, HIDDEN)
            train(learner, batch, steps)
            if isinstance(learner, Flat):
                learner.validate(*batch(POOL))
            rows = POOL if name == "flatnce" else BATCH
            found.append([learner.read(*batch(rows)).nats for _ in range(repeats)])
        elif name in DENSITY_BOUNDS:
            conditional = conditional or Conditional(*batch(POOL), hidden=HIDDEN)
            train(conditional, batch, steps)
            entropy = gaussian_entropy_nats(batch(20_000)[1])
            found.append([conditional.read(name, *batch(BATCH), entropy).nats for _ in range(repeats)])
        else:
            draws = ([v.double().numpy() for v in batch(BATCH)] for _ in range(repeats))
            found.append([estimate(x, y, name, settings=FAST).nats for x, y in draws])
    return found


def label(method: str) -> str:
    """The method, and where it reads from other than a batch."""
    return f"{method} (pool of {POOL:,} rows)" if method == "flatnce" else method


def summary(values: list[float], truth: float) -> dict[str, float]:
    bias = statistics.fmean(values) - truth
    variance = statistics.variance(values)
    return {"bias": round(bias, 3), "variance": round(variance, 4), "mse": round(bias**2 + variance, 3)}


def theory(truth: float) -> dict[str, float]:
    """InfoNCE's bias at best, and the variance of NWJ's partition term at the optimal critic."""
    pairs = BATCH * (BATCH - 1)
    return {
        "theory_infonce_bias_at_most": round(min(0.0, limits.info_nce_ceiling_nats(BATCH - 1) - truth), 3),
        "theory_nwj_variance_at_least": round(limits.nwj_least_variance(truth, pairs), 4),
        "theory_nwj_variance_gaussian": round(limits.gaussian_nwj_variance(truth, pairs), 4),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line per method, a column per step of the staircase, theory below."""
    levels = sorted({row["true"] for row in rows})
    parts = []
    for y in dict.fromkeys(row["y"] for row in rows):
        lines = [f"y {y}: bias / variance / mean squared error; {BATCH} rows an estimate where none are named", ""]
        lines += ["| method | " + " | ".join(f"{level:g} nats" for level in levels) + " |"]
        lines += ["| --- " * (len(levels) + 1) + "|"]
        chosen = [row for row in rows if row["y"] == y]
        for method in dict.fromkeys(row["method"] for row in chosen):
            found = {row["true"]: row for row in chosen if row["method"] == method}
            shown = (f"{found[v]['bias']:.3g} / {found[v]['variance']:.3g} / {found[v]['mse']:.3g}" for v in levels)
            lines.append(f"| {label(method)} | " + " | ".join(shown) + " |")
        for key in theory(1.0):
            shown = (f"{theory(level)[key]:.4g}" for level in levels)
            lines.append(f"| *{key.replace('_', ' ')}* | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps per step of the staircase")
    parser.add_argument("--repeats", type=int, default=50, help="estimates per step of the staircase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for cubic in (False, True):
        staircase = tasks.staircase(cubic=cubic)
        for name in arguments.methods.split(","):
            found = estimates(name, staircase, steps=arguments.steps, repeats=arguments.repeats, seed=arguments.seed)
            for task, values in zip(staircase, found, strict=True):
                truth = round(task.mi_nats, 6)
                row = {"y": "cubed" if cubic else "plain", "method": name, "true": truth}
                rows.append({**row, **summary(values, truth), **theory(truth)})
                print(rows[-1], file=sys.stderr, flush=True)
    path = record.append("mi_staircase", rows, "python -m benchmarks.mi_staircase " + " ".join(sys.argv[1:]))
    settings = f"{arguments.steps} training steps a level, {arguments.repeats} estimates each, seed {arguments.seed}"
    where = record.where()
    text = f"{table(rows)}\n{settings}.\nMeasured with {where}.\n"
    path.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
