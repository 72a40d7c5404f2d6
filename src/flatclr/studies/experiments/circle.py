"""Notes on information maximisation: embeddings on the circle, random, supervised and contrastive."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from flatclr import diagnostics
from flatclr.data import ResidentImages, seeded_generator
from flatclr.data.views import ViewConfig, apply_views, draw_views, no_augmentation
from flatclr.evaluation.linear import fit_probe
from flatclr.models.encoders import build_encoder
from flatclr.objectives import InfoNCE
from flatclr.plots import new_figure
from flatclr.studies.accuracies import in_points, percent, points
from flatclr.studies.judging import FAILED, HELD, OPEN, Verdict, above, score_text, together
from flatclr.studies.literature import INFOMAX
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import data_of
from flatclr.training.build_data import build_views
from flatclr.training.config import TrainConfig
from flatclr.training.validation import top_1

RANDOM, SUPERVISED, CONTRASTIVE = "random", "supervised", "contrastive"
ARMS = (RANDOM, SUPERVISED, CONTRASTIVE)
PUBLISHED = {RANDOM: 12.71, SUPERVISED: 57.19, CONTRASTIVE: 28.60}
TEMPERATURE, BINS, LOOKED_AT = 0.1, 72, 10_000


class OnCircle(nn.Module):
    """An encoder, a linear layer to two dimensions, and their direction."""

    def __init__(self, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.encoder, self.plane = encoder, nn.Linear(features, 2)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.plane(self.encoder(images)), dim=1)


def measure(job: Job) -> Numbers:
    """Train to the circle; linear accuracy there, histograms of angles, alignment and uniformity."""
    settings, device = job.settings, torch.device(job.device)
    data = data_of(settings)
    assert data is not None
    train, test = data.train, data.test
    assert isinstance(train, ResidentImages)
    assert isinstance(test, ResidentImages)
    assert train.labels is not None
    assert test.labels is not None
    torch.manual_seed(job.seed)
    encoder = build_encoder(
        settings["encoder"], channels=train.channels, image_size=train.image_size, width=settings["width"]
    )
    network = OnCircle(encoder, encoder.features).to(device)
    classes = len(train.classes)
    views = build_views(TrainConfig(), train)
    if settings["arm"] != RANDOM:
        _train(network, train, views, job, classes, device)
    network.eval()
    plain = no_augmentation(mean=views.mean, std=views.std)
    (bank, labels), (queries, wanted) = (_embedded(network, part, plain, device) for part in (train, test))
    probe = fit_probe(bank, labels, classes=classes, score=top_1, seed=job.seed)
    z_a, z_b = (_embedded(network, test, views, device, key)[0] for key in ("a", "b"))
    return {
        "accuracy": top_1(probe.classifier.logits(queries), wanted),
        "alignment": diagnostics.alignment(z_a, z_b).item(),
        "uniformity": diagnostics.uniformity(queries).item(),
        "histograms": [_histogram(queries[wanted == label]) for label in range(classes)],
        "classes": list(test.classes),
    }


def _train(
    network: OnCircle, source: ResidentImages, views: ViewConfig, job: Job, classes: int, device: torch.device
) -> None:
    """Adam, with a falling rate; supervised by a linear classifier of the circle, of one view."""
    classifier, objective = nn.Linear(2, classes).to(device), InfoNCE(TEMPERATURE)
    steps = job.settings["steps"]
    optimizer = torch.optim.Adam([*network.parameters(), *classifier.parameters()], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for (view_a, view_b), labels in _batches(source, views, job, device):
        with half:
            if job.settings["arm"] == SUPERVISED:
                loss = F.cross_entropy(classifier(network(view_a)), labels)
            else:
                loss = objective(network(view_a), network(view_b))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _batches(
    source: ResidentImages, views: ViewConfig, job: Job, device: torch.device
) -> Iterator[tuple[list[Tensor], Tensor]]:
    generator, side = seeded_generator(job.seed, "circle"), source.image_size
    assert source.labels is not None
    for _ in range(job.settings["steps"]):
        chosen = torch.randint(len(source), (job.settings["batch"],), generator=generator)
        images = source.images[chosen].to(device)
        drawn = [
            draw_views(views, len(images), height=side, width=side, generator=generator, device=device)
            for _ in range(2)
        ]
        yield [apply_views(images, one, views, size=side) for one in drawn], source.labels[chosen].to(device)


@torch.no_grad()
def _embedded(
    network: nn.Module, source: ResidentImages, views: ViewConfig, device: torch.device, key: str = "plain"
) -> tuple[Tensor, Tensor]:
    generator, side = seeded_generator(0, "circle", key), source.image_size
    assert source.labels is not None
    parts = []
    for images in source.images[:LOOKED_AT].split(500):
        drawn = draw_views(views, len(images), height=side, width=side, generator=generator, device=device)
        parts.append(network(apply_views(images.to(device), drawn, views, size=side)))
    return torch.cat(parts), source.labels[:LOOKED_AT].to(device)


def _histogram(points_N2: Tensor) -> list[int]:
    angles = torch.atan2(points_N2[:, 1], points_N2[:, 0]).cpu()
    return [int(count) for count in torch.histc(angles, BINS, -math.pi, math.pi)]


def plan(of: Plan) -> list[Run]:
    full = {"steps": 4_000, "batch": 256, "encoder": "resnet18", "width": 64}
    tiny = {"steps": 2, "batch": 16, "encoder": "cnn", "width": 4}
    common = {
        **(tiny if of.quick else full),
        "data": "embedded" if of.quick else str(of.options["data"]),
        "quick": of.quick,
    }
    return [Run(arm, seed, measure, {"arm": arm, **common}) for seed in of.seeds for arm in ARMS]


def table(found: Found) -> list[Row]:
    return [
        {
            "embedding": arm,
            "linear %": percent(found, arm, "accuracy"),
            "published": f"{PUBLISHED[arm]:.2f}",
            "alignment": score_text(found.mean(arm, "alignment"), 3),
            "uniformity": score_text(found.mean(arm, "uniformity"), 3),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    """A ring for each class, by how many of its images lie in each direction."""
    figure = new_figure(9.0, 3.6)
    panels = figure.subplots(1, len(found.arms), subplot_kw={"projection": "polar"}, squeeze=False)[0]
    edges = torch.linspace(-math.pi, math.pi, BINS + 1).tolist()
    for axes, arm in zip(panels, found.arms, strict=True):
        histograms = torch.tensor(found.one(arm).numbers["histograms"], dtype=torch.float64)
        density = histograms / histograms.amax(1, keepdim=True).clamp_min(1)
        axes.pcolormesh(edges, [3 + ring for ring in range(len(density) + 1)], density.numpy(), cmap="Blues")
        axes.set_ylim(0, 3 + len(density))
        axes.set_yticks([])
        axes.grid(False)
        axes.set_title(f"{arm}, {score_text(in_points(found.mean(arm, 'accuracy')), 1)} %", fontsize=8)
    names = ", ".join(found.one(found.arms[0]).numbers["classes"])
    figure.supxlabel(f"angle; one ring for each class, from the inside: {names}", fontsize=8)
    return {"angles": figure}


def judge(found: Found) -> Verdict:
    steps = {
        f"{high} less {low}": points(found, high, low, "accuracy")
        for high, low in ((SUPERVISED, CONTRASTIVE), (CONTRASTIVE, RANDOM))
    }
    shown = "; ".join(f"{name} {score_text(score, 1)}" for name, score in steps.items())
    apart = all(
        found.mean(high, "accuracy").low > found.mean(low, "accuracy").high
        for high, low in ((SUPERVISED, CONTRASTIVE), (CONTRASTIVE, RANDOM))
    )
    paired = together([above(score) for score in steps.values()])
    return Verdict(HELD if apart else FAILED if paired == FAILED else OPEN, f"Points: {shown}.")


STUDY = Study(
    name="circle",
    title="Embeddings on the circle",
    source=f"{INFOMAX}, the circle",
    experiment=(
        "CIFAR-10, ResNet-18 and a linear layer to two dimensions, normalised. At random, trained with labels, and "
        f"trained by InfoNCE at temperature {TEMPERATURE:g}, 4,000 Adam steps at batch 256. The accuracy of a linear "
        "classifier of the two numbers on test images, and how many images of each class lie in each direction."
    ),
    changed="architecture, length and views are ours.",
    claims=(
        Claim(
            f"{INFOMAX}, the circle",
            "Supervised is above contrastive, and contrastive above random (57.19, 28.60, 12.71 %).",
            "that order, intervals of the accuracies apart",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 8 GPU minutes",
    options={"data": "cifar10"},
)
