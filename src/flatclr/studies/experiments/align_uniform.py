"""f-MICL (3) and notes: alignment and uniformity say how accurate an encoder is, and can be optimised directly."""

from __future__ import annotations

import json
import math
import statistics
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from flatclr.files import json_ready
from flatclr.plots import COLOURS, new_figure
from flatclr.runs import CONFIG, RunDirectory
from flatclr.studies.accuracies import percent, points
from flatclr.studies.checkpoints import metrics_of
from flatclr.studies.judging import OPEN, Verdict, above, score_text
from flatclr.studies.literature import F_MICL, INFOMAX
from flatclr.studies.ranking import rank_correlation
from flatclr.studies.study import Claim, Found, Job, Kept, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS, SMALL_VIEWS_CHANGE, located, rate_at, training_run

BATCH, EPOCHS = 256, 20.0
WEIGHTS, ALPHAS, TS = (0.5, 1.0, 2.0), (1.0, 2.0), (1.0, 2.0, 4.0)
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
DIRECT, CONTRASTIVE, KEPT = "direct", "InfoNCE", "kept runs"


def plan(of: Plan) -> list[Run]:
    every = 50_000 // BATCH
    schedule = {"batch_size": BATCH, "learning_rate": rate_at(BATCH), "epochs": EPOCHS, "log_every": every}
    schedule |= {"eval_every": 5 * every}
    arms: dict[str, dict[str, Any]] = {
        f"{DIRECT}, uniformity x {weight:g}, alpha {alpha:g}, t {t:g}": {
            "objective": "align_uniform",
            "objective_options": {"uniform_weight": weight, "alpha": alpha, "t": t},
        }
        for weight, alpha, t in product(WEIGHTS, ALPHAS, TS)
    }
    arms |= {f"{CONTRASTIVE}, temperature {t:g}": {"objective": "infonce", "temperature": t} for t in TEMPERATURES}
    if of.quick:
        arms = {name: arms[name] for name in (*list(arms)[:2], *list(arms)[-2:])}
    sweep = [
        training_run(arm, seed, {**own, **SMALL_VIEWS, **schedule}, quick=of.quick, protocols=["knn"])
        for seed in of.seeds
        for arm, own in arms.items()
    ]
    return [Run(KEPT, 0, measure_kept, {"kept": str(of.options["kept"])}), *sweep]


def measure_kept(job: Job) -> Numbers:
    """Alignment, uniformity and kNN at the end of every run below a folder; runs that differ in seeds are averaged."""
    cells: dict[str, list[Point]] = {}
    for path in sorted(Path(located(job.settings["kept"])).glob(f"*/{CONFIG}")):
        point = _end_of(path.parent)
        if point is not None:
            settings = RunDirectory.open(path.parent).config()
            cell = json_ready({name: settings[name] for name in sorted(settings) if name not in ("seed", "out")})
            cells.setdefault(json.dumps(cell), []).append(point)
    means = [Point(*(statistics.fmean(numbers) for numbers in zip(*points, strict=True))) for points in cells.values()]
    return {"points": [list(point) for point in means], "runs": sum(map(len, cells.values()))}


class Point(NamedTuple):
    """A run, or the mean of some."""

    alignment: float
    uniformity: float
    knn: float


