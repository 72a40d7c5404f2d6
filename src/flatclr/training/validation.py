"""What a run measures about its encoder at every evaluation.

The same samples at every evaluation, drawn from all: folders are sorted by class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
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
from flatclr.evaluation.pixels import near_duplicate_rate, overlap_rate, pixel_rows
from flatclr.evaluation.pool_mi import both_ways_mi_nats, pool_mi_nats
from flatclr.models.network import Network, TwoTowers
from flatclr.models.statistics import statistics_of

RECALIBRATION_IMAGES = 4096
HELD_OUT_PAIRS, FEWEST_PAIRS = 512, 4
BATCH_NORM_IMAGES = 256
MOST_COMPARED = 2000  # images, with all others


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
        measured |= {"head_rank": diagnostics.effective_rank(z_a).item(), **pool_mi_nats(z_a, z_b, beta=beta)}
        held_out = self._held_out(network, z_a, z_b, measured["pool_best_beta"])
        return measured | held_out | self._batch_norm(network, images) | self.of_pixels

    def _held_out(self, network: Network, z_a: Tensor, z_b: Tensor, beta: float) -> dict[str, float]:
        """MI of views of test images beside that of as many training images, which may be learnt by heart."""
        test = self._test
        pairs = 0 if test is None else min(HELD_OUT_PAIRS, len(test), len(z_a))
        if test is None or pairs < FEWEST_PAIRS:
            return {}
        images = test.batch(_sample(len(test), pairs, self.seed, "held out"))
        views = [self._prepared(images, self.views, self.view_size, ("held out", name)) for name in ("a", "b")]
        y_a, y_b = (_evaluated(network, lambda part: network(part)[0], drawn) for drawn in views)
        return {
            "seen_mi_nats": both_ways_mi_nats(z_a[:pairs], z_b[:pairs], beta=beta),
            "held_out_mi_nats": both_ways_mi_nats(y_a, y_b, beta=beta),
        }

    def _batch_norm(self, network: Network, images: Tensor) -> dict[str, float]:
        views = next(self._prepared(images[:BATCH_NORM_IMAGES], self.views, self.view_size, ("batch norm",)))
        health = diagnostics.batch_norm_health(network, views)
        return {} if health is None else asdict(health)

    @cached_property
    def of_pixels(self) -> dict[str, float]:
        """What the images say without an encoder; the same at every evaluation.

        `pixel_knn` is the accuracy of nearest neighbours by pixels, `pixel_match` the share of views whose nearest view
        by pixels is the other one of their image, `near_duplicates` the share of pairs of images that are nearly the
        same, and `split_overlap` the share of test images that are in the training images too.
        """
        source, test = self.data.labelled or self.source, self._test
        chosen = _sample(len(source), self.samples, self.seed, "features")
        rows = pixel_rows(source.batch(chosen)).to(self.device)
        few = self.source.batch(_sample(len(self.source), HELD_OUT_PAIRS, self.seed, "pool"))
        views = (self._prepared(few, self.views, self.view_size, ("pixels", name)) for name in ("a", "b"))
        matched = [pixel_rows(torch.cat(list(drawn))) for drawn in views]
        found = {
            "pixel_match": retrieval_at_1(*matched),
            "near_duplicates": near_duplicate_rate(rows[:MOST_COMPARED]),
        }
        if test is None:
            return found
        tested = _sample(len(test), self.samples, self.seed, "features")
        test_rows = pixel_rows(test.batch(tested)).to(self.device)
        # of a sample of the training images, as many copies are found as it is a share of all
        found["split_overlap"] = min(1.0, overlap_rate(test_rows[:MOST_COMPARED], rows) * len(source) / len(rows))
        if source.labels is not None and test.labels is not None:
            labels, test_labels = source.labels[chosen].to(self.device), test.labels[tested].to(self.device)
            found["pixel_knn"] = knn_accuracy(rows, labels, test_rows, test_labels, k=neighbours_for(len(rows)))
        return found

    @property
    def _test(self) -> ImageSource | None:
        return None if isinstance(self.data.test, PairedArrays | ReadyViews) else self.data.test

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
        test = self._test
        if labels is not None and test is not None and test.labels is not None:
            test_features, test_labels = self.features(encoder, test, progress)
            assert test_labels is not None
            k = neighbours_for(len(features))
            measured["knn"] = knn_accuracy(features, labels, test_features, test_labels, k=k)
            measured["knn_samples"] = len(test_features)
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
        measured = {
            "effective_rank": diagnostics.effective_rank(torch.cat(features)).item(),
            "head_rank": diagnostics.effective_rank(torch.cat(z_a)).item(),
        }
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
