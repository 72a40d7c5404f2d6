"""FlatNCE paper, Table S1: what published pre-training costs, beside runs of this package."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from flatclr.checks import require_number
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.judging import OPEN, Verdict
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Job, Kept, Numbers, Plan, Row, Run, Study

OPTION, PRICE = "dollars_per_hour", 3.5  # of an H200
PUBLISHED = {"MoCo": 23_000.0, "SimCLR": 1_720.0, "CLIP": 634_000.0}  # dollars


@dataclass(frozen=True)
class Measured:
    """A run of this package that is kept in results/cifar10/runs, as its page shows it."""

    run: str
    what: str
    minutes: float
    knn_percent: float
    linear_percent: float

    @property
    def reached(self) -> str:
        return f"kNN {self.knn_percent:g} %, linear {self.linear_percent:g} %"


PAGE = "results/cifar10/time_to_accuracy.md"
OURS = (  # an installed package has no results to read: a test compares these with the clocks and scores there
    Measured("fast-e80-s0", "CIFAR-10, two views, 80 epochs", 1.5, 82.3, 86.5),
    Measured("fast-e180-s0", "CIFAR-10, two views, 180 epochs", 3.2, 86.9, 89.9),
)


def measure(job: Job) -> Numbers:
    price = job.settings[OPTION]
    return {"dollars": {one.what: one.minutes / 60 * price for one in OURS}}


def plan(of: Plan) -> list[Run]:
    price = of.options[OPTION]
    require_number(OPTION, price, above=0, advice=f"say {OPTION}={PRICE}.")
    arm = "bill" if price == PRICE else f"bill at ${float(price)} an hour"  # so that every price has a run
    return [Run(arm, 0, measure, {OPTION: price, "quick": of.quick})]


def bill(found: Found) -> Kept:
    """The only run: that of the price."""
    return next(iter(found))


def table(found: Found) -> list[Row]:
    kept = bill(found)
    price = kept.settings[OPTION]
    ours = [
        {
            "pre-training": one.what,
            "minutes": f"{one.minutes:g}",
            "dollars": f"{kept.numbers['dollars'][one.what]:.2f}",
            "reached": one.reached,
            "evidence": f"{one.run} in {PAGE}, one H200 at ${price:g} an hour",
        }
        for one in OURS
    ]
    published = [
        {"pre-training": name, "dollars": f"{dollars:,.0f}", "evidence": "as published, ImageNet or larger"}
        for name, dollars in PUBLISHED.items()
    ]
    return [*ours, *published]


def draw(found: Found) -> dict[str, Figure]:
    bills = {**bill(found).numbers["dollars"], **PUBLISHED}
    figure = new_figure(6.4, 2.6)
    axes = figure.subplots()
    axes.barh(list(bills), list(bills.values()), color=[COLOURS[name in PUBLISHED] for name in bills])
    axes.set_xscale("log")
    axes.set_xlabel("dollars")
    axes.set_title("Bills of pre-training, of different data")
    return {"figure": figure}


def judge(found: Found) -> Verdict:
    dearest = max(bill(found).numbers["dollars"].values())
    return Verdict(
        OPEN,
        f"Arithmetic only: a run of {max(one.minutes for one in OURS):g} minutes costs ${dearest:.2f}, of CIFAR-10 and "
        "not of ImageNet; the published bills cannot be checked from here.",
    )


STUDY = Study(
    name="cost",
    title="What pre-training costs",
    source=f"{FLATNCE}, Table S1",
    experiment="Minutes of kept runs times a price per hour, beside the published bills.",
    changed="the data are CIFAR-10, so the two kinds of bills are not comparable; they share only their unit.",
    claims=(
        Claim(
            f"{FLATNCE}, Table S1",
            "Contrastive pre-training costs $23k (MoCo), $1,720 (SimCLR) or $634k (CLIP).",
            "arithmetic only; the price per hour is an option",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="no time",
    options={OPTION: PRICE},
    brackets="",
)
