"""Every registered objective learns: a linear encoder finds the few shared directions among many noisy ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.objectives import OBJECTIVES
from flatclr.training.build_objective import build_objective

SAMPLES, SHARED, FEATURES, NOISE = 256, 8, 64, 1.0


class Data:
    """Two noisy views of every sample; what they share lives in a few directions."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=self.generator))[0][:SHARED]
        self.clean = 2 * torch.randn(SAMPLES, SHARED, generator=self.generator) @ mixing

    def views(self, index: Tensor) -> list[Tensor]:
        shape = len(index), FEATURES
        return [self.clean[index] + NOISE * torch.randn(shape, generator=self.generator) for _ in range(2)]


def retrieval(encoder: nn.Module, data: Data) -> float:
    """Share of samples whose other view is nearest."""
    with torch.no_grad():
        a, b = (nn.functional.normalize(encoder(x), dim=1) for x in data.views(torch.arange(SAMPLES)))
        return ((a @ b.T).argmax(1) == torch.arange(SAMPLES)).float().mean().item()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_learns_by_name(name: str) -> None:
    data, encoder = Data(), nn.Linear(FEATURES, 8)
    objective = build_objective(flatclr.TrainConfig(objective=name))
    optimizer = torch.optim.Adam([*encoder.parameters(), *objective.parameters()], lr=1e-2)
    before = retrieval(encoder, data)
    for _ in range(100):
        index = torch.randperm(SAMPLES, generator=data.generator)[:32]
        told = {"index": index} if objective.keeps_samples else {}
        loss = objective(*(encoder(x) for x in data.views(index)), **told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{name}: {before:.2f} -> {retrieval(encoder, data):.2f}")
    assert retrieval(encoder, data) > before + 0.05