def _end_of(run: Path) -> Point | None:
    """Gauges as means over the last quarter of a run, the last accuracy; None where it has none of them."""
    rows = metrics_of(run)
    logs = [row for row in rows if row.get("kind") == "log" and isinstance(row.get("alignment"), float)]
    accuracies = [row["knn"] for row in rows if row.get("kind") == "evaluation" and isinstance(row.get("knn"), float)]
    if not logs or not accuracies:
        return None
    last = logs[-max(1, len(logs) // 4) :]
    alignment, uniformity = (statistics.fmean(row[name] for row in last) for name in ("alignment", "uniformity"))
    return Point(alignment, uniformity, accuracies[-1])


def points_of(found: Found) -> list[Point]:
    """The kept runs, and those of the sweep."""
    points = [Point(*point) for kept in found.of(KEPT) for point in kept.numbers["points"]]
    return points + [Point(*place_of(kept), kept.numbers["knn"]) for kept in found if kept.arm != KEPT]


def place_of(kept: Kept) -> tuple[float, float]:
    """Alignment and uniformity of the last batch that was logged."""
    last = kept.numbers["log"][-1]
    return last["alignment"], last["uniformity"]


def table(found: Found) -> list[Row]:
    return [
        {
            "run": arm,
            "alignment": f"{place_of(found.one(arm))[0]:.3f}",
            "uniformity": f"{place_of(found.one(arm))[1]:.3f}",
            "kNN %": percent(found, arm, "knn"),
        }
        for arm in found.arms
        if arm != KEPT
    ]


def notes(found: Found) -> list[str]:
    runs = sum(kept.numbers["runs"] for kept in found.of(KEPT))
    cells = sum(len(kept.numbers["points"]) for kept in found.of(KEPT))
    return [f"Besides the sweep, {runs} kept runs of {cells} kinds are in the figure and in the first claim."]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(5.2, 4.0)
    axes = figure.subplots()
    alignment, uniformity, knn = zip(*points_of(found) or [Point(math.nan, math.nan, math.nan)], strict=True)
    shown = axes.scatter(alignment, uniformity, c=[100 * value for value in knn], cmap="viridis")
    figure.colorbar(shown, ax=axes, label="kNN %")
    axes.set_xlabel("alignment (low: views together)")
    axes.set_ylabel("uniformity (low: spread out)")
    axes.set_title("Runs by alignment and uniformity", color=COLOURS[0])
    return {"figure": figure}


def judge_places(found: Found) -> Verdict:
    points = points_of(found)
    if len(points) < 3:
        return Verdict(OPEN, "No kept runs were named: --set kept=FOLDER takes run directories.")
    score = rank_correlation([-(point.alignment + point.uniformity) for point in points], [p.knn for p in points])
    return Verdict(above(score), f"Over {len(points)} kinds of runs; the lower the sum, the more accurate.", score)


def best(found: Found, kind: str) -> str:
    arms = [arm for arm in found.arms if arm.startswith(kind)]
    return max(arms, key=lambda arm: found.mean(arm, "knn").value)


def judge_direct(found: Found) -> Verdict:
    direct, contrastive = best(found, DIRECT), best(found, CONTRASTIVE)
    score = points(found, direct, contrastive, "knn")
    return Verdict(above(score, -0.5), f"{direct} less {contrastive}: {score_text(score, 1)}.", score, "points")


STUDY = Study(
    name="align-uniform",
    title="Alignment, uniformity and accuracy",
    source=f"{F_MICL}, equation (3); {INFOMAX}",
    experiment=(
        "Alignment and uniformity optimised directly, weights x alpha x t, and InfoNCE at temperatures 0.05 to 1; "
        f"ResNet-18, CIFAR-10, {EPOCHS:g} epochs, batch {BATCH}. Alignment and uniformity of training batches, kNN on "
        "test images. Beside them all runs that are kept of other experiments on CIFAR-10, whatever they vary."
    ),
    changed=(
        f"in the sweep {SMALL_VIEWS_CHANGE}, and "
        "one learning rate for all; the best of each kind is chosen by the kNN that it is judged by, for both. Kept "
        "runs differ in length and batch size too, which move gauges and accuracy together; a kind counts once, "
        "whatever its seeds."
    ),
    claims=(
        Claim(
            f"{F_MICL}, (3)",
            "Encoders low in both alignment and uniformity are accurate.",
            "rank correlation of minus their sum with kNN above 0, over kept runs, each kind once",
            judge_places,
            needs=lambda run: run.arm == KEPT,
        ),
        Claim(
            INFOMAX,
            "Optimising both directly is at least as good as contrasting.",
            "best against best, paired: lower end above -0.5 points of kNN",
            judge_direct,
            needs=lambda run: run.arm != KEPT,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 20 GPU minutes with --jobs 5 that share the GPU",
    options={"kept": "results/cifar10/runs"},
    notes=notes,
)
