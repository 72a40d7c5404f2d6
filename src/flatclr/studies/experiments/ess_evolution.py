"""FlatNCE paper, Fig. 6: how the effective sample size of negatives moves along training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, new_figure
from flatclr.runs import CONFIG, RunDirectory
from flatclr.studies.checkpoints import metrics_of
from flatclr.studies.judging import OPEN, Verdict, above, mean_score, pooled_spread, score_text, together
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import OVER_SEEDS, Claim, Found, Job, Kept, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import located, thinned, training_run

ARMS: dict[str, dict[str, Any]] = {
    "InfoNCE": {"objective": "infonce", "temperature": 0.1},
    "FlatNCE": {"objective": "flatnce", "temperature": 0.1},
}
INFO, FLAT = ARMS
ESS = {"ess": "over negatives", "ess_with_positive": "of InfoNCE's own weights"}
SHARE = 5  # of a run, at its start and at its end
KEPT, LEAST_EPOCHS = "kept runs", 20.0
NONE = "No kept runs of both objectives: --set kept=FOLDER takes run directories."


def plan(of: Plan) -> list[Run]:
    schedule = {"steps": 600, "batch_size": 32, "log_every": 10, "eval_every": 10_000, "eval_start": False}
    small = {"encoder_options": {"width": 16}, "eval_samples": 500}
    kept = Run(KEPT, 0, measure_kept, {"kept": str(of.options["kept"])})
    return [kept] + [
        training_run(
            arm, seed, {**own, **schedule, **small}, recipe="small", data="embedded", protocols=["knn"], quick=of.quick
        )
        for seed in of.seeds
        for arm, own in ARMS.items()
    ]


def measure_kept(job: Job) -> Numbers:
    """The ESS over negatives along every run below a folder that is as long and has the temperature of a claim."""
    runs = []
    for path in sorted(Path(located(job.settings["kept"])).glob(f"*/{CONFIG}")):
        config = RunDirectory.open(path.parent).config()
        names = [arm for arm, own in ARMS.items() if all(config.get(name) == value for name, value in own.items())]
        rows = [
            row for row in metrics_of(path.parent) if row.get("kind") == "log" and isinstance(row.get("ess"), float)
        ]
        if names and rows and rows[-1]["epoch"] >= LEAST_EPOCHS:
            log = thinned([{name: row[name] for name in ("step", "epoch", "ess")} for row in rows])
            runs.append({"arm": names[0], "batch": config["batch_size"], "seed": config["seed"], "log": log})
    return {"runs": runs}


class Ends(NamedTuple):
    """Of runs that differ in their seeds alone: means over the first and the last fifth of each."""

    first: list[float]
    last: list[float]


def kept_ends(found: Found) -> dict[int, dict[str, Ends]]:
    """By batch size and objective, of batch sizes at which there are runs of both."""
    runs = [run for kept in found.of(KEPT) for run in kept.numbers["runs"]]
    cells: dict[int, dict[str, Ends]] = {}
    for run in runs:
        both = cells.setdefault(run["batch"], {}).setdefault(run["arm"], Ends([], []))
        for values, end in zip(both, _ends(run["log"], "ess"), strict=True):
            values.append(end)
    return {batch: of_arms for batch, of_arms in sorted(cells.items()) if len(of_arms) == len(ARMS)}


def differences(found: Found, pairs: Sequence[tuple[list[float], list[float]]]) -> list[Score]:
    """One mean less the other, their interval of the spread over seeds of all kept runs together."""
    spread = pooled_spread([end for of_arms in kept_ends(found).values() for both in of_arms.values() for end in both])
    return [spread.difference(one, other) for one, other in pairs]


def ends(kept: Kept, number: str) -> tuple[float, float]:
    """Means over the first and the last fifth of the run."""
    return _ends(kept.numbers["log"], number)


def _ends(rows: Sequence[dict[str, Any]], number: str) -> tuple[float, float]:
    values = [row[number] for row in rows if number in row]
    part = max(1, len(values) // SHARE)
    return sum(values[:part]) / part, sum(values[-part:]) / part


def trend(found: Found, arm: str, number: str) -> list[float]:
    return [last - first for first, last in (ends(kept, number) for kept in found.of(arm))]


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for batch, of_arms in kept_ends(found).items():
        changes = differences(found, [(both.last, both.first) for both in of_arms.values()])
        for (arm, both), change in zip(of_arms.items(), changes, strict=True):
            rows.append(
                {
                    "objective": arm,
                    "images": f"CIFAR-10, batch {batch}, seeds {len(both.first)}",
                    "ESS": ESS["ess"],
                    "first fifth": f"{mean_score(both.first).value:.3f}",
                    "last fifth": f"{mean_score(both.last).value:.3f}",
                    "change": score_text(change, 3),
                }
            )
    for arm in arms_of(found):
        for number, meaning in ESS.items():
            of_seeds = [ends(kept, number) for kept in found.of(arm)]
            rows.append(
                {
                    "objective": arm,
                    "images": f"Fashion-MNIST, 600 steps, seeds {len(of_seeds)}",
                    "ESS": meaning,
                    "first fifth": score_text(mean_score([first for first, _ in of_seeds]), 3),
                    "last fifth": score_text(mean_score([last for _, last in of_seeds]), 3),
                    "change": score_text(mean_score(trend(found, arm, number)), 3),
                }
            )
    return rows


def arms_of(found: Found) -> list[str]:
    return [arm for arm in found.arms if arm != KEPT]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(10.8, 3.2)
    of_kept, *others = figure.subplots(1, 3)
    runs = [run for kept in found.of(KEPT) for run in kept.numbers["runs"]]
    for place, run in enumerate(runs):
        style, colour = (
            "-" if run["batch"] == min(r["batch"] for r in runs) else "--",
            COLOURS[list(ARMS).index(run["arm"])],
        )
        label = f"{run['arm']}, batch {run['batch']}"
        is_first = label not in [f"{r['arm']}, batch {r['batch']}" for r in runs[:place]]
        epochs, values = [row["epoch"] for row in run["log"]], [row["ess"] for row in run["log"]]
        of_kept.plot(epochs, values, style, color=colour, linewidth=1, label=label if is_first else None)
    of_kept.set_title("CIFAR-10, ESS over negatives")
    of_kept.set_xlabel("epoch")
    if runs:
        of_kept.legend(fontsize=6)
    for axes, (number, meaning) in zip(others, ESS.items(), strict=True):
        for arm, colour in zip(arms_of(found), COLOURS, strict=False):
            for place, kept in enumerate(found.of(arm)):
                rows = [row for row in kept.numbers["log"] if number in row]
                steps, values = [row["step"] for row in rows], [row[number] for row in rows]
                axes.plot(steps, values, color=colour, linewidth=1, label=arm if place == 0 else None)
        axes.set_title(f"Fashion-MNIST, ESS {meaning}", fontsize=8)
        axes.set_xlabel("step")
        axes.legend()
    return {"figure": figure}


def judge_info(found: Found) -> Verdict:
    """The kept runs have logged the ESS over negatives alone, which cannot say that the other one does not fall."""
    cells = kept_ends(found)
    if not cells:
        return Verdict(OPEN, NONE)
    changes = differences(found, [(of_arms[INFO].last, of_arms[INFO].first) for of_arms in cells.values()])
    shown = _shown(cells, changes)
    short = mean_score(trend(found, INFO, "ess_with_positive")) if found.of(INFO) else None
    beside = f" In 600 steps on Fashion-MNIST its own weights change by {score_text(short, 3)}." if short else ""
    return Verdict(OPEN, f"The kept runs did not log its own weights; over negatives it changes by {shown}.{beside}")


def judge_flat(found: Found) -> Verdict:
    cells = kept_ends(found)
    if not cells:
        return Verdict(OPEN, NONE)
    changes = differences(found, [(of_arms[FLAT].last, of_arms[FLAT].first) for of_arms in cells.values()])
    starts = ", ".join(f"{mean_score(of_arms[FLAT].first).value:.3f}" for of_arms in cells.values())
    word = together([above(change) for change in changes])
    return Verdict(word, f"From {starts} it changes by {_shown(cells, changes)}.", changes[0])


def judge_apart(found: Found) -> Verdict:
    cells = kept_ends(found)
    if not cells:
        return Verdict(OPEN, NONE)
    apart = differences(found, [(of_arms[FLAT].last, of_arms[INFO].last) for of_arms in cells.values()])
    word = together([above(score) for score in apart])
    return Verdict(word, f"FlatNCE less InfoNCE at the end, both over negatives: {_shown(cells, apart)}.", apart[0])


def _shown(cells: dict[int, dict[str, Ends]], scores: Sequence[Score]) -> str:
    return ", ".join(f"{score_text(score, 3)} at batch {batch}" for batch, score in zip(cells, scores, strict=True))


STUDY = Study(
    name="ess-evolution",
    title="How the effective sample size moves",
    source=f"{FLATNCE}, Fig. 6",
    experiment=(
        f"Kept runs on CIFAR-10 at temperature 0.1, ResNet-18, at least {LEAST_EPOCHS:g} epochs, which decide; beside "
        "them a small CNN on the embedded Fashion-MNIST images, batch 32, temperature 0.1, 600 steps. ESS over "
        "negatives, and of InfoNCE's own weights, which the positive is in: exp(2 lae(p, l) - lae(2p, l2)) / (K + 1). "
        "The kept runs did not log the second."
    ),
    changed=(
        "the paper does not say which ESS it shows. First the short runs on Fashion-MNIST decided, in which the ESS "
        "of both objectives falls; in the first epochs on CIFAR-10 it does so too, and then rises, so that runs of a "
        "length that can tell decide now. Intervals are of the spread over seeds of all kept runs together."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 6",
            "SimCLR's ESS falls, from 0.06 to 0.05.",
            "its own weights: change below 0",
            judge_info,
            lambda run: run.arm in (KEPT, INFO),
        ),
        Claim(
            f"{FLATNCE}, Fig. 6",
            "FlatNCE's ESS rises, from 0.17 to 0.35.",
            "over negatives: change above 0 at every batch size that was kept",
            judge_flat,
            lambda run: run.arm == KEPT,
        ),
        Claim(
            f"{FLATNCE}, Fig. 6",
            "FlatNCE's ESS is above SimCLR's.",
            "at the end, both over negatives, at every batch size that was kept",
            judge_apart,
            lambda run: run.arm == KEPT,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 3 minutes on two cores",
    options={"kept": "results/cifar10/runs"},
    brackets=f"{OVER_SEEDS}; on CIFAR-10 by the spread of all kept runs together",
)
