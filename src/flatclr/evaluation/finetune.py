"""Training the whole network with labels: from a pre-trained encoder, or from scratch to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.data.loading import BatchPlan, Loader, seeded_generator
from flatclr.data.named import Progress
from flatclr.data.sources import ImageSource, ResidentImages
from flatclr.data.views import crops_and_flips
from flatclr.evaluation.features import OUTPUT, compute_features
from flatclr.evaluation.finetune_steps import Draws, EagerSteps, Step, graphed
from flatclr.evaluation.linear import LinearClassifier, Scaling, fit_linear
from flatclr.evaluation.subjects import Subject
from flatclr.models.encoders import is_own_encoder
from flatclr.optim import build_optimizer, set_learning_rate, warmup_cosine


@dataclass(frozen=True)
class Recipe:
    """The same for all data; docs/evaluation.md says how it was settled."""

    epochs: int = 5
    fewest_steps: int = 200
    batch_size: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warmup_share: float = 0.05
    probe_l2: float = 0.01  # of the linear layer that training starts from
    starts_from_probe: bool = True  # or from a linear layer of zeros
    smallest_crop: float = 0.9  # share of the area

    def steps(self, samples: int) -> int:
        return max(self.fewest_steps, self.epochs * samples // self.batch_size)


OWN, PAPER = "own", "paper"
HELD_BYTES = 4 * 2**30  # of images in memory, as the setting resident_gib has it
READ_AT_ONCE = 256  # images: jobs for sixteen decoders
RECIPES = {
    OWN: Recipe(),
    # FlatNCE (Chen et al. 2021): Adam, no penalty, 100 epochs, from a new layer; its "5^-5" is read as 5e-5
    PAPER: Recipe(
        epochs=100,
        fewest_steps=1,
        learning_rate=5e-5,
        weight_decay=0.0,  # which makes AdamW Adam
        warmup_share=0.0,
        starts_from_probe=False,
    ),
}


class Classifier(nn.Module):
    """An encoder, the scaling of its first features, and a linear layer that starts as the linear probe's.

    From there the encoder is not thrown off by a random head (Kumar et al. 2022).
    """

    def __init__(self, encoder: nn.Module, probe: LinearClassifier) -> None:
        super().__init__()
        features, classes = probe.weights_DC[:-1].shape
        self.encoder, self.linear = encoder, nn.Linear(features, classes)
        self.scaling = probe.scaling
        with torch.no_grad():
            self.linear.weight.copy_(probe.weights_DC[:-1].T)
            self.linear.bias.copy_(probe.weights_DC[-1])

    @classmethod
    def of(cls, encoder: nn.Module, weight_Cd: Tensor, bias_C: Tensor, scaling: Scaling) -> Classifier:
        """From the parts of one."""
        weights_DC = torch.cat([weight_Cd.T, bias_C[None]])
        return cls(encoder, LinearClassifier(weights_DC, scaling, l2=0.0, iterations=0, converged=True))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.scaling.scaled(self.encoder(images)))
        return logits


def finetune(
    subject: Subject,
    source: ImageSource,
    labels: Tensor,
    test: ImageSource,
    *,
    classes: int,
    chosen: Tensor | None = None,
    recipe: Recipe,
    device: torch.device,
    seed: int = 0,
    progress: Progress | None = None,
    what: str = "fine-tuning",
) -> Tensor:
    """Logits [N, classes] of the test images after `trained_classifier`."""
    network = trained_classifier(
        subject,
        source,
        labels,
        classes=classes,
        chosen=chosen,
        recipe=recipe,
        device=device,
        seed=seed,
        progress=progress,
        what=what,
    )
    return compute_features(network, test, subject.plain(), device=device)[OUTPUT]


def trained_classifier(
    subject: Subject,
    source: ImageSource,
    labels: Tensor,
    *,
    classes: int,
    chosen: Tensor | None = None,
    recipe: Recipe,
    device: torch.device,
    seed: int = 0,
    progress: Progress | None = None,
    what: str = "fine-tuning",
) -> Classifier:
    """A copy of the encoder with a linear layer, trained on `chosen` images of `source`, by crops and flips.

    The caller's random state stays as it was; dropout and the like draw from `seed`.
    """
    chosen = torch.arange(len(source)) if chosen is None else chosen
    source, numbers = held(source, chosen, progress)
    task = _Task(subject, source, numbers, labels[chosen], recipe, device, seed)
    telling = None if progress is None else partial(progress, what)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else ()):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every device
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        network = task.start(classes)
        task.train(network, telling)
    return network


def held(source: ImageSource, chosen: Tensor, progress: Progress | None = None) -> tuple[ImageSource, Tensor]:
    """A source that has the chosen images in memory, and their numbers there; as it was where they are too large.

    So each is decoded and resized once, not in every epoch.
    """
    if len(chosen) == len(source) and isinstance(source, ResidentImages):
        return source, chosen
    if len(chosen) * source.channels * source.image_size**2 > HELD_BYTES:
        return source, chosen
    images = torch.empty(len(chosen), source.channels, source.image_size, source.image_size, dtype=torch.uint8)
    numbers = torch.arange(len(chosen))
    for rows in numbers.split(READ_AT_ONCE):
        images[rows] = source.batch(chosen[rows])
        if progress is not None:
            progress(f"reading {source.name}", int(rows[-1]) + 1, len(chosen))
    return ResidentImages(images, name=source.name), numbers


def is_captured(loader: Loader, encoder: nn.Module) -> bool:
    """Whether steps are replayed: the device holds the images, and what the encoder does is known."""
    return loader.device.type == "cuda" and loader.resident is not None and is_own_encoder(encoder)


@dataclass(frozen=True)
class _Task:
    """What is trained, on what, how."""

    subject: Subject
    source: ImageSource
    numbers: Tensor  # of its images
    labels: Tensor  # of these
    recipe: Recipe
    device: torch.device
    seed: int

    def start(self, classes: int) -> Classifier:
        """A copy of the encoder with the linear probe of its features."""
        encoder = copy.deepcopy(self.subject.bare).float().requires_grad_(True).to(self.device)
        prepare = self.subject.plain()
        features = compute_features(encoder, self.source, prepare, index=self.numbers, device=self.device)[OUTPUT]
        probe = fit_linear(features, self.labels.to(self.device), classes=classes, l2=self.recipe.probe_l2)
        network = Classifier(encoder, probe).to(self.device)
        if not self.recipe.starts_from_probe:
            nn.init.zeros_(network.linear.weight)
            nn.init.zeros_(network.linear.bias)
        return network

    def train(self, network: Classifier, telling: Callable[[int, int], None] | None) -> None:
        """All steps of the recipe."""
        recipe, count = self.recipe, self.recipe.steps(len(self.numbers))
        draws = self._draws()
        in_graph = is_captured(draws.loader, network.encoder)
        if in_graph:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = build_optimizer(
            recipe.optimizer,
            network,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            capturable=in_graph,
        )
        network.train()
        step = Step(network, optimizer, _loss(self.labels), draws.views)
        take = (graphed(step, draws) if in_graph else None) or EagerSteps(step, draws, count)
        for number, drawn in enumerate(draws.steps(count)):
            rate = warmup_cosine(number, total_steps=count, warmup_steps=round(recipe.warmup_share * count))
            set_learning_rate(optimizer, recipe.learning_rate, rate)
            take(drawn)
            if telling is not None:
                telling(number + 1, count)

    def _draws(self) -> Draws:
        plan = BatchPlan(len(self.numbers), min(self.recipe.batch_size, len(self.numbers)), self.seed)
        return Draws(
            Loader(self.source, plan, own=slice(0, plan.batch_size), device=self.device),
            self.numbers,
            self.labels,
            self.subject.normalised(crops_and_flips(self.recipe.smallest_crop)),
            self.source.image_size,
            seeded_generator(self.seed, "fine-tuning views"),
        )


def class_balanced(labels: Tensor, share: float, *, classes: int, seed: int) -> Tensor:
    """Sample numbers: as many of each class as `share` of all comes to, one at least.

    >>> class_balanced(torch.tensor([0, 0, 0, 1, 1, 1]), 1 / 3, classes=2, seed=0).shape
    torch.Size([2])
    """
    order = torch.randperm(len(labels), generator=seeded_generator(seed, "labels"))
    each = _of_each_class(labels, share, classes)
    return torch.cat([order[labels[order] == number][:each] for number in range(classes)])


def shortage(labels: Tensor, share: float, classes: Sequence[str]) -> str | None:
    """What `class_balanced` would lack, as in "must have X, got Y"; None where it has enough."""
    each = _of_each_class(labels, share, len(classes))
    counts = torch.bincount(labels, minlength=len(classes))
    least = int(counts.argmin())
    if counts[least] >= each:
        return None
    return (
        f"{each} training images of every class for {share:.0%} of the labels, got {counts[least]} of {classes[least]}"
    )


def _of_each_class(labels: Tensor, share: float, classes: int) -> int:
    return max(1, round(share * len(labels) / classes))


def _loss(labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    if labels.dim() == 1:
        return F.cross_entropy
    return lambda logits, targets: F.binary_cross_entropy_with_logits(logits, targets.float())
