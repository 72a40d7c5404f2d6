"""FlatNCE paper, appendix H: what was tried with the Fenchel-Legendre bound before FlatNCE."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from flatclr.data import ResidentImages, seeded_generator
from flatclr.data.views import apply_views, draw_views, no_augmentation
from flatclr.evaluation.knn import knn_accuracy, neighbours_for
from flatclr.models.encoders import build_encoder
from flatclr.models.heads import build_head
from flatclr.objectives import FLO, InfoNCE, Objective
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import percent, points
from flatclr.studies.judging import FAILED, HELD, OPEN, Verdict, below, score_text, together
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import data_of
from flatclr.training.build_data import build_views
from flatclr.training.config import TrainConfig

FEATURES, TEMPERATURE, EXPLODED = 64, 0.1, 1e3
BATCH, STEPS = 128, 2000
INFO, ALTERNATING = "InfoNCE", "alternating g and u"
JOINT = ("FLO, K = 1, affine u", "FLO, K = 1, MLP u")
ARMS = (INFO, *JOINT, ALTERNATING, "FLO, K = 1, u = -g + s(x)", "FLO, all negatives")


class PairU(nn.Module):
    """u of both embeddings: an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        value: Tensor = self.layers(torch.cat([z_a, z_b], 1)).squeeze(1)
        return value


