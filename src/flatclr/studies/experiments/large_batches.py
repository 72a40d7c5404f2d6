"""FlatNCE paper, Fig. 4 and S2: do larger batches converge faster?"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import best_arm, held_out, is_held_out, percent
from flatclr.studies.judging import FAILED, HELD, OPEN, Verdict, above, every, pooled_spread
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Kept, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS, SMALL_VIEWS_CHANGE, training_run

BATCHES, BASE, RATES = (64, 128, 256, 512, 1024), 256, (0.12, 0.24, 0.48)
EPOCHS, TUNING_EPOCHS, GOAL = 40.0, 10.0, 0.7
OBJECTIVE: dict[str, Any] = {"objective": "flatnce", "ess_target": 0.25}


def arm_of(batch: int) -> str:
    return f"batch {batch}"


def tuning_arm(rate: float) -> str:
    return held_out(f"rate {rate:g}")


def plan(of: Plan) -> list[Run]:
    """One rate is tuned on held-out images at the base batch; the others are in proportion to it."""

    def run(arm: str, seed: int, batch: int, rate: float, epochs: float, *, held_out: bool) -> Run:
        every = 50_000 // batch
        config = {**OBJECTIVE, **SMALL_VIEWS, "batch_size": batch, "learning_rate": rate, "epochs": epochs}
        config |= {"log_every": every, "eval_every": every, "eval_samples": 10_000}
        return training_run(arm, seed, config, quick=of.quick, protocols=["knn"], held_out=held_out)

    rates = RATES[:2] if of.quick else RATES
    tuned = [run(tuning_arm(rate), 0, BASE, rate, TUNING_EPOCHS, held_out=True) for rate in rates]
    if not all(one.name in of.found for one in tuned):
        return tuned
    arms = {tuning_arm(rate): rate for rate in rates}
    best = arms.get(best_arm(of.found, arms, "knn") or "", rates[0])
    batches = BATCHES[:2] if of.quick else BATCHES
    return [
        *tuned,
        *(run(arm_of(b), seed, b, best * b / BASE, EPOCHS, held_out=False) for seed in of.seeds for b in batches),
    ]


def reached(kept: Kept) -> tuple[float, float] | None:
    """Epochs and seconds of training up to the goal, on a line from the evaluation before it to the first above."""
    rows = [row for row in kept.numbers["evaluations"] if "knn" in row]
    place = next((i for i, row in enumerate(rows) if row["knn"] >= GOAL), None)
    if place is None:
        return None
    last, first = rows[max(place - 1, 0)], rows[place]
    rise = first["knn"] - last["knn"]
    share = (GOAL - last["knn"]) / rise if rise > 0 else 1.0
    epoch, minutes = (last[name] + share * (first[name] - last[name]) for name in ("epoch", "minutes"))
    return epoch, 60 * minutes


def measured(found: Found) -> list[int]:
    return [batch for batch in BATCHES if found.of(arm_of(batch))]


def table(found: Found) -> list[Row]:
    rows: list[Row] = [
        {"run": arm, "held-out kNN %": percent(found, arm, "knn")} for arm in found.arms if is_held_out(arm)
    ]
    for batch in measured(found):
        goals = [reached(kept) for kept in found.of(arm_of(batch))]
        rows.append(
            {
                "run": arm_of(batch),
                "rate": f"{found.one(arm_of(batch)).settings['config']['learning_rate']:g}",
                "epochs to 70 %": _mean([None if goal is None else goal[0] for goal in goals]),
                "seconds to 70 %": _mean([None if goal is None else goal[1] for goal in goals]),
                "kNN % at the end": percent(found, arm_of(batch), "knn"),
            }
        )
    return rows


def _mean(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{sum(there) / len(there):.1f}" if len(there) == len(values) else "not reached"


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    for batch, colour in zip(measured(found), COLOURS, strict=False):
        rows = [row for row in found.one(arm_of(batch)).numbers["evaluations"] if "knn" in row]
        minutes, accuracy = [row["minutes"] for row in rows], [100 * row["knn"] for row in rows]
        axes.plot(minutes, accuracy, color=colour, label=arm_of(batch))
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("kNN %")
    axes.set_title("Accuracy by time")
    axes.legend()
    return {"figure": figure}


def _not_reached(found: Found, batch: int, times: Mapping[int, Sequence[float]]) -> Verdict:
    """Where every seed of a batch took longer in all than every one of the batch before took to the goal, that says it.

    Args:
        times: logarithms of seconds to the goal, of the batches before.
    """
    says = f"{arm_of(batch)} did not reach {GOAL:.0%} in every seed"
    before = list(times.values())[-1:]
    seconds = [60 * kept.numbers["minutes"] for kept in found.of(arm_of(batch)) if reached(kept) is None]
    if len(seconds) == len(found.of(arm_of(batch))) and before and math.log(min(seconds)) > max(before[0]):
        return Verdict(FAILED, f"{says}, in {min(seconds):.0f} seconds; {arm_of([*times][-1])} did in fewer.")
    return Verdict(OPEN, f"{says}.")


def judge(found: Found) -> Verdict:
    """From every batch to the next by the logarithm of the time: it is factors that are alike over seeds."""
    if any(kept.environment.get("jobs", 1) != 1 for kept in found if not is_held_out(kept.arm)):
        return Verdict(OPEN, "Runs shared the device, so their times say nothing: make them with --jobs 1.")
    times: dict[int, list[float]] = {}
    for batch in measured(found):
        goals = [goal for goal in map(reached, found.of(arm_of(batch))) if goal is not None]
        if len(goals) < len(found.of(arm_of(batch))):
            return _not_reached(found, batch, times)
        times[batch] = [math.log(seconds) for _, seconds in goals]
    spread, steps = pooled_spread(list(times.values())), list(itertools.pairwise(times))
    alone, among = (
        [spread.difference(times[small], times[large], comparisons=count) for small, large in steps]
        for count in (1, len(steps))
    )
    shown = ", ".join(f"{math.exp(statistics.fmean(logs)):.0f} at {batch}" for batch, logs in times.items())
    stops = next((large for (_, large), score in zip(steps, alone, strict=True) if above(score) != HELD), None)
    says = f"Seconds: {shown}" + (f"; they no longer fall for sure at {stops}." if stops else ".")
    return Verdict(every(alone, among), says)


STUDY = Study(
    name="large-batches",
    title="Larger batches, by time",
    source=f"{FLATNCE}, Fig. 4 and S2",
    experiment=(
        f"FlatNCE with the ESS held at 0.25, ResNet-18, CIFAR-10, {EPOCHS:g} epochs, batch 64 to 1,024. The learning "
        f"rate is tuned at batch {BASE} on held-out images, and in proportion to the batch elsewhere. Epochs and "
        f"seconds of training until kNN reaches {GOAL:.0%}, looked at after every epoch."
    ),
    changed=(
        f"one GPU instead of a cluster; {SMALL_VIEWS_CHANGE}; seconds leave evaluations out, and are read off a "
        "line between evaluations. Intervals are of the spread over seeds of all batches together."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 4",
            "Larger batches converge faster.",
            "seconds to 70 % kNN fall from every batch to the next, by intervals of their logarithms; else said where "
            "they stop; it does not hold where no seed of a batch gets there in the time of the one before",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 20 GPU minutes, one run at a time",
)
