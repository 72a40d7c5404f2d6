"""A short soak: some kinds of faults, and the weights of a run without any."""

from pathlib import Path

import pytest
import torch

from flatclr.checkpoint import load_checkpoint
from flatclr.training import train
from scripts.soak import Faults, settings, write_images


@pytest.mark.slow
def test_a_run_under_seeded_faults_ends_with_the_weights_of_one_without(tmp_path: Path) -> None:
    write_images(tmp_path / "images", seed=0)
    whole = train(settings(tmp_path, 60, "whole")).path
    faults = Faults(tmp_path, 60, seed=0)
    for kind in ("terminate", "damaged checkpoint", "damaged settings", "damaged image"):
        faults.kinds[kind]()
    faults.finish()
    want, got = (load_checkpoint(run / "checkpoint").state["train_step"]["network"] for run in (whole, faults.run))
    assert all(torch.equal(want[name], got[name]) for name in want)
