"""Training the whole network with labels: from a pre-trained encoder, or from scratch to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr.data.loading import BatchPlan, seeded_generator
from flatclr.data.named import Progress
from flatclr.data.sources import ImageSource
from flatclr.data.views import crops_and_flips
from flatclr.evaluation.features import OUTPUT, compute_features
from flatclr.evaluation.linear import LinearClassifier, Scaling, fit_linear
from flatclr.evaluation.subjects import Subject, view_of
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
    task = _Task(subject, source, labels, chosen, recipe, device, seed)
    telling = None if progress is None else partial(progress, what)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else ()):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every device
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        network = task.start(classes)
        task.train(network, telling)
    return network


@dataclass(frozen=True)
class _Task:
    """What is trained, on what, how."""

    subject: Subject
    source: ImageSource
    labels: Tensor
    chosen: Tensor
    recipe: Recipe
    device: torch.device
    seed: int

    def start(self, classes: int) -> Classifier:
        """A copy of the encoder with the linear probe of its features."""
        encoder = copy.deepcopy(self.subject.bare).float().requires_grad_(True).to(self.device)
        prepare = self.subject.plain()
        features = compute_features(encoder, self.source, prepare, index=self.chosen, device=self.device)[OUTPUT]
        labels = self.labels[self.chosen].to(self.device)
        probe = fit_linear(features, labels, classes=classes, l2=self.recipe.probe_l2)
        network = Classifier(encoder, probe).to(self.device)
        if not self.recipe.starts_from_probe:
            nn.init.zeros_(network.linear.weight)
            nn.init.zeros_(network.linear.bias)
        return network

    def train(self, network: Classifier, telling: Callable[[int, int], None] | None) -> None:
        """All steps of the recipe."""
        recipe, loss_of, batches = self.recipe, _loss(self.labels), self._batches()
        optimizer = build_optimizer(
            recipe.optimizer, network, learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        steps = recipe.steps(len(self.chosen))
        network.train()
        for step in range(steps):
            rate = warmup_cosine(step, total_steps=steps, warmup_steps=round(recipe.warmup_share * steps))
            set_learning_rate(optimizer, recipe.learning_rate, rate)
            images, labels = batches(step)
            loss = loss_of(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if telling is not None:
                telling(step + 1, steps)

    def _batches(self) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Views and labels of a step's samples, to be asked for step after step."""
        views = self.subject.normalised(crops_and_flips(self.recipe.smallest_crop))
        generator = seeded_generator(self.seed, "fine-tuning views")
        plan = BatchPlan(len(self.chosen), min(self.recipe.batch_size, len(self.chosen)), self.seed)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            index = self.chosen[plan.indices(step)]
            images = view_of(self.source.batch(index).to(self.device), views, generator)
            return images, self.labels[index].to(self.device)

        return batch


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
