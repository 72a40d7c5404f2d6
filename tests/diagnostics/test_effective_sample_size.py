"""The effective sample size against its definition."""

import pytest
import torch

import flatclr
from flatclr import diagnostics


def test_effective_sample_size_of_given_weights() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    expected = 1 / (3 * (0.25 + 2 * 0.0625))
    assert diagnostics.effective_sample_size(weights.log()).item() == pytest.approx(expected)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_ess_with_positive_is_that_of_info_nces_own_softmax(scale: float) -> None:
    scores = scale * torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = diagnostics.ess_with_positive(flatclr.stats_from_scores(scores))
    for row, ess in zip(scores, found, strict=True):
        weights = row.exp() / row.exp().sum()  # the diagonal, which is the positive, included
        assert ess.item() == pytest.approx(1 / (6 * weights.square().sum().item()), rel=1e-9)


def test_ess_with_positive_of_a_sure_positive_is_one_entry_whatever_the_negatives() -> None:
    scores = 60 * torch.eye(5, dtype=torch.float64)
    stats = flatclr.stats_from_scores(scores)
    assert stats.ess.tolist() == pytest.approx([1.0] * 5)
    assert diagnostics.ess_with_positive(stats).tolist() == pytest.approx([0.2] * 5)


def test_ess_with_positive_refuses_several_positives() -> None:
    _, stats = flatclr.InfoNCE().with_stats(torch.randn(3, 4, 8))
    with pytest.raises(ValueError, match="stats must have one positive per anchor, got several"):
        diagnostics.ess_with_positive(stats)
