"""The spectral loss: where it meets relative predictive coding, and what free features are."""

import numpy as np
import pytest
import torch

import flatclr
from tests.support import field_oracles
from tests.support.harness import Batch


def test_it_is_twice_relative_predictive_coding() -> None:
    z_a, z_b, _ = Batch.random(6, 4).tensors()
    rpc = flatclr.RPC(0.4, a=0.0, b=0.0, g=1.0, normalize=True)(z_a, z_b)
    torch.testing.assert_close(flatclr.Spectral(0.4)(z_a, z_b), 2 * rpc)


def test_free_features_have_the_published_loss(route: str) -> None:
    batch = Batch.random(5, 3, pairing="one_way")
    z_a, z_b, _ = batch.tensors()
    rows = batch.rows(1.0, normalize=False)
    want = np.mean([field_oracles.spectral(np.array([row.positive]), row.negatives) for row in rows])
    got = flatclr.Spectral(normalize=False, pairing="one_way", route=route)(z_a, z_b)
    assert got.item() == pytest.approx(want, rel=1e-12)
