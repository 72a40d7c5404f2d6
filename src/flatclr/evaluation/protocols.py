"""The protocols: each fixed, documented in docs/evaluation.md, and versioned.

Nothing is selected on test data: what a protocol chooses, it chooses on training data, and says so in `chosen`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from flatclr import diagnostics
from flatclr.data.loading import seeded_generator
from flatclr.data.named import Progress
from flatclr.data.sources import Dataset, ImageSource, PairedArrays
from flatclr.evaluation.features import (
    OUTPUT,
    FeatureCache,
    compute_features,
    feature_key,
)
from flatclr.evaluation.finetune import Recipe, class_balanced, finetune, shortage
from flatclr.evaluation.intervals import as_share, bootstrap, jackknife, largest_group, mean_of
from flatclr.evaluation.knn import knn_votes, neighbours_for
from flatclr.evaluation.linear import fit_probe
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.retrieval import RANKS, retrieve
from flatclr.evaluation.scores import Scores, is_unbalanced, score_predictions, selection_score
from flatclr.evaluation.subjects import Subject

LABEL_SHARES = (0.01, 0.1)
VIEWED_IMAGES, FEWEST_VIEWED = 2048, 8
DEFAULT_BETA = 10.0
TEN_NEIGHBOURS = "top1_k10"


@dataclass(frozen=True)
class Measured:
    scores: Scores
    variant: str = ""
    chosen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """One set of weights on one dataset, and everything a protocol needs to measure it."""

    subject: Subject
    data: str
    train: ImageSource
    test: ImageSource | None
    layers: tuple[str, ...]
    layer: str
    device: torch.device
    cache: FeatureCache
    seed: int
    draws: int
    transfer: Callable[[], Dataset]
    progress: Progress | None
    # of this evaluation, by identity of module and source, which live as long
    memo: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    fingerprints: dict[int, str] = field(default_factory=dict)
    random: bool = False  # weights drawn anew, not trained

    @cached_property
    def labels(self) -> Tensor:
        labels = labels_of(self.train)
        assert labels is not None
        return labels

    @cached_property
    def test_labels(self) -> Tensor:
        assert self.test is not None
        labels = labels_of(self.test)
        assert labels is not None
        return _renumbered(labels, self.test.classes, self.train.classes).to(self.device)

    @property
    def several_classes(self) -> bool:
        labels = labels_of(self.train)
        return labels is not None and labels.dim() == 2

    @property
    def labelled(self) -> bool:
        return labels_of(self.train) is not None and self.test is not None and labels_of(self.test) is not None

    @property
    def shown(self) -> ImageSource:
        """Where label-free protocols look: the test images where there are some."""
        return self.train if self.test is None else self.test

    def fingerprint(self, source: ImageSource) -> str:
        if id(source) not in self.fingerprints:
            self.fingerprints[id(source)] = source.fingerprint()
        return self.fingerprints[id(source)]

    @property
    def data_sha256(self) -> str:
        """Of both parts: a name alone does not say which images they are."""
        parts = [self.fingerprint(source) for source in (self.train, self.test) if source is not None]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def features(self, source: ImageSource) -> Tensor:
        """Of the chosen layer; all layers of the run are computed in one pass, once."""

        def compute() -> dict[str, Tensor]:
            return compute_features(
                self.subject.module,
                source,
                self.subject.plain(),
                layers=self.layers,
                device=self.device,
                progress=self.progress,
            )

        def key() -> str:
            subject = self.subject
            return feature_key(
                subject.module, subject.architecture, self.fingerprint(source), subject.normalisation, self.layers
            )

        place = (id(self.subject.module), id(source))
        if place not in self.memo:
            cache = self.cache if self.subject.architecture is not None else FeatureCache(None)
            self.memo[place] = {name: value.to(self.device) for name, value in cache.get(key, compute).items()}
        return self.memo[place][self.layer]

    def telling(self, what: str) -> Callable[[int, int], None] | None:
        return None if self.progress is None else partial(self.progress, what)

    def two_views(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features of two augmented views of some images, and which images these are."""
        generator = seeded_generator(self.seed, "images with views")
        index = torch.randperm(len(self.shown), generator=generator)[:VIEWED_IMAGES]

        def view(name: str) -> Tensor:
            prepare = self.subject.augmented(self.shown.channels, seeded_generator(self.seed, "view", name))
            features = compute_features(
                self.subject.module, self.shown, prepare, layers=(self.layer,), index=index, device=self.device
            )
            return features[self.layer]

        return view("a"), view("b"), index


