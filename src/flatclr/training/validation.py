"""What a run measures about its encoder at every evaluation.

The same samples at every evaluation, drawn from all: folders are sorted by class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from flatclr import diagnostics
from flatclr.contrast.numerics import unit_rows
from flatclr.data.loading import seeded_generator
from flatclr.data.progress import Progress
from flatclr.data.sources import Dataset, ImageSource, PairedArrays, ReadyViews
from flatclr.data.views import ViewConfig, apply_views, draw_views, no_augmentation
from flatclr.evaluation.features import IMAGES_AT_ONCE, frozen, images_at_once
from flatclr.evaluation.knn import knn_accuracy, neighbours_for
from flatclr.evaluation.linear import fit_probe
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.models.network import Network, TwoTowers
from flatclr.models.statistics import statistics_of

RECALIBRATION_IMAGES = 4096


class Validation(Protocol):
    @property
    def samples(self) -> int:
        """Of each split, and of the pool, at most."""

    def measure(
        self, network: Network | TwoTowers, beta: float, progress: Progress | None = None, *, probe: bool = False
    ) -> dict[str, float]:
        """The network is left as it is; with `probe`, a linear classifier is fitted to the features too."""

    def ready(self, encoder: nn.Module) -> AbstractContextManager[None]:
        """For a while, the encoder as its features are evaluated and saved."""


@dataclass(frozen=True)
class ImageValidation:
    """Nearest-neighbour accuracy and collision rate where labels exist, effective rank, MI against a large pool."""

    data: Dataset
    source: ImageSource
    views: ViewConfig
    view_size: int
    batch_size: int
    samples: int  # of each split, and of the pool, at most
    seed: int
    device: torch.device
    recalibrate: bool = False

    def measure(
        self, network: Network | TwoTowers, beta: float, progress: Progress | None = None, *, probe: bool = False
    ) -> dict[str, float]:
        assert isinstance(network, Network)
        with self.ready(network.encoder):
            measured = self.of_features(network.encoder, progress, probe=probe)
        pool = _sample(len(self.source), min(100 * self.batch_size, self.samples), self.seed, "pool")
        images = self.source.batch(pool)
        pool_views = [self._prepared(images, self.views, self.view_size, ("pool", name)) for name in ("a", "b")]
        told = _counting("evaluation, views of the pool", 2 * len(images), progress)
        z_a, z_b = (_evaluated(network, lambda part: network(part)[0], views, told) for views in pool_views)
        return measured | pool_mi_nats(z_a, z_b, beta=beta)

    def ready(self, encoder: nn.Module) -> AbstractContextManager[None]:
        """Whole images have other statistics than the views of training; those of some are taken if asked for."""
        if not self.recalibrate:
            return nullcontext()
        chosen = _sample(len(self.source), RECALIBRATION_IMAGES, self.seed, "statistics")
        return statistics_of(encoder, self.whole(self.source.batch(chosen)))

    def of_features(
        self, encoder: nn.Module, progress: Progress | None = None, *, probe: bool = False
    ) -> dict[str, float]:
        features, labels = self.features(encoder, self.data.labelled or self.source, progress)
        measured = {"effective_rank": diagnostics.effective_rank(features).item()}
        if labels is not None:
            measured["collision_rate"] = diagnostics.collision_rate(labels).item()
        test = self.data.test
        if labels is not None and test is not None and not isinstance(test, PairedArrays) and test.labels is not None:
            test_features, test_labels = self.features(encoder, test, progress)
            assert test_labels is not None
            k = neighbours_for(len(features))
            measured["knn"] = knn_accuracy(features, labels, test_features, test_labels, k=k)
            if probe:
                classes = int(max(labels.max(), test_labels.max())) + 1
                fitted = fit_probe(features, labels, classes=classes, score=top_1, seed=self.seed)
                measured["linear"] = top_1(fitted.classifier.logits(test_features), test_labels)
        return measured

    def features(
        self, encoder: nn.Module, source: ImageSource, progress: Progress | None = None
    ) -> tuple[Tensor, Tensor | None]:
        chosen = _sample(len(source), self.samples, self.seed, "features")
        labels = None if source.labels is None else source.labels[chosen].to(self.device)
        told = _counting(f"evaluation, features of {source.name}", len(chosen), progress)
        return _evaluated(encoder, encoder, self.whole(source.batch(chosen)), told), labels

    def whole(self, images: Tensor) -> Iterator[Tensor]:
        plain = no_augmentation(mean=self.views.mean, std=self.views.std)
        return self._prepared(images, plain, self.source.image_size, ("plain",))

    def _prepared(self, images: Tensor, views: ViewConfig, size: int, names: tuple[str, ...]) -> Iterator[Tensor]:
        generator = seeded_generator(self.seed, *names)
        height, width = images.shape[-2:]
        for part in images.split(IMAGES_AT_ONCE):
            drawn = draw_views(views, len(part), height=height, width=width, generator=generator, device=self.device)
            yield apply_views(part.to(self.device), drawn, views, size=size)


@dataclass(frozen=True)
class PairValidation:
    """How often the other side is found, effective ranks, MI against a large pool: on pairs held out from training."""

    held_out: PairedArrays
    batch_size: int
    samples: int  # of the pool, at most
    seed: int
    device: torch.device

    def ready(self, encoder: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def measure(
        self, network: Network | TwoTowers, beta: float, progress: Progress | None = None, *, probe: bool = False
    ) -> dict[str, float]:
        assert isinstance(network, TwoTowers)
        chosen = _sample(len(self.held_out), min(100 * self.batch_size, self.samples), self.seed, "pool")
        x, y = (side.to(self.device).split(IMAGES_AT_ONCE) for side in self.held_out.batch(chosen))
        z_x = _evaluated(network, lambda part: network.tower_x(part)[0], iter(x))
        z_y = _evaluated(network, lambda part: network.tower_y(part)[0], iter(y))
        return {
            "effective_rank": diagnostics.effective_rank(z_x).item(),
            "retrieval_at_1": retrieval_at_1(z_x, z_y),
            **pool_mi_nats(z_x, z_y, beta=beta),
        }


def top_1(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose highest logit is that of their class.

    >>> top_1(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """
    return (logits.argmax(1) == labels).float().mean().item()


