"""Slides on negatives: what minimises the k-negative loss of the latent-class model, and what older bounds say."""

from __future__ import annotations

import math
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies.judging import OPEN, Verdict, exactly
from flatclr.studies.latent_classes import (
    class_prior,
    classification_loss,
    collision_coverage_factor,
    contrastive_loss,
    interval_widths,
    minimise,
    supervised_loss,
)
from flatclr.studies.literature import NEGATIVES
from flatclr.studies.study import Claim, Found, Job, Kept, Numbers, Plan, Row, Run, Study

BALANCED = {"4 equal classes": [1.0] * 4, "10 equal classes": [1.0] * 10}
UNBALANCED = {
    "8 : 4 : 2 : 1": [8.0, 4.0, 2.0, 1.0],
    "one of 0.6, four of 0.1": [0.6, *[0.1] * 4],
    "one of 0.9, five of 0.02": [0.9, *[0.02] * 5],
    "1 : 2 : ... : 8": [float(weight) for weight in range(1, 9)],
    "three of 0.3, two of 0.05": [*[0.3] * 3, *[0.05] * 2],
    "1 : 1/2 : 1/4 : 1/8 : 1/16 : 1/32": [0.5**power for power in range(6)],
}
LEMMA, PATH = "random representations", "one of 0.9, five of 0.02"
SHOWN = (1, 4, 32)  # whose Gram matrices are drawn
COUNTS = (1, 2, 4, 8, 10, 12, 16, 32, 128, 256)
MONOTONE, SIMPLEX = 1e-9, 1e-3


def measure_prior(job: Job) -> Numbers:
    """Minimum, supervised loss and bounds for each k."""
    prior = class_prior(job.settings["frequencies"])
    return {"rows": [_at(prior, k, starts=job.settings["starts"], seed=job.seed) for k in job.settings["counts"]]}


def _at(prior: Tensor, negatives: int, *, starts: int, seed: int) -> Numbers:
    minimum = minimise(prior, negatives=negatives, starts=starts, seed=seed)
    lower, upper = interval_widths(prior, negatives)
    apart = ~torch.eye(len(prior), dtype=torch.bool)
    return {
        "negatives": negatives,
        "loss": minimum.loss,
        "slope": minimum.slope,
        "spread": minimum.spread,
        "converged": minimum.converged,
        "supervised": supervised_loss(minimum.points, prior).item(),
        "mean_classifier": classification_loss(minimum.points, minimum.points, prior).item(),
        "factor": collision_coverage_factor(prior, negatives),
        "below": minimum.loss - lower,
        "above": minimum.loss + upper,
        "least_cosine": minimum.gram[apart].min().item(),
        "largest_cosine": minimum.gram[apart].max().item(),
        "gram": minimum.gram.tolist(),
    }


def measure_lemma(job: Job) -> Numbers:
    """Representations with several points in each class, against those that keep one of them for the class."""
    generator = torch.Generator().manual_seed(job.seed)
    classes, per_class = 3, 3
    labels = torch.arange(classes).repeat_interleave(per_class)
    best, mean = [], []
    for draw in range(job.settings["representations"]):
        negatives = (1, 2, 4, 16)[draw % 4]
        prior = class_prior(0.05 + torch.rand(classes, generator=generator, dtype=torch.float64))
        noise = torch.randn(classes * per_class, 4, generator=generator, dtype=torch.float64)
        centres = torch.randn(classes, 4, generator=generator, dtype=torch.float64)
        points = F.normalize((draw % 3) * centres[labels] + noise, dim=1)
        spread_out = contrastive_loss(points, prior, negatives=negatives, classes=labels)
        kept = torch.stack(
            [
                contrastive_loss(points[list(choice)], prior, negatives=negatives)
                for choice in product(*torch.arange(len(labels)).view(classes, per_class).tolist())
            ]
        )
        best.append((spread_out - kept.min()).item())
        mean.append((spread_out - kept.mean()).item())
    return {"less_best": best, "less_mean": mean}