def labels_of(source: ImageSource) -> Tensor | None:
    """Class numbers [N], or bool [N, classes] where images are of several classes."""
    return source.labels if source.labels is not None else getattr(source, "targets", None)


def _knn(bench: Bench) -> Iterator[Measured]:
    assert bench.test is not None
    features = bench.features(bench.train), bench.labels.to(bench.device), bench.features(bench.test)
    classes, k, temperature = len(bench.train.classes), neighbours_for(len(bench.train)), 0.07
    found = _scored(bench, knn_votes(*features, k=k, temperature=temperature, classes=classes))
    by_ten = knn_votes(*features, k=10, temperature=math.inf, classes=classes).argmax(1) == bench.test_labels
    ten = bootstrap(mean_of(by_ten), len(by_ten), device=bench.device, seed=bench.seed)
    scores = replace(found, values={**found.values, TEN_NEIGHBOURS: ten})
    yield Measured(scores, chosen={"k": k, "temperature": temperature})


def _linear(bench: Bench, variant: str = "") -> Iterator[Measured]:
    assert bench.test is not None
    classes = len(bench.train.classes)
    probe = fit_probe(
        bench.features(bench.train),
        bench.labels.to(bench.device),
        classes=classes,
        score=selection_score,
        seed=bench.seed,
        progress=bench.progress,
    )
    fit = probe.classifier
    chosen = {
        "l2": fit.l2,
        "validation": [list(tried) for tried in probe.path],
        "iterations": fit.iterations,
        "converged": fit.converged,
    }
    yield Measured(_scored(bench, fit.logits(bench.features(bench.test))), variant, chosen)


def _finetune(bench: Bench, variant: str = "") -> Iterator[Measured]:
    recipe = Recipe()
    logits_NC = _finetuned(bench, recipe, None, bench.seed, "fine-tuning")
    yield Measured(_scored(bench, logits_NC), variant, {**_stated(recipe), "steps": recipe.steps(len(bench.train))})


def _semi(bench: Bench) -> Iterator[Measured]:
    recipe, classes = Recipe(), len(bench.train.classes)
    for share in LABEL_SHARES:
        drawn = [
            class_balanced(bench.labels, share, classes=classes, seed=bench.seed + draw) for draw in range(bench.draws)
        ]
        draws = []
        for draw, chosen in enumerate(drawn):
            what = f"{share:.0%} of the labels, draw {draw + 1} of {bench.draws}"
            # from scratch: every draw has an initialisation of its own
            anew = bench.subject.at_random(bench.seed + draw) if bench.random else None
            start = bench if anew is None else replace(bench, subject=anew)
            draws.append(_finetuned(start, recipe, chosen, bench.seed + draw, what))
        yield Measured(
            _scored(bench, *draws),
            f"{share:.0%} of the labels",
            {**_stated(recipe), "labels": len(drawn[0]), "draws": bench.draws, "steps": recipe.steps(len(drawn[0]))},
        )


def _transfer(bench: Bench) -> Iterator[Measured]:
    away = at_home_size(bench)
    yield from _linear(away, "linear")
    if bench.subject.trainable and bench.layer == OUTPUT:
        yield from _finetune(away, "finetune")


def _retrieval(bench: Bench) -> Iterator[Measured]:
    assert bench.test is not None
    features, labels = bench.features(bench.test), bench.test_labels
    ranks = [k for k in RANKS if k < len(labels)]

    def means(rows: Tensor) -> dict[str, float]:
        found = retrieve(features[rows], labels[rows], ranks=ranks)
        recalls = {f"recall_at_{k}": found.recall_NK[:, i].float().mean().item() for i, k in enumerate(ranks)}
        return recalls | {"mean_average_precision": found.average_precision_N.mean().item()}

    found = jackknife(means, len(labels), seed=bench.seed, progress=bench.telling("retrieval"))
    values = {name: as_share(score, len(labels)) for name, score in found.items()}
    yield Measured(Scores("recall_at_1", values), chosen={"images": len(labels)})


