"""Protocols without labels, on two views of every image: geometry of the features, and mutual information."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from flatclr import diagnostics
from flatclr.evaluation.bench import Bench
from flatclr.evaluation.intervals import jackknife, largest_group
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.protocols.base import Measured, Protocol
from flatclr.evaluation.scores import Scores
from flatclr.evaluation.splits import labels_of

FEWEST_VIEWED = 8
DEFAULT_BETA = 10.0


def measure_geometry(bench: Bench) -> Iterator[Measured]:
    """Effective rank, alignment and uniformity; with labels, how far the classes have collapsed."""
    z_a, z_b, index = bench.two_views()
    of_class = _classes_of(bench, index)

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


def _classes_of(bench: Bench, index: Tensor) -> Tensor | None:
    """Class numbers of these images; None where there are none, or too few of other classes than the largest."""
    labels = labels_of(bench.data.shown)
    if labels is None or labels.dim() == 2:
        return None
    of_class = labels[index].to(bench.device)
    # what is left without one group may be of a single class
    return None if len(index) - torch.bincount(of_class).max() <= largest_group(len(index)) else of_class


def measure_mi(bench: Bench) -> Iterator[Measured]:
    """InfoNCE's lower bound on the information between two views, against a pool of images."""
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


def _too_few_to_view(bench: Bench) -> str | None:
    images = len(bench.data.shown)
    return None if images >= FEWEST_VIEWED else f"at least {FEWEST_VIEWED} images, got {images}"


GEOMETRY = Protocol(2, measure_geometry, needs_labels=False, needs_images=True, too_few=_too_few_to_view)
MI = Protocol(2, measure_mi, needs_labels=False, needs_images=True, too_few=_too_few_to_view)
