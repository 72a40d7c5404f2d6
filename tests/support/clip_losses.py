"""The losses for open_clip with numbers for tensors, for `flatclr.diagnostics.check_loss` to try over ranks."""

from typing import Any

import torch
from torch import Tensor

from flatclr.integrations import open_clip


class ClipLoss(open_clip.ClipLoss):
    def forward(self, image: Tensor, text: Tensor, *numbers: float) -> Any:
        return super().forward(image, text, *(torch.tensor(number) for number in numbers))


class SigLipLoss(open_clip.SigLipLoss):
    def forward(self, image: Tensor, text: Tensor, *numbers: float) -> Any:
        return super().forward(image, text, *(torch.tensor(number) for number in numbers))
