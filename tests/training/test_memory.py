"""Where memory ends, the micro-batch that fits is suggested."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from flatclr.training.build import build
from flatclr.training.errors import TrainingStoppedError
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit
from tests.support.training_worker import config


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_running_out_of_memory_suggests_the_micro_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    parts = build(config(tmp_path, 2))
    forward = parts.train_step.bare_network.encoder.forward

    def small_memory(images: Tensor) -> Tensor:
        if len(images) > 2 * 2:  # both views of two samples
            raise error
        return forward(images)

    monkeypatch.setattr(parts.train_step.bare_network.encoder, "forward", small_memory)
    before = [p.detach().clone() for p in parts.train_step.network.parameters()]
    with pytest.raises(TrainingStoppedError, match=r"a batch of 8 samples must fit .* --micro-batch 2 fits"):
        fit(Recorder(parts))
    assert all(torch.equal(a, b) for a, b in zip(before, parts.train_step.network.parameters(), strict=True))