class ShiftedU(nn.Module):
    """u = -g + s(x): minus the score, and an MLP of one embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        value: Tensor = self.shift(z_a).squeeze(1) - (z_a * z_b).sum(1) / TEMPERATURE
        return value


def objective_of(arm: str) -> Objective:
    if arm == INFO:
        return InfoNCE(TEMPERATURE, pairing="one_way")
    if arm == "FLO, all negatives":
        return FLO(TEMPERATURE, pairing="one_way")
    makers: dict[str, Callable[[], nn.Module | None]] = {JOINT[1]: PairU, ALTERNATING: PairU, ARMS[4]: ShiftedU}
    u = makers.get(arm, lambda: None)()
    return FLO(TEMPERATURE, u=u, pairing="one_way", negatives_per_anchor=1)


def measure(job: Job) -> Numbers:
    """Train a small CNN on two views of digits; the largest loss along the way, kNN at the end."""
    settings, device = job.settings, torch.device(job.device)
    data = data_of(settings)
    assert data is not None
    source, test = data.train, data.test
    assert isinstance(source, ResidentImages)
    assert isinstance(test, ResidentImages)
    side = source.image_size
    encoder = build_encoder("cnn", channels=source.images.shape[1], image_size=side, width=settings["width"]).to(device)
    network = nn.Sequential(encoder, build_head(encoder.features, d_out=FEATURES)).to(device)
    objective = objective_of(settings["arm"]).to(device)
    own = torch.optim.Adam(objective.parameters(), lr=1e-3) if list(objective.parameters()) else None
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses: list[float] = []
    for step, views in enumerate(_views(source, settings, job.seed, device)):
        loss = objective(*(network(view) for view in views))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        if own is not None:
            own.zero_grad()
        loss.backward()
        turn = step % 2 if settings["arm"] == ALTERNATING else None  # which of the two moves; None: both
        if turn in (None, 0):
            optimizer.step()
        if own is not None and turn in (None, 1):
            own.step()
    tail = losses[len(losses) // 2 :]
    return {
        "knn": _knn(encoder, source, test, device),
        "largest": max(tail, key=abs),
        "loss": losses[:: max(1, len(losses) // 50)],
    }


def _views(source: ResidentImages, settings: object, seed: int, device: torch.device) -> Iterator[list[Tensor]]:
    assert isinstance(settings, dict)
    config = build_views(TrainConfig(), source)
    generator = seeded_generator(seed, "flo attempts")
    side = source.image_size
    for _ in range(settings["steps"]):
        chosen = torch.randint(len(source), (settings["batch"],), generator=generator)
        images = source.images[chosen].to(device)
        drawn = (
            draw_views(config, len(images), height=side, width=side, generator=generator, device=device)
            for _ in range(2)
        )
        yield [apply_views(images, one, config, size=side) for one in drawn]


@torch.no_grad()
def _knn(encoder: nn.Module, source: ResidentImages, test: ResidentImages, device: torch.device) -> float:
    encoder.eval()
    plain = build_views(TrainConfig(), source)
    config = no_augmentation(mean=plain.mean, std=plain.std)

    def features(part: ResidentImages) -> tuple[Tensor, Tensor]:
        images, side = part.images[:10_000], part.image_size
        drawn = draw_views(
            config, len(images), height=side, width=side, generator=torch.Generator().manual_seed(0), device=device
        )
        views = apply_views(images.to(device), drawn, config, size=side)
        assert part.labels is not None
        return torch.cat([encoder(rows) for rows in views.split(512)]), part.labels[:10_000].to(device)

    (bank, labels), (queries, wanted) = features(source), features(test)
    if not bank.isfinite().all():
        return math.nan
    return knn_accuracy(bank, labels, queries, wanted, k=neighbours_for(len(bank)))


def plan(of: Plan) -> list[Run]:
    size = {"steps": 3, "batch": 16, "width": 4} if of.quick else {"steps": STEPS, "batch": BATCH, "width": 32}
    common = {**size, "data": "embedded" if of.quick else str(of.options["data"]), "quick": of.quick}
    return [Run(arm, seed, measure, {"arm": arm, **common}) for seed in of.seeds for arm in ARMS]


def table(found: Found) -> list[Row]:
    return [
        {
            "objective": arm,
            "kNN %": percent(found, arm, "knn"),
            "less InfoNCE": score_text(points(found, arm, INFO, "knn"), 1),
            "largest loss in the second half": ", ".join(f"{kept.numbers['largest']:.3g}" for kept in found.of(arm)),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    for arm, colour in zip(found.arms, COLOURS, strict=False):
        loss = found.one(arm).numbers["loss"]
        axes.plot([100 * point / len(loss) for point in range(len(loss))], loss, color=colour, label=arm)
    axes.set_yscale("symlog")
    axes.set_xlabel("part of the run (%)")
    axes.set_ylabel("loss (nats)")
    axes.legend(fontsize=7)
    return {"figure": figure}


def judge_joint(found: Found) -> Verdict:
    scores = [points(found, arm, INFO, "knn") for arm in JOINT]
    shown = "; ".join(f"{arm} {score_text(score, 1)}" for arm, score in zip(JOINT, scores, strict=True))
    return Verdict(
        together([below(score) for score in scores]), f"Less InfoNCE, points of kNN: {shown}.", scores[0], "points"
    )


def judge_alternating(found: Found) -> Verdict:
    largest = [kept.numbers["largest"] for kept in found.of(ALTERNATING)]
    exploded = sum(not abs(value) < EXPLODED for value in largest)
    word = HELD if 2 * exploded > len(largest) else FAILED if exploded == 0 else OPEN
    return Verdict(word, f"{exploded} of {len(largest)} runs pass {EXPLODED:g} or are not finite.")


STUDY = Study(
    name="flo-attempts",
    title="What was tried with FLO",
    source=f"{FLATNCE}, appendix H",
    experiment=(
        f"MNIST, a small CNN, batch {BATCH}, {STEPS:,} Adam steps, temperature {TEMPERATURE:g}: InfoNCE; FLO with one "
        "negative, u learned jointly (affine, MLP); g and u in turns; u = -g + s(x); FLO with all negatives. kNN on "
        "test images, and the largest loss in the second half of a run."
    ),
    changed=(
        "architecture and length are ours, the source gives none. The appendix prints u* = g + s(x); right is -g + "
        "s(x). The affine u has the running offset of this package, without which it starts at e^10."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, appendix H",
            "FLO with one negative, learned jointly, is about 2 points below InfoNCE.",
            "less InfoNCE, interval below 0, for both forms of u",
            judge_joint,
        ),
        Claim(
            f"{FLATNCE}, appendix H",
            "Alternating g and u explodes.",
            "the loss passes 10^3 or is not finite in most seeds",
            judge_alternating,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 10 GPU minutes",
    options={"data": "mnist"},
)