def plan(of: Plan) -> list[Run]:
    counts = [1, 4, 32] if of.quick else list(COUNTS)
    priors = dict(list(BALANCED.items())[:1] + list(UNBALANCED.items())[:2]) if of.quick else BALANCED | UNBALANCED
    shared = {"counts": counts, "starts": 2 if of.quick else 3, "quick": of.quick}
    lemma = {"representations": 8 if of.quick else 200, "quick": of.quick}
    runs = [
        Run(name, seed, measure_prior, {"frequencies": frequencies, **shared})
        for seed in of.seeds
        for name, frequencies in priors.items()
    ]
    return [*runs, *(Run(LEMMA, seed, measure_lemma, lemma) for seed in of.seeds)]


def _of(found: Found, names: dict[str, list[float]]) -> list[Kept]:
    return [kept for kept in found if kept.arm in names]


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for kept in _of(found, BALANCED | UNBALANCED):
        first, last = kept.numbers["rows"][0], kept.numbers["rows"][-1]
        rows.append(
            {
                "classes": kept.arm,
                "cosines at k 1": f"{first['least_cosine']:.4f} to {first['largest_cosine']:.4f}",
                f"at k {last['negatives']}": f"{last['least_cosine']:.4f} to {last['largest_cosine']:.4f}",
                "supervised loss at k 1": f"{first['supervised']:.6f}",
                f"k {last['negatives']}": f"{last['supervised']:.6f}",
                "largest rise with k": f"{_largest_rise(kept):.1e}",
                "starts differ by": f"{max(row['spread'] for row in kept.numbers['rows']):.1e}",
            }
        )
    return rows


def _largest_rise(kept: Kept) -> float:
    losses: list[float] = [row["supervised"] for row in kept.numbers["rows"]]
    return max(later - earlier for earlier, later in pairwise(losses))


def draw(found: Found) -> dict[str, Figure]:
    figures = {}
    if any(kept.arm in BALANCED for kept in found):
        figures["bounds"] = _draw_bounds(_of(found, BALANCED)[-1])
    unbalanced = _of(found, UNBALANCED)
    if unbalanced:
        path = next((kept for kept in unbalanced if kept.arm == PATH), unbalanced[0])
        figures["gram_matrices"] = _draw_grams([*_of(found, BALANCED)[-1:], path])
        figures["unbalanced_path"] = _draw_path(path)
    return figures


def _draw_grams(runs: list[Kept]) -> Figure:
    figure = new_figure(7.2, 2.6 * len(runs))
    grid = figure.subplots(len(runs), len(SHOWN), squeeze=False)
    for line, kept in zip(grid, runs, strict=True):
        by_count = {row["negatives"]: row["gram"] for row in kept.numbers["rows"]}
        for axes, count in zip(line, SHOWN, strict=True):
            image = axes.imshow(by_count[count], vmin=-1, vmax=1, cmap="RdBu_r")
            axes.set_title(f"{kept.arm}, k {count}", fontsize=8)
            axes.grid(False)
            axes.set_xticks([])
            axes.set_yticks([])
    figure.colorbar(image, ax=grid, label="cosine between classes", shrink=0.6)
    return figure


def _draw_bounds(kept: Kept) -> Figure:
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    rows = kept.numbers["rows"]
    counts = [row["negatives"] for row in rows]
    axes.plot(counts, [row["supervised"] for row in rows], "o-", color=COLOURS[0], label="supervised loss")
    axes.plot(counts, [row["loss"] for row in rows], color=MUTED, linestyle=":", label="k-negative loss")
    factored = [row["factor"] * row["loss"] for row in rows]
    axes.plot(counts, factored, color=COLOURS[1], label="collision-coverage bound")
    above, below = [row["above"] for row in rows], [max(row["below"], 1e-3) for row in rows]
    axes.fill_between(counts, below, above, color=COLOURS[2], alpha=0.25, label="interval")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.1, 1e4)
    axes.set_xlabel("negatives k")
    axes.set_ylabel("nats")
    axes.set_title(f"{kept.arm}: the loss is flat, the older bound is not")
    axes.legend()
    return figure


