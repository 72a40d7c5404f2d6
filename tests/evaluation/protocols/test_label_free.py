"""Protocols that need no labels."""

from __future__ import annotations

import torch

import flatclr
from flatclr.data.sources import Dataset, ResidentImages
from tests.support.evaluation import pictures, small_encoder


def test_data_without_labels_is_measured_without_them() -> None:
    images, _ = pictures(120, seed=0)
    bare = Dataset("bare", ResidentImages(images, name="train"), None)
    found = flatclr.evaluate(small_encoder(), bare, "all", random_row=False)
    assert {row.protocol for row in found.rows} == {"transfer", "geometry", "mi"}
    assert "simplex_etf_distance" not in found["geometry"].scores
    assert dict(found.skipped)["knn"].startswith(
        "protocol knn must have labelled training and test images, got no test"
    )


def test_geometry_of_one_class_has_no_simplex() -> None:
    images, _ = pictures(60, seed=0)
    data = Dataset("one", ResidentImages(images, torch.zeros(60).long(), ("a",), name="one"), None)
    found = flatclr.evaluate(small_encoder(), data, "geometry", random_row=False)
    assert "simplex_etf_distance" not in found["geometry"].scores
