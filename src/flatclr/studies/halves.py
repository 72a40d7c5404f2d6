"""Two halves of an image as two views, and encoders that are trained on them: what studies of information share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.data import ResidentImages, seeded_generator, split_in_halves
from flatclr.evaluation.features import frozen
from flatclr.evaluation.linear import fit_probe
from flatclr.models.encoders import build_encoder
from flatclr.objectives import Objective
from flatclr.studies.training_runs import data_of
from flatclr.training.validation import top_1

PROBED = 10_000  # images of each part that a linear classifier sees, at most


@dataclass(frozen=True)
class Halves:
    """Upper and lower halves of images, centred, with their labels.

    Args:
        top, bottom: float32 [N, C, S / 2, S].
        labels: [N].
    """

    top: Tensor
    bottom: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def halves_of(settings: Mapping[str, Any], device: torch.device) -> tuple[Halves, Halves]:
    """Of the training and of the test images that settings name, on the device."""
    data = data_of(settings)
    assert data is not None
    return _halved(data.train, device), _halved(data.test, device)


def _halved(source: object, device: torch.device) -> Halves:
    assert isinstance(source, ResidentImages)
    assert source.labels is not None
    images = source.images.to(device).float() / 255 - 0.5
    return Halves(*split_in_halves(images), source.labels.to(device))


def mlp(inputs: int, features: int, *, width: int) -> nn.Sequential:
    """Two hidden layers on the flattened half."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, features),
    )


def cnn(channels: int, features: int, *, width: int) -> nn.Sequential:
    """The package's small CNN, and a linear layer."""
    encoder = build_encoder("cnn", channels=channels, image_size=28, width=width)
    return nn.Sequential(encoder, nn.Linear(encoder.features, features))


def train_on_halves(
    encoders: tuple[nn.Module, nn.Module],
    objective: Objective,
    data: Halves,
    settings: Mapping[str, Any],
    *,
    seed: int,
    watch: Callable[[int], None],
    loss_of: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Adam on both encoders and the critic; `watch` is called at the start and at every quarter.

    Args:
        encoders: of the upper and of the lower half.
        objective: of both embeddings, its critic trained too.
        data: halves to draw batches of.
        settings: "steps", "batch" and "rate".
        seed: of the batches.
        watch: called with the step.
        loss_of: of both embeddings and the labels, instead of the objective.
    """
    parameters = [parameter for module in (*encoders, objective) for parameter in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=settings["rate"])
    generator, steps = seeded_generator(seed, "halves"), settings["steps"]
    quarter = max(1, steps // 4)
    watch(0)
    for step in range(1, steps + 1):
        chosen = torch.randint(len(data), (settings["batch"],), generator=generator).to(data.labels.device)
        z_x, z_y = encoders[0](data.top[chosen]).flatten(1), encoders[1](data.bottom[chosen]).flatten(1)
        loss = objective(z_x, z_y) if loss_of is None else loss_of(z_x, z_y, data.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % quarter == 0:
            watch(step)


@torch.no_grad()
def bound_nats(
    encoders: tuple[nn.Module, nn.Module], objective: Objective, data: Halves, settings: Mapping[str, Any]
) -> float:
    """InfoNCE's bound of the critic's scores, over batches of the training's size that were not trained on."""
    batch = min(settings["batch"], len(data))
    starts = range(0, min(len(data), 20 * batch) - batch + 1, batch)
    found = []
    with _evaluated(*encoders, objective):
        for start in starts:
            rows = slice(start, start + batch)
            z_x, z_y = encoders[0](data.top[rows]).flatten(1), encoders[1](data.bottom[rows]).flatten(1)
            found.append(objective.with_stats(z_x, z_y)[1].mi_nats.item())
    return sum(found) / len(found)


def accuracy(encoder: nn.Module, train: Halves, test: Halves, *, seed: int) -> float:
    """Of a linear classifier of the upper half's features, on test images; NaN where these are not finite."""
    with _evaluated(encoder):
        bank, queries = (_features(encoder, part.top[:PROBED]) for part in (train, test))
    if not (bank.isfinite().all() and queries.isfinite().all()):
        return math.nan
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    probe = fit_probe(bank, train.labels[:PROBED], classes=classes, score=top_1, seed=seed)
    return top_1(probe.classifier.logits(queries), test.labels[:PROBED])


def _features(encoder: nn.Module, halves: Tensor) -> Tensor:
    return torch.cat([encoder(part).flatten(1) for part in halves.split(1024)])


@contextmanager
def _evaluated(*modules: nn.Module) -> Iterator[None]:
    """Modules in evaluation mode without gradients for a while."""
    with ExitStack() as held:
        for module in modules:
            held.enter_context(frozen(module))
        yield
