"""Notes on information maximisation, A3 and A4: the critic and the architecture decide, not the bound."""

from __future__ import annotations

from itertools import product

import torch
from matplotlib.figure import Figure
from torch import nn

from flatclr.evaluation.intervals import Score
from flatclr.objectives import NWJ, InfoNCE
from flatclr.objectives.critics import CriticObjective
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import percent, points
from flatclr.studies.halves import accuracy, bound_nats, cnn, halves_of, mlp, train_on_halves
from flatclr.studies.judging import Verdict, above, below, score_text, together
from flatclr.studies.literature import INFOMAX
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Settings, Study

CRITICS, BOUNDS = ("bilinear", "separable", "mlp"), {"InfoNCE": InfoNCE, "NWJ": NWJ}
NETWORKS, TARGETS = ("MLP", "CNN"), (2.0, 3.0)


def critic_arm(critic: str, bound: str) -> str:
    return f"{critic} critic, {bound}"


def target_arm(network: str, nats: float) -> str:
    return f"{network} to {nats:g} nats"


def measure(job: Job) -> Numbers:
    """Train both encoders and the critic; the bound that was reached, and linear accuracy by depth."""
    settings, device = job.settings, torch.device(job.device)
    train, test = halves_of(settings, device)
    torch.manual_seed(job.seed)
    encoders = (_encoder(job, train.top[0].numel()).to(device), _encoder(job, train.top[0].numel()).to(device))
    kind: type[CriticObjective] = BOUNDS[settings["bound"]]
    options = {"running_offset": True} if kind is NWJ else {}
    objective = kind(
        1.0,
        critic=settings["critic"],
        critic_dim=settings["features"],
        stop_at_nats=settings["nats"],
        pairing="one_way",
        **options,  # type: ignore[arg-type]
    ).to(device)
    train_on_halves(encoders, objective, train, settings, seed=job.seed, watch=lambda step: None)
    depths = [encoders[0][:end] for end in range(1, len(encoders[0]) + 1) if _ends_a_layer(encoders[0], end)]
    by_depth = [accuracy(part, train, test, seed=job.seed) for part in depths]
    reached = bound_nats(encoders, objective, test, settings)
    return {"bound": reached, "accuracy": by_depth[-1], "by_depth": by_depth}


def _encoder(job: Job, inputs: int) -> nn.Sequential:
    settings = job.settings
    if settings["network"] == "CNN":
        return cnn(1, settings["features"], width=settings["cnn_width"])
    return mlp(inputs, settings["features"], width=settings["width"])


def _ends_a_layer(encoder: nn.Sequential, end: int) -> bool:
    """Whether a part of the network so long ends behind an activation, or is all of it."""
    return end == len(encoder) or not isinstance(encoder[end - 1], nn.Linear | nn.Flatten)


def plan(of: Plan) -> list[Run]:
    full = {"steps": 3000, "batch": 128, "rate": 1e-4, "features": 100, "width": 300, "cnn_width": 32}
    tiny = {"steps": 2, "batch": 16, "rate": 1e-4, "features": 4, "width": 8, "cnn_width": 4}
    common = {
        **(tiny if of.quick else full),
        "data": "embedded" if of.quick else str(of.options["data"]),
        "quick": of.quick,
    }
    runs = []
    for seed in of.seeds:
        for critic, bound in product(CRITICS, BOUNDS):
            own: Settings = {"critic": critic, "bound": bound, "network": "MLP", "nats": None}
            runs.append(Run(critic_arm(critic, bound), seed, measure, {**own, **common}))
        for network, nats in product(NETWORKS, TARGETS):
            own = {"critic": "bilinear", "bound": "InfoNCE", "network": network, "nats": nats}
            runs.append(Run(target_arm(network, nats), seed, measure, {**own, **common}))
    return runs


def table(found: Found) -> list[Row]:
    return [
        {
            "run": arm,
            "bound on test images, nats": score_text(found.mean(arm, "bound")),
            "linear accuracy %": percent(found, arm, "accuracy"),
            "by depth, first seed": ", ".join(f"{100 * value:.1f}" for value in found.one(arm).numbers["by_depth"]),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    for place, arm in enumerate(found.arms):
        marker = "o" if "critic" in arm else "s"
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(found.values(arm, "bound"), found.values(arm, "accuracy"), marker, color=colour, label=arm)
    axes.set_xlabel("InfoNCE bound on test images (nats)")
    axes.set_ylabel("linear accuracy")
    axes.set_title("Linear accuracy against the bound")
    axes.legend(fontsize=6)
    return {"figure": figure}


def _shown(scores: dict[str, Score]) -> str:
    return "; ".join(f"{name} {score_text(score, 1)}" for name, score in scores.items())


def judge_critic(found: Found) -> Verdict:
    scores = {
        f"{bound}, mlp less {small}": points(found, critic_arm("mlp", bound), critic_arm(small, bound), "accuracy")
        for bound, small in product(BOUNDS, ("bilinear", "separable"))
    }
    return Verdict(together([below(score) for score in scores.values()]), f"Points: {_shown(scores)}.")


def judge_architecture(found: Found) -> Verdict:
    scores = {
        f"{nats:g} nats": points(found, target_arm("CNN", nats), target_arm("MLP", nats), "accuracy")
        for nats in TARGETS
    }
    reached = ", ".join(f"{arm}: {found.mean(arm, 'bound').value:.2f}" for arm in _target_arms())
    return Verdict(
        together([above(score) for score in scores.values()]),
        f"CNN less MLP, points: {_shown(scores)}. Bounds on test images: {reached}.",
    )


def judge_target(found: Found) -> Verdict:
    low, high = TARGETS
    scores = {
        network: points(found, target_arm(network, high), target_arm(network, low), "accuracy") for network in NETWORKS
    }
    return Verdict(
        together([above(score) for score in scores.values()]), f"3 nats less 2 nats, points: {_shown(scores)}."
    )


def _target_arms() -> list[str]:
    return [target_arm(network, nats) for network, nats in product(NETWORKS, TARGETS)]


STUDY = Study(
    name="critics-and-architectures",
    title="Critics and architectures at equal bounds",
    source=f"{INFOMAX}, A3 and A4",
    experiment=(
        "Upper and lower halves of MNIST digits, an encoder each, 3,000 Adam steps at batch 128. Bilinear, separable "
        "and joint (MLP) critics with InfoNCE and NWJ on MLP encoders; and MLP and CNN encoders that are trained to a "
        "bound of 2 and 3 nats by minimising |I - t|. Linear accuracy on the upper half's features, by depth."
    ),
    changed=(
        "widths and length are ours; NWJ has the running offset of this package. That a larger critic does not give "
        "better features is judged by its strict reading: features are worse, with intervals below 0. That they are no "
        "better is a weaker statement, which the criterion does not judge."
    ),
    claims=(
        Claim(
            f"{INFOMAX}, A3",
            "A larger critic does not give better features.",
            "accuracy with the joint critic less that with bilinear and separable, intervals below 0, both bounds",
            judge_critic,
            needs=lambda run: "critic" in run.arm,
        ),
        Claim(
            f"{INFOMAX}, A4",
            "At an equal bound a CNN is above an MLP.",
            "CNN less MLP, intervals above 0 at both bounds",
            judge_architecture,
            needs=lambda run: "nats" in run.arm,
        ),
        Claim(
            f"{INFOMAX}, A4",
            "A higher bound is better.",
            "3 nats less 2 nats, intervals above 0 for both networks",
            judge_target,
            needs=lambda run: "nats" in run.arm,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 15 GPU minutes; two hours on one core",
    options={"data": "mnist"},
)
