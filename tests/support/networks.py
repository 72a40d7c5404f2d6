"""Small encoders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatclr.models.encoders import ENCODERS, Encoder, build_encoder
from flatclr.models.network import Normalisation

NORMED = [name for name in ENCODERS if name != "realnvp"]  # a flow has no normalisation


def small(name: str, **options: Any) -> Encoder:
    """A narrow encoder for 28 px grey images, quick to run."""
    options = {"width": 16} | options
    return build_encoder(name, **({"channels": 1, "image_size": 28} | options))


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def trained(name: str = "cnn", **options: Any) -> Encoder:
    """An encoder whose parameters and running statistics are not those of a fresh one."""
    options = {"width": 8} | options
    encoder = build_encoder(name, channels=1, image_size=28, **options)
    with torch.no_grad():
        encoder(torch.randn(4, 1, 28, 28) + 1)
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return "\n" not in str(error.value)


ABOUT = {"data": "some images", "objective": "flatnce", "ess_target": 0.25, "measured": {"knn": 0.8123}}


def encoder(name: str = "cnn", **options: Any) -> Encoder:
    """For 16 px colour images, with a normalisation and running statistics that matter."""
    built = build_encoder(name, channels=3, image_size=16, **options)
    built.normalisation = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    for part in built.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.rand(part.num_features)
            part.running_var = 0.5 + torch.rand(part.num_features)
    return built