def _geometry(bench: Bench) -> Iterator[Measured]:
    z_a, z_b, index = bench.two_views()
    labels = labels_of(bench.shown)
    of_class = None if labels is None or labels.dim() == 2 else labels[index].to(bench.device)
    if of_class is not None and len(index) - torch.bincount(of_class).max() <= largest_group(len(index)):
        of_class = None  # what is left without one group may be of a single class

    def gauges(rows: Tensor) -> dict[str, float]:
        found = {
            "effective_rank": diagnostics.effective_rank(z_a[rows]),
            "alignment": diagnostics.alignment(z_a[rows], z_b[rows]),
            "uniformity": diagnostics.uniformity(z_a[rows]),
        }
        if of_class is not None:
            found["simplex_etf_distance"] = diagnostics.simplex_etf_distance(z_a[rows], of_class[rows])
            found["within_class_variance"] = diagnostics.within_class_variance(z_a[rows], of_class[rows])
        return {name: value.item() for name, value in found.items()}

    values = jackknife(gauges, len(index), seed=bench.seed, progress=bench.telling("geometry"))
    yield Measured(Scores("effective_rank", values), chosen={"images": len(index)})


def _mi(bench: Bench) -> Iterator[Measured]:
    z_a, z_b, index = bench.two_views()
    beta = bench.subject.beta or DEFAULT_BETA

    chooses = torch.arange(len(index), device=z_a.device) % 2 == 0  # an image keeps its half when others are left out

    def bounds(rows: Tensor) -> dict[str, float]:
        return pool_mi_nats(z_a[rows], z_b[rows], beta=beta, chooses=chooses[rows])

    found = jackknife(bounds, len(index), seed=bench.seed, progress=bench.telling("mutual information"))
    values = {name: found[name] for name in ("pool_mi_best_nats", "pool_mi_nats")}
    best, ceiling = found["pool_best_beta"].value, found["pool_ceiling_nats"].value
    chosen = {"beta": beta, "best_beta": best, "ceiling_nats": ceiling, "pool": len(index)}
    yield Measured(Scores("pool_mi_best_nats", values), chosen=chosen)


def _enough(bench: Bench) -> str | None:
    """What is lacking, as in "must have X, got Y"; nothing."""
    return None


def _too_few_to_validate(bench: Bench) -> str | None:
    if bench.several_classes or torch.bincount(bench.labels).max() > 1:
        return None
    return "two training images of some class to validate on, got one of each"


def _too_few_to_draw(bench: Bench) -> str | None:
    short = (shortage(bench.labels, share, bench.train.classes) for share in LABEL_SHARES)
    return next((reason for reason in short if reason is not None), None)


def _too_few_to_find(bench: Bench) -> str | None:
    counts, left = torch.bincount(bench.test_labels), len(bench.test_labels) - largest_group(len(bench.test_labels))
    if counts.max() - largest_group(len(bench.test_labels)) >= 2 or left > (counts > 0).sum():
        return None
    return "two test images of a class however a twentieth is left out, got fewer"


def _too_few_to_view(bench: Bench) -> str | None:
    images = len(bench.shown)
    return None if images >= FEWEST_VIEWED else f"at least {FEWEST_VIEWED} images, got {images}"


@dataclass(frozen=True)
class Protocol:
    version: int
    run: Callable[[Bench], Iterator[Measured]]
    needs_labels: bool = True
    one_class: bool = False  # images of several classes are refused
    trains: bool = False  # changes weights, so it looks at no layer and needs a module
    elsewhere: bool = False  # on data of its own
    too_few: Callable[[Bench], str | None] = _enough


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(2, _knn, one_class=True),
    "linear": Protocol(2, _linear, too_few=_too_few_to_validate),
    "finetune": Protocol(3, _finetune, trains=True),
    "semi": Protocol(3, _semi, one_class=True, trains=True, too_few=_too_few_to_draw),
    "transfer": Protocol(3, _transfer, needs_labels=False, elsewhere=True),
    "retrieval": Protocol(2, _retrieval, one_class=True, too_few=_too_few_to_find),
    "geometry": Protocol(2, _geometry, needs_labels=False, too_few=_too_few_to_view),
    "mi": Protocol(2, _mi, needs_labels=False, too_few=_too_few_to_view),
}


