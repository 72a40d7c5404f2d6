"""Two acts: the log-K curse and its cure on pairs with known mutual information, then a real run on real images.

    make demo                          (or: python examples/demo.py --help)

Everything printed is also in the files of the output folder.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from known_mi import BATCH, OBJECTIVES, POOL_NEGATIVES, GaussianPairs, Reading, readings
from matplotlib.figure import Figure
from neighbours import nearest, neighbours_figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import flatclr
from flatclr.evaluation.intervals import Score
from flatclr.files import replace_files
from flatclr.plots import COLOURS, MUTED, figure_style, new_figure, save_figure
from flatclr.report.figures import draw_panels
from flatclr.report.page import write_report
from flatclr.report.panels import OVERVIEW
from flatclr.runs import RunDirectory, new_directory
from flatclr.training.display import Display

PAIR_STEPS, IMAGE_STEPS = 4000, 700
RECIPE: dict[str, Any] = {  # the best of those tried for two CPU cores
    "views_per_image": 8,
    "view_size": 16,
    "views": {"brightness": 0.8, "contrast": 0.8, "jitter_probability": 1.0, "blur_probability": 0.5},
    "batch_size": 32,
    "learning_rate": 3e-3,
    "recalibrate": True,
}
console = Console()


def known_mi_act(out: Path, *, steps: int, seed: int) -> None:
    """InfoNCE and FlatNCE on the same pairs: the bound of a batch, and the MI behind it."""
    truth = GaussianPairs()
    console.rule("Act one: the log-K curse and its cure")
    console.print(
        f"Gaussian pairs in {truth.dimensions} dimensions that share {truth.mi_nats:g} nats; two MLPs, cosine scores, "
        f"batches of K = {BATCH} pairs, {steps:,} steps, seed {seed}."
    )
    rows: list[Reading] = []
    every = max(1, steps // 16)
    with one_thread(), Progress(console=console) as progress:
        for name in OBJECTIVES:
            task = progress.add_task(f"{name:<18}", total=steps)
            for row in readings(name, steps=steps, every=every, seed=seed):
                rows.append(row)
                progress.update(task, completed=row.step)
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    replace_files({out / "known_mi.jsonl": lines.encode()})
    with figure_style():
        save_figure(out / "known_mi.png", known_mi_figure(rows, truth.mi_nats))
    last = [max((row for row in rows if row.objective == name), key=lambda row: row.step) for name in OBJECTIVES]
    table = Table(title=f"After {steps:,} steps, in nats; the pairs share {truth.mi_nats:g}")
    for heading in ("objective", "batch bound", "log K", "pool MI", "ceiling", "beta"):
        table.add_column(heading, justify="left" if heading == "objective" else "right", no_wrap=True)
    for row in last:
        table.add_row(
            row.objective,
            f"{row.batch_mi_nats:.2f}",
            f"{row.batch_ceiling_nats:.2f}",
            f"{row.pool_mi_nats:.2f}",
            f"{row.pool_ceiling_nats:.2f}",
            f"{row.beta:.1f}",
        )
    console.print(table)
    console.print(
        f"Batch bound: mean over the last {every:,} steps. Pool MI: InfoNCE of fresh pairs against "
        f"{POOL_NEGATIVES:,} negatives, at the best of a few betas, chosen on other pairs than those it is read on."
    )
    console.print(f"picture: {out / 'known_mi.png'}", soft_wrap=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches this small only wait for each other's threads; and the numbers do not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def known_mi_figure(rows: list[Reading], truth_nats: float) -> Figure:
    figure = new_figure(9.6, 3.4)
    batch, pool = figure.subplots(1, 2)
    for name, colour in zip(OBJECTIVES, COLOURS[1::-1] + COLOURS[2:3], strict=True):
        own = [row for row in rows if row.objective == name]
        steps = [row.step for row in own]
        batch.plot(steps, [row.batch_mi_nats for row in own], color=colour, label=name)
        pool.plot(steps, [row.pool_mi_nats for row in own], color=colour, label=name)
    for axes, ceiling, label in (
        (batch, rows[0].batch_ceiling_nats, f"ceiling, log {BATCH}"),
        (pool, rows[0].pool_ceiling_nats, f"ceiling, log {POOL_NEGATIVES + 1:,}"),
    ):
        axes.axhline(ceiling, color=MUTED, linestyle="--", linewidth=1, label=label)
        axes.axhline(truth_nats, color=MUTED, linestyle=":", linewidth=1.6, label=f"true MI, {truth_nats:g}")
        axes.set_ylim(0, 1.08 * truth_nats)
        axes.set_xlabel("step")
        axes.set_ylabel("nats")
    batch.set_title(f"What a batch of {BATCH} shows")
    pool.set_title(f"The same encoders against {POOL_NEGATIVES:,} negatives")
    batch.legend(loc="center right", bbox_to_anchor=(1, 0.45))
    pool.legend(loc="lower right")
    return figure


def images_act(out: Path, *, steps: int, seed: int) -> None:
    """The trainer of `flatclr train` on the embedded images."""
    console.rule("Act two: an encoder from images, without labels")
    config = flatclr.TrainConfig(
        objective="flatnce",
        ess_target=0.25,
        **RECIPE,
        steps=steps,
        eval_every=max(1, -(-steps // 2)),
        log_every=max(1, min(50, steps // 4)),
        seed=seed,
        out=str(out / "training"),
    )
    console.print(
        f"FlatNCE on the embedded Fashion-MNIST images, ESS held at {config.ess_target:g}; batches of "
        f"{config.batch_size} images, {config.views_per_image} views of {config.view_size} pixels of each, {steps:,} "
        f"steps, seed {seed}. The untrained encoder is measured first."
    )
    started: list[nn.Module] = []

    def keep_start(event: flatclr.training.Event) -> None:
        if isinstance(event, flatclr.training.Started):
            started.append(copy.deepcopy(event.network.get_submodule("encoder")))

    with Display() as display:
        result = flatclr.train(config, progress=False, on_event=[display, keep_start])
    run = RunDirectory.open(result.path)
    rows = run.metrics()
    save_figure(out / "training.png", draw_panels(OVERVIEW, rows, run.config(), columns=3))
    report = write_report(run.path)
    precision = draw_neighbours(out / "neighbours.png", started[0], run.path)
    with console.status("evaluating on the test images, beside random weights"):
        found = flatclr.evaluate(run.path, protocol=["knn", "linear"], seed=seed, out=run.path)
    table = Table(title="Test accuracy in %, with 95 % intervals")
    for heading in ("protocol", "trained", "untrained"):
        table.add_column(heading, no_wrap=True)
    for name in ("knn", "linear"):
        untrained = found.random_beside(found[name])
        assert untrained is not None
        table.add_row(name, percent(found[name].best), percent(untrained.best))
    console.print(table)
    console.print(
        f"Of the five training images nearest to a test image, {precision[1]:.1%} are of its class; before training, "
        f"{precision[0]:.1%}."
    )
    log = [row for row in rows if row["kind"] == "log"][-1]
    console.print(
        f"Last batch: ESS {log['ess']:.2f} (target {config.ess_target:g}) at beta {log['beta']:.1f}; bound "
        f"{log['mi_nats']:.2f} of at most {log['ceiling_nats']:.2f} nats."
    )
    for name, path in (
        ("encoder", run.path / "encoder.safetensors"),
        ("report", report),
        ("evaluation", run.path / "results.json"),
        ("picture", out / "training.png"),
        ("neighbours before and after", out / "neighbours.png"),
    ):
        console.print(f"{name}: {path}", soft_wrap=True)


def draw_neighbours(path: Path, start: nn.Module, run: Path) -> list[float]:
    """Draw the neighbours of some test images before and after; returns the share of the right class of each."""
    data, encoder = flatclr.data.fashion_mnist_small(), flatclr.load_encoder(run)
    train, test = data.train, data.test
    assert isinstance(train, flatclr.data.ResidentImages)
    assert isinstance(test, flatclr.data.ResidentImages)
    assert encoder.normalisation is not None
    with console.status("looking for neighbours before and after"):
        titled = (("left, before training", start), ("right, after", encoder))
        sides = [nearest(title, module, train, test, encoder.normalisation) for title, module in titled]
        with figure_style():
            save_figure(path, neighbours_figure(train, test, sides))
    return [side.precision for side in sides]


def percent(score: Score) -> str:
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="The log-K curse and its cure, then a real run on real images.")
    parser.add_argument(
        "--steps", type=int, help=f"steps of each act (default: {PAIR_STEPS} on pairs, {IMAGE_STEPS} on images)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder to write to (default: runs/demo, numbered if taken)")
    args = parser.parse_args()
    if args.steps is not None and args.steps < 1:
        parser.error(f"--steps must be a whole number >= 1, got {args.steps}; leave it out for the whole demo.")
    if args.out is not None and args.out.exists():
        parser.error(f"--out must not exist yet, got {args.out}; choose another folder, so that nothing is lost.")
    out = new_directory(args.out or Path("runs/demo"))
    known_mi_act(out, steps=args.steps or PAIR_STEPS, seed=args.seed)
    images_act(out, steps=args.steps or IMAGE_STEPS, seed=args.seed)


if __name__ == "__main__":
    main()
