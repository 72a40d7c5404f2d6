"""Learn digits without labels at batch 16, with InfoNCE, FlatNCE and FlatNCE under ESS control, and read the gauges.

    make demo                          (or: python examples/demo.py --help)

Two views of each 8 x 8 image are turned, scaled, shifted and noised copies; a small convolutional encoder is trained
on pairs of them. Nearest neighbours and a linear classifier then read held-out digits, warped the same way, off frozen
features.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import flatclr
from flatclr import ContrastStats, diagnostics
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.knn import knn_votes
from flatclr.evaluation.linear import fit_probe
from flatclr.evaluation.scores import score_predictions, selection_score


@dataclass(frozen=True)
class Digits:
    train_images: Tensor
    train_labels: np.ndarray
    test_images: Tensor
    test_labels: np.ndarray


@dataclass(frozen=True)
class Outcome:
    bound_nats: float
    ceiling_nats: float
    saturation: float
    ess: float
    inverse_temperature: float
    knn: Score
    linear: Score


def digits() -> Digits:
    """The 1,797 handwritten digits that come with scikit-learn, a third of them held out and warped once."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16, labels, test_size=1 / 3, random_state=0, stratify=labels
    )
    train_images, test_images = (torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) for x in (train_x, test_x))
    torch.manual_seed(0)
    return Digits(train_images, train_y, view(test_images), test_y)


def view(images: Tensor) -> Tensor:
    """A random affine warp of each image, with noise."""
    n = len(images)
    angle, scale = 0.4 * torch.randn(n), 1 + 0.15 * torch.randn(n)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale * angle.cos()
    theta[:, 0, 1], theta[:, 1, 0] = -scale * angle.sin(), scale * angle.sin()
    theta[:, :, 2] = 0.25 * torch.randn(n, 2)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False) + 0.1 * torch.randn_like(images)


def new_encoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 16, 128),
    )  # fmt: skip


def accuracies(encoder: nn.Module, data: Digits) -> tuple[Score, Score]:
    """Top-1 accuracy of nearest neighbours and of a linear classifier, with 95 % intervals."""
    with torch.no_grad():
        train, test = encoder(data.train_images), encoder(data.test_images)
    labels, test_labels = torch.from_numpy(data.train_labels), torch.from_numpy(data.test_labels)
    votes_NC = knn_votes(train, labels, test, k=20)
    probe = fit_probe(train, labels, classes=10, score=selection_score)
    classes = tuple("0123456789")
    knn, linear = (
        score_predictions(found, test_labels, classes).values["top1"]
        for found in (votes_NC, probe.classifier.logits(test))
    )
    return knn, linear


def percent(score: Score, between: str = " ") -> str:
    return f"{100 * score.value:.1f}{between}[{100 * score.low:.0f}, {100 * score.high:.0f}]"


def train(name: str, objective: flatclr.Objective, data: Digits, *, steps: int, batch: int, seed: int) -> Outcome:
    torch.manual_seed(seed)
    encoder, head = new_encoder(), nn.Sequential(nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    recent: list[ContrastStats] = []
    for _ in track(range(steps), description=f"{name:<18}"):
        images = data.train_images[torch.randperm(len(data.train_images))[:batch]]  # no sample is its own negative
        loss, stats = objective.with_stats(head(encoder(view(images))), head(encoder(view(images))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = [*recent[-99:], stats]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    knn, linear = accuracies(encoder, data)
    return Outcome(
        bound_nats=mean([stats.mi_nats.item() for stats in recent]),
        ceiling_nats=recent[-1].ceiling_nats,
        saturation=mean([diagnostics.saturation(stats).item() for stats in recent]),
        ess=mean([stats.ess.mean().item() for stats in recent]),
        inverse_temperature=float(objective.inverse_temperature),
        knn=knn,
        linear=linear,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn digits without labels at a small batch and read the gauges.")
    parser.add_argument("--steps", type=int, default=1500, help="training steps per objective (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    args = parser.parse_args()
    if args.steps < 1 or args.batch < 2:
        parser.error(
            f"expected --steps >= 1 and --batch >= 2, got {args.steps} and {args.batch}; a batch of 1 has no negative."
        )

    data = digits()
    torch.manual_seed(args.seed)
    untrained = accuracies(new_encoder(), data)
    objectives = {
        "InfoNCE": flatclr.InfoNCE(temperature=0.1),
        "FlatNCE": flatclr.FlatNCE(temperature=0.1),
        "FlatNCE + ESS 0.25": flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25)),
    }
    table = Table(
        title=f"{len(data.train_images)} unlabelled digits, batch {args.batch}, {args.steps} steps, seed {args.seed}"
    )
    for column in (
        "objective",
        "MI bound of\nceiling, nats",
        "satu-\nration",
        "ESS",
        "beta",
        "kNN %\n[95 %]",
        "linear %\n[95 %]",
    ):
        table.add_column(column, justify="left" if column == "objective" else "right")
    for name, objective in objectives.items():
        end = train(name, objective, data, steps=args.steps, batch=args.batch, seed=args.seed)
        table.add_row(
            name,
            f"{end.bound_nats:.2f} of {end.ceiling_nats:.2f}",
            f"{end.saturation:.0%}",
            f"{end.ess:.2f}",
            f"{end.inverse_temperature:.1f}",
            percent(end.knn, "\n"),
            percent(end.linear, "\n"),
        )
    console = Console()
    console.print(table)
    console.print(
        f"Accuracy on {len(data.test_labels)} held-out warped digits; the untrained encoder has "
        f"{percent(untrained[0])} and {percent(untrained[1])}.",
        highlight=False,
    )
    console.print(
        "The rest are means over the last 100 steps. A bound near its ceiling (saturation) cannot tell a good encoder "
        "from a better one; ESS is the share of the negatives that carries the gradient; beta is 1 / temperature.",
        style="dim",
    )


if __name__ == "__main__":
    main()
