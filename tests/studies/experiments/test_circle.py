"""The picture of the circle says which ring is which class."""

from __future__ import annotations

from flatclr.studies.experiments.circle import ARMS, BINS, draw
from flatclr.studies.study import Found, Kept


def test_rings_are_named_from_the_inside() -> None:
    numbers = {"accuracy": 0.5, "histograms": [[1] * BINS, [2] * BINS], "classes": ["cat", "dog"]}
    found = Found([Kept(f"{arm}-s{seed}", arm, seed, {}, numbers, 1.0, {}) for arm in ARMS for seed in (0, 1)])
    figure = draw(found)["angles"]
    assert figure.get_supxlabel().endswith("from the inside: cat, dog")
