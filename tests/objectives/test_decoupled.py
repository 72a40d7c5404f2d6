"""DCL, DCLW and DHEL: the published forms, and what they are in terms of the stats."""

import pytest
import torch

import flatclr
from tests.support import field_oracles, oracles
from tests.support.harness import Batch


def unit_views(batch: Batch) -> tuple[oracles.Array, oracles.Array]:
    return oracles.normalized(batch.z_a), oracles.normalized(batch.z_b)


def test_dhel_is_the_published_sum_over_samples(route: str) -> None:
    batch = Batch.random(7, 4, pairing="within")
    z_a, z_b, _ = batch.tensors()
    want = field_oracles.dhel_of_views(*unit_views(batch), beta=5.0)
    assert flatclr.DHEL(0.2, route=route)(z_a, z_b).item() == pytest.approx(want, rel=1e-12)


def test_dhel_is_twice_the_gap_within_views_and_the_positive_once_more() -> None:
    z_a, z_b, _ = Batch.random(7, 4).tensors()
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0, pairing="within")
    torch.testing.assert_close(flatclr.DHEL(0.2)(z_a, z_b), 2 * stats.gap.mean() + stats.positive.mean())


def test_dhel_of_several_views_is_the_mean_over_their_pairs() -> None:
    views = torch.randn(3, 6, 4, dtype=torch.float64)
    pairs = [flatclr.DHEL(0.3)(views[v], views[w]) for v, w in ((0, 1), (0, 2), (1, 2))]
    torch.testing.assert_close(flatclr.DHEL(0.3)(views), torch.stack(pairs).mean())


def test_weights_of_dclw_average_to_one_and_favour_positives_that_disagree() -> None:
    z_a, z_b, _ = Batch.random(8, 4, pairing="one_way").tensors()
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=1.0, pairing="one_way")
    excess = flatclr.objectives.dclw(stats, 1.0) - stats.gap  # (1 - w) p
    weights = 1 - excess / stats.positive
    assert weights.mean().item() == pytest.approx(1.0)
    assert torch.equal(weights.argsort(), stats.positive.argsort(descending=True))


def test_dclw_with_a_wide_weighting_is_dcl() -> None:
    z_a, z_b, _ = Batch.random(8, 4).tensors()
    torch.testing.assert_close(flatclr.DCLW(0.2, sigma=1e6)(z_a, z_b), flatclr.DCL(0.2)(z_a, z_b), rtol=1e-5, atol=1e-5)
