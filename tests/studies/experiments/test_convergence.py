"""The expected FlatNCE gradient by enumeration, against loops over every draw; and where it has a zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flatclr.studies import Job
from flatclr.studies.experiments import convergence


@pytest.mark.parametrize("negatives", [4, 5])
def test_a_symmetric_joint_has_a_zero_where_a_symbol_can_get_the_weight_it_needs(
    negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p(y | x) = 0.7 on the diagonal: 1 - 0.75^4 = 0.68 is too little, 1 - 0.75^5 = 0.76 is enough."""
    joint = (0.1 * torch.ones(4, 4, dtype=torch.float64) + 0.6 * torch.eye(4, dtype=torch.float64)) / 4
    monkeypatch.setattr(convergence, "joint_of", lambda seed: joint)
    numbers = convergence.measure(Job({"negatives": negatives, "rounds": 20}, 0, "cpu", Path()))
    assert numbers["zero_for_pairs"] == (negatives == 5)
    assert convergence.is_zero(numbers) == (negatives == 5)
