"""FlatNCE paper, Fig. 4 and S2: do larger batches converge faster?"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import percent
from flatclr.studies.judging import OPEN, Verdict, exactly
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Kept, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS, SMALL_VIEWS_CHANGE, training_run

BATCHES, BASE, RATES = (64, 128, 256, 512, 1024), 256, (0.12, 0.24, 0.48)
EPOCHS, TUNING_EPOCHS, GOAL = 40.0, 10.0, 0.7
OBJECTIVE: dict[str, Any] = {"objective": "flatnce", "ess_target": 0.25}


def arm_of(batch: int) -> str:
    return f"batch {batch}"


def tuning_arm(rate: float) -> str:
    return f"held out: rate {rate:g}"


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
    best = max(rates, key=lambda rate: of.found.mean(tuning_arm(rate), "knn").value)
    batches = BATCHES[:2] if of.quick else BATCHES
    return [
        *tuned,
        *(run(arm_of(b), seed, b, best * b / BASE, EPOCHS, held_out=False) for seed in of.seeds for b in batches),
    ]


def reached(kept: Kept) -> tuple[float, float] | None:
    """Epochs and minutes of training up to the first evaluation at the goal."""
    rows = (row for row in kept.numbers["evaluations"] if row.get("knn", 0.0) >= GOAL)
    first = next(rows, None)
    return None if first is None else (first["epoch"], first["minutes"])


def measured(found: Found) -> list[int]:
    return [batch for batch in BATCHES if found.of(arm_of(batch))]


def table(found: Found) -> list[Row]:
    rows: list[Row] = [
        {"run": arm, "held-out kNN %": percent(found, arm, "knn")} for arm in found.arms if arm.startswith("held out")
    ]
    for batch in measured(found):
        goals = [reached(kept) for kept in found.of(arm_of(batch))]
        rows.append(
            {
                "run": arm_of(batch),
                "rate": f"{found.one(arm_of(batch)).settings['config']['learning_rate']:g}",
                "epochs to 70 %": _mean([None if goal is None else goal[0] for goal in goals]),
                "minutes to 70 %": _mean([None if goal is None else goal[1] for goal in goals]),
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


def judge(found: Found) -> Verdict:
    times: dict[int, float] = {}
    for batch in measured(found):
        goals = [reached(kept) for kept in found.of(arm_of(batch))]
        if None in goals:
            return Verdict(OPEN, f"{arm_of(batch)} did not reach {GOAL:.0%} in every seed.")
        times[batch] = max(goal[1] for goal in goals if goal is not None)
    falls = [
        batch for batch, last in zip(measured(found)[1:], measured(found), strict=False) if times[batch] < times[last]
    ]
    shown = ", ".join(f"{minutes:.1f} at {batch}" for batch, minutes in times.items())
    stops = next((batch for batch in measured(found)[1:] if batch not in falls), None)
    says = f"Minutes, the slower seed: {shown}" + (f"; they stop falling at {stops}." if stops else ".")
    return Verdict(exactly(stops is None), says)


STUDY = Study(
    name="large-batches",
    title="Larger batches, by time",
    source=f"{FLATNCE}, Fig. 4 and S2",
    experiment=(
        f"FlatNCE with the ESS held at 0.25, ResNet-18, CIFAR-10, {EPOCHS:g} epochs, batch 64 to 1,024. The learning "
        f"rate is tuned at batch {BASE} on held-out images, and in proportion to the batch elsewhere. Epochs and "
        f"minutes of training until kNN reaches {GOAL:.0%}, looked at after every epoch."
    ),
    changed=(
        f"one GPU instead of a cluster; {SMALL_VIEWS_CHANGE}; minutes leave evaluations out. With --jobs runs share it "
        "and take longer."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 4",
            "Larger batches converge faster.",
            "minutes to 70 % kNN fall from every batch to the next; else said where they stop",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 20 GPU minutes, one run at a time",
)
