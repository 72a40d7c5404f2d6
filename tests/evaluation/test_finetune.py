"""Label subsets for fine-tuning."""

from __future__ import annotations

import torch

from flatclr.evaluation.finetune import class_balanced


def test_label_subsets_are_balanced_and_differ_by_seed() -> None:
    labels = torch.arange(1000) % 10
    first, second = (class_balanced(labels, 0.01, classes=10, seed=seed) for seed in (0, 1))
    assert torch.bincount(labels[first]).tolist() == [1] * 10
    assert set(first.tolist()) != set(second.tolist())
    assert torch.bincount(labels[class_balanced(labels, 0.1, classes=10, seed=0)]).tolist() == [10] * 10
