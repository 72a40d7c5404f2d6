"""The whole network of a finished run, not the encoder alone."""

from __future__ import annotations

from pathlib import Path

import torch

from flatclr.models.saving import load_encoder
from flatclr.runs import SIDES, RunDirectory
from flatclr.training.checkpoint import load_checkpoint
from flatclr.training.config import TrainConfig
from flatclr.training.networks import Network, TwoTowers
from flatclr.training.parts import build_tower


def load_network(run: str | Path) -> Network | TwoTowers:
    """Encoder and projection head of a finished run in evaluation mode on the CPU, from its last checkpoint.

    Of a run on images, `(z,) = network(images)`, which `network.encoder.normalisation` says how to normalise; of one on
    paired data, `z_x, z_y = network(x, y)`, to be compared by cosine. An encoder that came from Python has no name
    to be built by: put `load_encoder(run, into=...)` and a head of your own together instead.
    """
    opened = RunDirectory.open(Path(run))
    config = TrainConfig.from_dict(opened.config())
    sides = [opened.path / name for name in SIDES]
    folders = sides if sides[0].is_dir() else [opened.path]
    with torch.random.fork_rng(devices=()):  # the heads' first weights are drawn, and replaced below
        towers = [build_tower(config, load_encoder(folder), torch.empty(0)) for folder in folders]
    network = TwoTowers(*towers) if len(towers) == 2 else towers[0]
    network.load_state_dict(load_checkpoint(opened.checkpoints).state["train_step"]["network"])
    return network.eval()
