"""Encoders of sentences: those of both sides of a run on pairs of sentences as one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flatclr.evaluation.features import weights_digest
from flatclr.models.encoders import TEXT_ENCODER, EncoderSpec


class BothSides(nn.Module):
    """The features of both encoders for the same sentence, beside each other (Logeswaran and Lee 2018)."""

    def __init__(self, encoder_x: nn.Module, encoder_y: nn.Module) -> None:
        super().__init__()
        self.encoder_x, self.encoder_y = encoder_x, encoder_y

    def forward(self, words: Tensor) -> Tensor:
        return torch.cat([self.encoder_x(words), self.encoder_y(words)], 1)


def both_sides(encoders: Mapping[str, nn.Module]) -> nn.Module | None:
    """What reads sentences by both, or by the one that both sides share; None where they do not read the same."""
    x, y = encoders.values()
    specs = [getattr(encoder, "spec", None) for encoder in (x, y)]
    if not all(map(reads_sentences, specs)) or len({spec.channels for spec in specs if spec is not None}) > 1:
        return None
    return x if weights_digest(x) == weights_digest(y) else BothSides(x, y)


def reads_sentences(spec: EncoderSpec | None) -> bool:
    """Whether what is built so takes numbers of words."""
    return spec is not None and spec.name == TEXT_ENCODER