def _draw_path(kept: Kept) -> Figure:
    figure = new_figure(6.4, 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    rows = kept.numbers["rows"]
    counts = [row["negatives"] for row in rows]
    upper.plot(counts, [row["largest_cosine"] for row in rows], "o-", label="between minority classes")
    upper.plot(counts, [row["least_cosine"] for row in rows], "o-", label="majority and minority")
    upper.set_ylabel("cosine")
    upper.set_title(f"{kept.arm}: minority classes coincide, then separate")
    upper.legend()
    lower.plot(counts, [row["supervised"] for row in rows], "o-", color=COLOURS[2])
    lower.set_xscale("log", base=2)
    lower.set_xlabel("negatives k")
    lower.set_ylabel("supervised loss (nats)")
    return figure


def judge_simplex(found: Found) -> Verdict:
    worst = 0.0
    for kept in _of(found, BALANCED):
        ideal = -1 / (len(kept.settings["frequencies"]) - 1)
        cosines = [row[name] for row in kept.numbers["rows"] for name in ("least_cosine", "largest_cosine")]
        worst = max(worst, *(abs(cosine - ideal) for cosine in cosines))
    return Verdict(exactly(worst < SIMPLEX), f"The largest distance of a cosine from -1/(C-1) is {worst:.1e}.")


def judge_balanced(found: Found) -> Verdict:
    worst = max(map(_largest_rise, _of(found, BALANCED)))
    return Verdict(exactly(worst < MONOTONE), f"The largest rise from a k to the next is {worst:.1e} nats.")


def judge_unbalanced(found: Found) -> Verdict:
    runs = _of(found, UNBALANCED)
    worst = max(map(_largest_rise, runs))
    converged = all(row["converged"] for kept in runs for row in kept.numbers["rows"])
    sure = "every minimisation converged" if converged else "some minimisations did not converge"
    return Verdict(
        exactly(worst < MONOTONE) if converged else OPEN,
        f"Over {len({kept.arm for kept in runs})} priors the largest rise is {worst:.1e} nats; {sure}.",
    )


def judge_lemma(found: Found) -> Verdict:
    less = [value for kept in found.of(LEMMA) for value in kept.numbers["less_best"]]
    broken = sum(value < -1e-12 for value in less)
    mean = sum(value < -1e-12 for kept in found.of(LEMMA) for value in kept.numbers["less_mean"])
    return Verdict(
        exactly(broken == 0),
        f"{broken} violations in {len(less)} representations; the mean over the points to keep is larger in {mean}.",
    )


def judge_factor(found: Found) -> Verdict:
    """Falls first, then grows, and near the end by eta^k / k or more: the blocks are no more than one then."""
    kept = _of(found, BALANCED)[-1]
    rows = kept.numbers["rows"]
    factors = [row["factor"] for row in rows]
    least = min(range(len(factors)), key=factors.__getitem__)
    eta = 1 + 1 / (len(kept.settings["frequencies"]) - 1)
    late, last = rows[-2], rows[-1]
    growth = math.log(last["factor"] / late["factor"]) / (last["negatives"] - late["negatives"])
    holds = 0 < least < len(rows) - 1 and abs(growth / math.log(eta) - 1) < 0.05
    valid = all(row["supervised"] <= row["factor"] * row["loss"] for run in _bounded(found) for row in run)
    return Verdict(
        exactly(holds and valid),
        f"{kept.arm}: the factor is least at k {rows[least]['negatives']} ({factors[least]:.0f}) and {factors[-1]:.1e} "
        f"at k {last['negatives']}; its logarithm grows by {growth:.4f} for each negative, log eta is "
        f"{math.log(eta):.4f}. The bound is {'valid' if valid else 'broken'} everywhere.",
    )


def _bounded(found: Found) -> list[list[Numbers]]:
    return [kept.numbers["rows"] for kept in _of(found, BALANCED | UNBALANCED)]


def notes(found: Found) -> list[str]:
    rows = [row for run in _bounded(found) for row in run]
    broken = sum(not row["below"] <= row["mean_classifier"] <= row["above"] for row in rows)
    path = [kept for kept in found if kept.arm == PATH]
    said = [
        f"The interval around the k-negative loss holds the loss of the mean classifier in {len(rows) - broken} of "
        f"{len(rows)} cases, and its upper end is above the supervised loss.",
    ]
    for kept in path:
        together = [row["negatives"] for row in kept.numbers["rows"] if row["largest_cosine"] > 1 - SIMPLEX]
        if together:
            said.append(f"{kept.arm}: the five minority classes are one point up to k {max(together)}, then separate.")
    return said


STUDY = Study(
    name="negatives-theory",
    title="Negatives, exactly",
    source=f"{NEGATIVES}, the theory (Awasthi et al. 2022)",
    experiment=(
        "Classes are drawn from a prior, anchor and positive from a class, k negatives from all classes. The expected "
        "k-negative loss is computed without sampling: as an integral that equals the sum over how many negatives are "
        "of each class, for any k. It is minimised over unit vectors from three random starts, by L-BFGS and then by "
        "Newton's method. The supervised loss is that of the best linear classifiers of unit norm. Beside it stand the "
        "older bounds: a factor on the k-negative loss for collisions and coverage, and an interval around it. The "
        "numbers of the priors are exact and deterministic, and equal to rounding from all three starts: one seed is "
        "all there is."
    ),
    changed=(
        "the constants of both older bounds are derived anew for this setting, as the docstrings state, because the "
        "slides give their form alone; the width of our interval is log S + log((C + k)/(k + 1)) for balanced classes, "
        "where the slides have alpha + 2 log(1 + 1/k). Lemma 1 is taken to say that a representation that is constant "
        "on classes is as good as any. A first full run left starts of the minimiser 1.1e-9 apart, above the 1e-9 that "
        "counts as converged; the minimiser was mended, the thresholds were not changed, and the runs made again."
    ),
    claims=(
        Claim(
            f"{NEGATIVES}, theorem",
            "For balanced classes the minimiser is the simplex ETF, for every k.",
            "cosines are -1/(C-1) to 1e-3",
            judge_simplex,
            needs=lambda run: run.arm in BALANCED,
        ),
        Claim(
            f"{NEGATIVES}, corollary",
            "For balanced classes the supervised loss does not increase with k.",
            "no rise above 1e-9",
            judge_balanced,
            needs=lambda run: run.arm in BALANCED,
        ),
        Claim(
            f"{NEGATIVES}, conjecture",
            "For unbalanced classes the supervised loss does not increase with k either.",
            "no rise above 1e-9 over at least 5 priors, every minimisation converged",
            judge_unbalanced,
            needs=lambda run: run.arm in UNBALANCED,
        ),
        Claim(
            f"{NEGATIVES}, Lemma 1",
            "Some representation that is constant on classes has a loss that is not larger.",
            "0 violations in at least 100 random representations",
            judge_lemma,
            needs=lambda run: run.arm == LEMMA,
        ),
        Claim(
            f"{NEGATIVES}, older bounds",
            "The older factor first falls, then grows like eta^k / k.",
            "least inside the range of k; at its end the logarithm grows by log eta for each negative, within 5 %",
            judge_factor,
            needs=lambda run: run.arm in BALANCED | UNBALANCED,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="a minute on a CPU",
    notes=notes,
    brackets="",
)
