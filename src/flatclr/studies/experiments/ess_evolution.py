"""FlatNCE paper, Fig. 6: how the effective sample size of negatives moves along training."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from flatclr.plots import COLOURS, new_figure
from flatclr.studies.judging import Verdict, above, below, mean_score, score_text, together
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Kept, Plan, Row, Run, Study
from flatclr.studies.training_runs import training_run

ARMS: dict[str, dict[str, Any]] = {
    "InfoNCE": {"objective": "infonce", "temperature": 0.1},
    "FlatNCE": {"objective": "flatnce", "temperature": 0.1},
}
INFO, FLAT = ARMS
ESS = {"ess": "over negatives", "ess_with_positive": "of InfoNCE's own weights"}
SHARE = 5  # of a run, at its start and at its end


def plan(of: Plan) -> list[Run]:
    schedule = {"steps": 600, "batch_size": 32, "log_every": 10, "eval_every": 10_000, "eval_start": False}
    small = {"encoder_options": {"width": 16}, "eval_samples": 500}
    return [
        training_run(
            arm, seed, {**own, **schedule, **small}, recipe="small", data="embedded", protocols=["knn"], quick=of.quick
        )
        for seed in of.seeds
        for arm, own in ARMS.items()
    ]


def ends(kept: Kept, number: str) -> tuple[float, float]:
    """Means over the first and the last fifth of the run."""
    values = [row[number] for row in kept.numbers["log"] if number in row]
    part = max(1, len(values) // SHARE)
    return sum(values[:part]) / part, sum(values[-part:]) / part


def trend(found: Found, arm: str, number: str) -> list[float]:
    return [last - first for first, last in (ends(kept, number) for kept in found.of(arm))]


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for arm in found.arms:
        for number, meaning in ESS.items():
            both = [ends(kept, number) for kept in found.of(arm)]
            rows.append(
                {
                    "objective": arm,
                    "ESS": meaning,
                    "first fifth": score_text(mean_score([first for first, _ in both]), 3),
                    "last fifth": score_text(mean_score([last for _, last in both]), 3),
                    "change": score_text(mean_score(trend(found, arm, number)), 3),
                }
            )
    return rows


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(8.4, 3.2)
    for axes, (number, meaning) in zip(figure.subplots(1, 2), ESS.items(), strict=True):
        for arm, colour in zip(found.arms, COLOURS, strict=False):
            for place, kept in enumerate(found.of(arm)):
                rows = [row for row in kept.numbers["log"] if number in row]
                steps, values = [row["step"] for row in rows], [row[number] for row in rows]
                axes.plot(steps, values, color=colour, linewidth=1, label=arm if place == 0 else None)
        axes.set_title(f"ESS {meaning}")
        axes.set_xlabel("step")
        axes.legend()
    return {"figure": figure}


def judge_info(found: Found) -> Verdict:
    score, others = (mean_score(trend(found, INFO, number)) for number in ("ess_with_positive", "ess"))
    says = f"InfoNCE's own weights change by {score_text(score, 3)}, negatives alone by {score_text(others, 3)}."
    return Verdict(below(score), says, score)


def judge_flat(found: Found) -> Verdict:
    score = mean_score(trend(found, FLAT, "ess"))
    start = mean_score([ends(kept, "ess")[0] for kept in found.of(FLAT)])
    return Verdict(above(score), f"From {start.value:.3f} it changes by {score_text(score, 3)}.", score)


def judge_apart(found: Found) -> Verdict:
    pairs = list(zip(found.of(FLAT), found.of(INFO), strict=True))
    score = mean_score([ends(flat, "ess")[1] - ends(info, "ess_with_positive")[1] for flat, info in pairs])
    same = mean_score([ends(flat, "ess")[1] - ends(info, "ess")[1] for flat, info in pairs])
    own = f"FlatNCE over negatives less InfoNCE's own: {score_text(score, 3)}"
    says = f"{own}; both over negatives: {score_text(same, 3)}."
    return Verdict(together([above(score), above(same)]), says, same)


STUDY = Study(
    name="ess-evolution",
    title="How the effective sample size moves",
    source=f"{FLATNCE}, Fig. 6",
    experiment=(
        "A small CNN on the embedded Fashion-MNIST images, batch 32, temperature 0.1, 600 steps. ESS over negatives, "
        "and of InfoNCE's own weights, which the positive is in: exp(2 lae(p, l) - lae(2p, l2)) / (K + 1)."
    ),
    changed="small images on a CPU instead of CIFAR-10; the paper does not say which ESS it shows, so both are.",
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 6",
            "SimCLR's ESS falls, from 0.06 to 0.05.",
            "its own weights: change below 0",
            judge_info,
        ),
        Claim(
            f"{FLATNCE}, Fig. 6",
            "FlatNCE's ESS rises, from 0.17 to 0.35.",
            "over negatives: change above 0",
            judge_flat,
        ),
        Claim(
            f"{FLATNCE}, Fig. 6",
            "FlatNCE's ESS is above SimCLR's.",
            "at the end, both by the same definition and by each its own",
            judge_apart,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 3 minutes on two cores",
)