def unfit(name: str, bench: Bench, *, probing: bool) -> str | None:
    """Why a protocol cannot be run on this, in one line; None if it can."""
    protocol = PROTOCOLS[name]
    if protocol.needs_labels and not bench.labelled:
        lacking = "no test images" if bench.test is None else "no labels"
        return (
            f"protocol {name} must have labelled training and test images, got {lacking} in {bench.data}; "
            "label them, or use geometry or mi."
        )
    if protocol.needs_labels and bench.several_classes and protocol.one_class:
        return f"protocol {name} must have one class per image, got several in {bench.data}; use linear or finetune."
    if protocol.needs_labels:
        missing = _missing_class(bench)
        if missing is not None:
            return missing
    if protocol.elsewhere:
        try:
            away = at_home_size(bench)
        except ImportError as error:
            return str(error)
        return unfit("linear", away, probing=False)
    too_few = protocol.too_few(bench)
    if too_few is not None:
        return f"protocol {name} must have {too_few} of {bench.data}; add images, or leave it out."
    if protocol.trains and probing:
        return f"protocol {name} must train the whole network, got a layer to probe; leave layer out."
    if protocol.trains and not bench.subject.trainable:
        return f"protocol {name} must have weights to train, got {bench.subject.name} without any; pass an nn.Module."
    return None


def _missing_class(bench: Bench) -> str | None:
    assert bench.test is not None
    seen, asked = _occurring(bench.train), _occurring(bench.test)
    unseen = [name for name in asked if name not in seen]
    if unseen:
        return (
            f"every class of the test images must be in the training images, got {unseen[0]!r} in "
            f"{bench.data}'s test part only; split the data anew."
        )
    if bench.several_classes != (labels_of(bench.test).dim() == 2):  # type: ignore[union-attr]
        return f"both parts must have the same kind of labels, got two kinds in {bench.data}; label one anew."
    if not bench.several_classes and len(seen) < 2:
        return f"training images must be of at least 2 classes, got {len(seen)} in {bench.data}; label more of them."
    return None


def _occurring(source: ImageSource) -> list[str]:
    """Names of the classes that its images have."""
    labels = labels_of(source)
    assert labels is not None
    numbers = labels.any(0).nonzero()[:, 0] if labels.dim() == 2 else labels.unique()
    return [source.classes[number] for number in numbers]


def _renumbered(labels: Tensor, classes: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Labels by the order of `wanted`: a folder without one of the classes counts the others differently.

    >>> _renumbered(torch.tensor([0, 1]), ("cat", "dog"), ("bird", "cat", "dog"))
    tensor([1, 2])
    """
    place = {name: number for number, name in enumerate(wanted)}
    known = [number for number, name in enumerate(classes) if name in place]
    places = torch.tensor([place.get(name, -1) for name in classes])
    if labels.dim() == 1:
        return places[labels]
    table = torch.zeros(len(labels), len(wanted), dtype=torch.bool)
    table[:, places[known]] = labels[:, known]
    return table


def splits_of(dataset: Dataset) -> tuple[ImageSource, ImageSource | None]:
    if isinstance(dataset.train, PairedArrays) or isinstance(dataset.test, PairedArrays):
        raise ValueError(f"the data must be images, got paired arrays ({dataset.name}); pass images.")
    return dataset.labelled or dataset.train, dataset.test


def at_home_size(bench: Bench) -> Bench:
    """The bench with the transfer data."""
    dataset = bench.transfer()
    train, test = splits_of(dataset)
    return replace(bench, data=dataset.name, train=train, test=test)


def _finetuned(bench: Bench, recipe: Recipe, chosen: Tensor | None, seed: int, what: str) -> Tensor:
    assert bench.test is not None
    return finetune(
        bench.subject,
        bench.train,
        bench.labels,
        bench.test,
        classes=len(bench.train.classes),
        chosen=chosen,
        recipe=recipe,
        device=bench.device,
        seed=seed,
        progress=bench.progress,
        what=what,
    )


def _scored(bench: Bench, *draws: Tensor) -> Scores:
    unbalanced = is_unbalanced(bench.labels)
    return score_predictions(draws, bench.test_labels, bench.train.classes, unbalanced=unbalanced, seed=bench.seed)


def _stated(recipe: Recipe) -> dict[str, Any]:
    return {"optimizer": recipe.optimizer, "learning_rate": recipe.learning_rate, "batch_size": recipe.batch_size}
