"""f-MICL: the dual value of f-information never exceeds it, and equals it at the right critic."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from flatclr.objectives.f_divergence import Divergence, find_divergence
from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies.judging import Verdict, exactly
from flatclr.studies.literature import F_MICL
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study

NAMES = {
    "KL": "kl",
    "Jensen-Shannon": "js",
    "Pearson": "pearson",
    "squared Hellinger": "hellinger",
    "Tsallis": "tsallis",
    "Vincze-Le Cam": "vlc",
}
ROWS, COLUMNS = 6, 5
NOISE = torch.logspace(-3, 0.5, 15, dtype=torch.float64).tolist()
TOLERANCE = 1e-10


def measure(job: Job) -> Numbers:
    """Exact value of one joint distribution, dual value at the right critic and at wrong ones."""
    divergence, generator = find_divergence(job.settings["divergence"]), torch.Generator().manual_seed(job.seed)
    joint = torch.distributions.Dirichlet(torch.ones(ROWS * COLUMNS, dtype=torch.float64)).sample().view(ROWS, COLUMNS)
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    ratio = joint / independent
    exact = (independent * divergence.f(ratio)).sum()
    wrong = []
    for noise in NOISE:
        draws = torch.randn(job.settings["critics"], ROWS, COLUMNS, generator=generator, dtype=torch.float64)
        wrong.append([_dual(ratio * (noise * draw).exp(), joint, independent, divergence).item() for draw in draws])
    return {
        "exact": exact.item(),
        "at_optimum": _dual(ratio, joint, independent, divergence).item(),
        "best_wrong": [max(duals) for duals in wrong],
        "mean_wrong": [sum(duals) / len(duals) for duals in wrong],
    }


def _dual(model: Tensor, joint: Tensor, independent: Tensor, divergence: Divergence) -> Tensor:
    """E_p T - E_q f*(T) at T = f'(model); every model > 0 gives a T inside the domain of f*."""
    return (joint * divergence.derivative(model)).sum() - (
        independent * divergence.conjugate_of_derivative(model)
    ).sum()


def plan(of: Plan) -> list[Run]:
    settings = {"critics": 10 if of.quick else 1000, "quick": of.quick}
    return [
        Run(name, seed, measure, {"divergence": short, **settings})
        for seed in of.seeds
        for name, short in NAMES.items()
    ]


def table(found: Found) -> list[Row]:
    return [
        {
            "divergence": arm,
            "exact": f"{found.one(arm).numbers['exact']:.6f}",
            "dual at f'(r), less exact": f"{_gap(found, arm):.1e}",
            "best wrong critic, less exact": f"{_excess(found, arm):.1e}",
        }
        for arm in found.arms
    ]


def _gap(found: Found, arm: str) -> float:
    return max(abs(float(one.numbers["at_optimum"] - one.numbers["exact"])) for one in found.of(arm))


def _excess(found: Found, arm: str) -> float:
    return max(float(max(one.numbers["best_wrong"]) - one.numbers["exact"]) for one in found.of(arm))


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    for arm, colour in zip(found.arms, COLOURS, strict=False):
        numbers = found.one(arm).numbers
        axes.plot(NOISE, [value / numbers["exact"] for value in numbers["mean_wrong"]], color=colour, label=arm)
    axes.axhline(1, color=MUTED, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(-1, 1.1)
    axes.set_xlabel("noise in the logarithm of the modelled ratio")
    axes.set_ylabel("dual value / exact")
    axes.set_title("The dual value touches the f-information at the right critic alone")
    axes.legend()
    return {"figure": figure}


def judge_below(found: Found) -> Verdict:
    worst = max(_excess(found, arm) for arm in found.arms)
    critics = sum(one.settings["critics"] * len(NOISE) for one in found)
    return Verdict(
        exactly(worst < TOLERANCE), f"The best of {critics:,} wrong critics is {worst:.1e} from the exact value."
    )


def judge_equal(found: Found) -> Verdict:
    worst = max(_gap(found, arm) for arm in found.arms)
    return Verdict(exactly(worst < TOLERANCE), f"The largest difference over six divergences is {worst:.1e}.")


STUDY = Study(
    name="f-information",
    title="f-information and its dual",
    source=F_MICL,
    experiment=(
        f"A joint distribution over {ROWS} x {COLUMNS} symbols is drawn. The f-information is summed exactly, and so "
        "is the dual E_p T - E_q f*(T), at T = f'(r) for the true ratio r, and at T = f'(r e^noise) for wrong ones."
    ),
    changed="the source states the identity; the distribution is ours. Tsallis has order 3, as published.",
    claims=(
        Claim(
            f"{F_MICL}, dual form",
            "The dual value is never above the f-information.",
            "no critic above by 1e-10",
            judge_below,
        ),
        Claim(
            f"{F_MICL}, dual form",
            "At T = f'(r) the dual value equals the f-information.",
            "within 1e-10 for six divergences",
            judge_equal,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="seconds on a CPU",
    brackets="",
)
