"""Slides on negatives, CIFAR-10: positives of the class, and from 1 to 256 negatives."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from flatclr.contrast.numerics import unit_rows
from flatclr.data import ResidentImages
from flatclr.models.network import Network
from flatclr.models.trained import load_network
from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies import training_runs
from flatclr.studies.accuracies import percent, points
from flatclr.studies.judging import FAILED, HELD, Verdict, below, score_text
from flatclr.studies.literature import NEGATIVES
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import data_of, rate_at, training_run

COUNTS, BATCH, EPOCHS = (1, 4, 16, 64, 256), 256, 10.0
IMAGES = 2000  # of the test set, between all of which cosines are taken
SIMPLEX, WITHIN = -1 / 9, 0.03


def measure(job: Job) -> Numbers:
    """A training run, and the mean cosines of its embeddings within classes and across them."""
    numbers = training_runs.measure(job)
    data = data_of(job.settings)
    assert data is not None
    assert isinstance(data.test, ResidentImages)
    assert data.test.labels is not None
    network = load_network(job.folder / "run")
    assert isinstance(network, Network)
    network = network.to(job.device)
    images, labels = data.test.images[:IMAGES], data.test.labels[:IMAGES]
    with torch.no_grad():
        parts = (part.to(job.device).float() / 255 for part in images.split(250))
        embeddings = torch.cat(
            [network(network.normalisation(part) if network.normalisation else part)[0] for part in parts]
        )
    within, across = mean_cosines(embeddings.float().cpu(), labels)
    return {**numbers, "within": within, "across": across}


def mean_cosines(embeddings_Nd: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """Between different samples of a class, and between samples of different classes.

    >>> mean_cosines(torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    (1.0, -1.0)
    """
    unit = unit_rows(embeddings_Nd)
    cosines = unit @ unit.T
    same = labels_N.unsqueeze(1) == labels_N
    itself = torch.eye(len(unit), dtype=torch.bool)
    return cosines[same & ~itself].mean().item(), cosines[~same].mean().item()


def arm_of(negatives: int) -> str:
    return f"k {negatives}"


def plan(of: Plan) -> list[Run]:
    runs = []
    for seed in of.seeds:
        for negatives in COUNTS[:2] if of.quick else COUNTS:
            config = {
                "objective": "infonce",
                "temperature": 1.0,
                "negatives_per_anchor": negatives,
                "positives": "class",
                "batch_size": BATCH,
                "learning_rate": rate_at(BATCH),
                "epochs": EPOCHS,
            }
            run = training_run(arm_of(negatives), seed, config, quick=of.quick, protocols=("linear",))
            runs.append(Run(run.arm, run.seed, measure, run.settings))
    return runs


def table(found: Found) -> list[Row]:
    return [
        {
            "negatives": arm,
            "linear %": percent(found, arm, "linear"),
            "cosine within classes": score_text(found.mean(arm, "within"), 3),
            "across": score_text(found.mean(arm, "across"), 3),
            "minutes": f"{found.mean(arm, 'minutes').value:.1f}",
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(7.2, 3.0)
    left, right = figure.subplots(1, 2)
    counts = [int(arm.split()[1]) for arm in found.arms]
    left.plot(counts, [100 * found.mean(arm, "linear").value for arm in found.arms], "o-")
    left.set_ylabel("linear %")
    for name, colour in zip(("within", "across"), COLOURS, strict=False):
        right.plot(counts, [found.mean(arm, name).value for arm in found.arms], "o-", color=colour, label=name)
    right.axhline(SIMPLEX, color=MUTED, linestyle="--", linewidth=1, label="-1/9")
    right.set_ylabel("mean cosine")
    right.legend()
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("negatives k")
    return {"figure": figure}


def judge_accuracy(found: Found) -> Verdict:
    first, *later = found.arms
    falls = {arm: points(found, arm, first, "linear") for arm in later}
    fallen = [arm for arm, score in falls.items() if below(score) == HELD]
    shown = "; ".join(f"{arm} {score_text(score, 1)}" for arm, score in falls.items())
    return Verdict(FAILED if fallen else HELD, f"Less {first}, points of linear accuracy: {shown}.")


def judge_cosine(found: Found) -> Verdict:
    means = {arm: found.mean(arm, "across") for arm in found.arms}
    holds = all(abs(score.value - SIMPLEX) <= WITHIN for score in means.values())
    shown = "; ".join(f"{arm} {score_text(score, 3)}" for arm, score in means.items())
    return Verdict(HELD if holds else FAILED, f"Mean cosines across classes: {shown}.")


STUDY = Study(
    name="negatives-cifar",
    title="Negatives on CIFAR-10",
    source=f"{NEGATIVES}, CIFAR-10",
    experiment=(
        f"A positive is a view of another image of the class. ResNet-18, batch {BATCH}, {EPOCHS:g} epochs, InfoNCE at "
        "temperature 1 as in the theory, with k negatives drawn from the batch for each anchor. Linear accuracy, and "
        "mean cosines of embeddings of test images within and across classes."
    ),
    changed="length, batch and learning rate are ours; negatives are drawn from the batch, not from all images.",
    claims=(
        Claim(
            f"{NEGATIVES}, CIFAR-10",
            "Accuracy does not fall with the number of negatives.",
            "no k whose accuracy less that of k = 1 has its interval below 0",
            judge_accuracy,
        ),
        Claim(
            f"{NEGATIVES}, CIFAR-10",
            "Cosines across classes go to -1/9.",
            "mean within 0.03 of -0.111 at every k",
            judge_cosine,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 20 GPU minutes",
)