@dataclass(frozen=True)
class GivenValidation:
    """Effective rank of features and MI against a large pool, on views as they are given; kNN where labels are too.

    Neighbours of the first views of a fifth of the pool are sought among those of the rest, in training's own data.
    """

    source: ReadyViews
    batch_size: int
    samples: int
    seed: int
    device: torch.device

    def ready(self, encoder: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def measure(
        self, network: Network | TwoTowers, beta: float, progress: Progress | None = None, *, probe: bool = False
    ) -> dict[str, float]:
        assert isinstance(network, Network)
        chosen = _sample(len(self.source), min(100 * self.batch_size, self.samples), self.seed, "pool")
        told = _counting("evaluation, views", len(chosen), progress)
        features, z_a, z_b, labels = [], [], [], []
        with frozen(network):
            for views, known in self.source.labelled(chosen.split(self.batch_size)):
                labels += [] if known is None else [known.to(self.device)]
                a, b = (view.to(self.device) for view in views[:2])
                features.append(network.encoder(a).float())
                z_a.append(network.head(features[-1]).float())
                z_b.append(network(b)[0].float())
                told(len(a))
        measured = {"effective_rank": diagnostics.effective_rank(torch.cat(features)).item()}
        if len(labels) == len(features):
            measured["knn"] = _held_out_knn(torch.cat(features), torch.cat(labels))
        return measured | pool_mi_nats(torch.cat(z_a), torch.cat(z_b), beta=beta)


def _held_out_knn(features: Tensor, labels: Tensor) -> float:
    bank = len(features) * 4 // 5
    parts = features[:bank], labels[:bank], features[bank:], labels[bank:]
    return knn_accuracy(*parts, k=min(bank, neighbours_for(bank)))


def retrieval_at_1(z_x: Tensor, z_y: Tensor) -> float:
    """Share of x whose nearest y, by cosine, is their own.

    >>> retrieval_at_1(torch.eye(3), torch.eye(3))
    1.0
    """
    x, y = unit_rows(z_x), unit_rows(z_y)
    own = torch.arange(len(x), device=x.device)
    found = torch.cat([(part @ y.T).argmax(1) for part in x.split(IMAGES_AT_ONCE)])
    return (found == own).float().mean().item()


def _sample(samples: int, at_most: int, seed: int, name: str) -> Tensor:
    return torch.randperm(samples, generator=seeded_generator(seed, name))[:at_most]


def _evaluated(
    module: nn.Module,
    encode: Callable[[Tensor], Tensor],
    parts: Iterator[Tensor],
    told: Callable[[int], None] = lambda count: None,
) -> Tensor:
    encoded = []
    with frozen(module):
        for part in parts:
            for piece in part.split(_at_once(part)):
                encoded.append(encode(piece).float())
                told(len(piece))
    return torch.cat(encoded)


def _at_once(part: Tensor) -> int:
    """On a CPU so few large images that a second or two pass between signs of life."""
    return len(part) if part.dim() != 4 else images_at_once(part.shape[2], part.device)


def _counting(what: str, total: int, progress: Progress | None) -> Callable[[int], None]:
    """Counts what is done, and says so."""
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(what, done, total)

    return told
