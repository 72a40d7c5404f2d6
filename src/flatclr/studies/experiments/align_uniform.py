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
from flatclr.studies.accuracies import best_arm, held_out, percent, points
from flatclr.studies.checkpoints import metrics_of
from flatclr.studies.judging import NOT_RUN, OPEN, Verdict, above, score_text
from flatclr.studies.literature import F_MICL, INFOMAX
from flatclr.studies.ranking import rank_correlation
from flatclr.studies.study import Claim, Found, Job, Kept, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS, SMALL_VIEWS_CHANGE, located, rate_at, training_run

BATCH, EPOCHS = 256, 20.0
WEIGHTS, ALPHAS, TS = (0.5, 1.0, 2.0), (1.0, 2.0), (1.0, 2.0, 4.0)
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
ROOM = 0.5  # points: "at least as good"
KINDS = DIRECT, CONTRASTIVE = ("direct", "InfoNCE")
KEPT = "kept runs"


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

    def run(arm: str, own: dict[str, Any], seed: int, *, held_out: bool = False) -> Run:
        config = {**own, **SMALL_VIEWS, **schedule}
        return training_run(arm, seed, config, quick=of.quick, protocols=["knn"], held_out=held_out)

    sweep = [run(held_out(arm), own, 0, held_out=True) for arm, own in arms.items()]
    runs = [Run(KEPT, 0, measure_kept, {"kept": str(of.options["kept"])}), *sweep]
    if all(one.name in of.found for one in sweep):
        chosen = [arm for arm in arms if held_out(arm) in (best_of_sweep(of.found, kind) for kind in KINDS)]
        runs += [run(arm, arms[arm], seed) for seed in of.seeds for arm in chosen]
    return runs


def best_of_sweep(found: Found, kind: str) -> str | None:
    """The arm of a kind that is best on held-out images."""
    return best_arm(found, [arm for arm in found.arms if arm.startswith(held_out(kind))], "knn")


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


def kept_points(found: Found) -> list[Point]:
    """Of runs of other experiments, by kind."""
    return [Point(*point) for kept in found.of(KEPT) for point in kept.numbers["points"]]


def trained(found: Found) -> list[Kept]:
    """The runs of this study that came to their end."""
    return [kept for kept in found if kept.arm != KEPT and "stopped" not in kept.numbers]


def place_of(kept: Kept) -> tuple[float, float]:
    """Alignment and uniformity of the last batch that was logged."""
    last = kept.numbers["log"][-1]
    return last["alignment"], last["uniformity"]


def table(found: Found) -> list[Row]:
    there = {kept.arm for kept in trained(found)}
    return [
        {
            "run": arm,
            "alignment": f"{place_of(found.one(arm))[0]:.3f}" if arm in there else "",
            "uniformity": f"{place_of(found.one(arm))[1]:.3f}" if arm in there else "",
            "kNN %": percent(found, arm, "knn"),
            "seeds": str(len(found.of(arm))),
        }
        for arm in found.arms
        if arm != KEPT
    ]


def notes(found: Found) -> list[str]:
    runs = sum(kept.numbers["runs"] for kept in found.of(KEPT))
    kinds = len(kept_points(found))
    return [f"{runs} kept runs of {kinds} kinds are in the figure too, and they alone in the first claim."]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(5.2, 4.0)
    axes = figure.subplots()
    points = kept_points(found) + [Point(*place_of(kept), kept.numbers["knn"]) for kept in trained(found)]
    alignment, uniformity, knn = zip(*points or [Point(math.nan, math.nan, math.nan)], strict=True)
    shown = axes.scatter(alignment, uniformity, c=[100 * value for value in knn], cmap="viridis")
    figure.colorbar(shown, ax=axes, label="kNN %")
    axes.set_xlabel("alignment (low: views together)")
    axes.set_ylabel("uniformity (low: spread out)")
    axes.set_title("Runs by alignment and uniformity", color=COLOURS[0])
    return {"figure": figure}


def judge_places(found: Found) -> Verdict:
    points = kept_points(found)
    if len(points) < 3:
        return Verdict(OPEN, "No kept runs were named: --set kept=FOLDER takes run directories.")
    score = rank_correlation([-(point.alignment + point.uniformity) for point in points], [p.knn for p in points])
    return Verdict(above(score), f"Over {len(points)} kinds of runs; the lower the sum, the more accurate.", score)


def judge_direct(found: Found) -> Verdict:
    arms = [next((arm for arm in found.arms if arm.startswith(kind)), None) for kind in KINDS]
    direct, contrastive = arms
    if direct is None or contrastive is None:
        return Verdict(NOT_RUN, "The best of each kind, chosen on held-out images, are still to be run on all of them.")
    score = points(found, direct, contrastive, "knn")
    says = f"{direct} less {contrastive}, both chosen on held-out images: {score_text(score, 1)} points of kNN."
    return Verdict(above(score, -ROOM), says, score, "points")


STUDY = Study(
    name="align-uniform",
    title="Alignment, uniformity and accuracy",
    source=f"{F_MICL}, equation (3); {INFOMAX}",
    experiment=(
        "Alignment and uniformity optimised directly, weights x alpha x t, and InfoNCE at temperatures 0.05 to 1; "
        f"ResNet-18, CIFAR-10, {EPOCHS:g} epochs, batch {BATCH}: one run each, measured by kNN on 5,000 training "
        "images that are held out. The best of each kind is trained again and measured on test images. "
        "Alignment and uniformity are of training batches. Beside them all runs that are kept of other experiments on "
        "CIFAR-10, whatever they vary."
    ),
    changed=(
        f"in the sweep {SMALL_VIEWS_CHANGE}, and "
        "one learning rate for all. Kept runs differ in length and batch size too, which move gauges and accuracy "
        "together; a kind counts once, whatever its seeds."
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
            "best against best, each chosen on held-out images, seeds paired: lower end above -0.5 points of kNN",
            judge_direct,
            needs=lambda run: run.arm != KEPT,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=4,
    budget="about 10 GPU minutes with --jobs 5 that share the GPU",
    options={"kept": "results/cifar10/runs"},
    notes=notes,
    brackets="95 % intervals: of the rank correlation over kinds of runs, of accuracies over seeds",
)
