"""The digits of scikit-learn."""

from __future__ import annotations

import torch

from flatclr.data.digits import digits


def test_digits_have_a_third_of_each_class_for_testing() -> None:
    data = digits()
    assert len(data.train) + len(data.test) == 1797
    assert data.test is not None
    train, test = (torch.bincount(part.labels) for part in (data.train, data.test))  # type: ignore[union-attr]
    assert ((train + test) // 3 == test).all()
