"""FlatNCE and SigLIP for open_clip: drop-ins for its ClipLoss and SigLipLoss, with the same arguments.

Nothing of open_clip is imported: its trainers call a loss by position and keywords alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatclr.checks import require_number, require_one_of
from flatclr.contrast import Options, PairSet
from flatclr.objectives import EssControl, FlatNCE, InfoNCE
from flatclr.objectives.sigmoid import sig_lip

OBJECTIVES = {"flatnce": FlatNCE, "infonce": InfoNCE}


class ClipLoss(nn.Module):
    """FlatNCE, or InfoNCE without a score matrix, in the place of open_clip's `ClipLoss`.

    The value equals that of `ClipLoss`. Over ranks the gradient is that of one process with the whole batch, whatever
    `local_loss` and `gather_with_grad` say.

    Args:
        local_loss: taken for the signature's sake; memory is local here in any case.
        gather_with_grad: likewise; gradients always pass.
        cache_labels: likewise; there are no labels to cache.
        rank: likewise; the process group knows.
        world_size: above 1, the features of all ranks are gathered.
        use_horovod: refused.
        objective: "flatnce", or "infonce", whose gradient is that of `ClipLoss`.
        temperature: instead of the model's `logit_scale`, a number > 0 or a `flatclr.EssControl`.
        max_logit_scale: a larger `logit_scale` counts as this one, as open_clip's training loop clamps it.

    With "flatnce" the model's `logit_scale` is used and not learned: FlatNCE has no lower bound in it. It gets a
    gradient of zero, so that DDP finds all parameters used.

    >>> z = torch.eye(4)
    >>> ClipLoss()(z, z, torch.tensor(1.0))
    tensor(0.7437)

    Reference: Radford et al. 2021; Chen et al. 2021.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        objective: str = "flatnce",
        temperature: float | EssControl | None = None,
        max_logit_scale: float = 100.0,
    ) -> None:
        super().__init__()
        _refuse_horovod(use_horovod)
        require_one_of("objective", objective, OBJECTIVES)
        require_number("max_logit_scale", max_logit_scale, above=0, advice="100 is usual.")
        self.max_logit_scale, self.follows_model = max_logit_scale, temperature is None
        self.objective = OBJECTIVES[objective](
            0.07 if temperature is None else temperature, pairing="cross", gather=world_size > 1
        )
        # raw dot products, as ClipLoss: the model has normalised them; FlatNCE makes sure of it
        self._options = Options(
            pairing="cross", gather=world_size > 1, shared_loss=True, normalize=isinstance(self.objective, FlatNCE)
        )

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch.

        Args:
            image_features: [n, d] of this rank.
            text_features: [n, d], row by row of the same pairs.
            logit_scale: the inverse temperature, as the model returns it.
            logit_bias: moves all scores and so changes nothing; it gets a gradient of zero.
            output_dict: return {"contrastive_loss": loss}.

        Returns:
            A scalar, or a dictionary with it.
        """
        if self.follows_model:
            scale = _clamped(logit_scale, self.max_logit_scale)
            pairs = PairSet.made((image_features, text_features), self._options)
            loss, _ = self.objective.loss(pairs, scale.detach() if self._options.normalize else scale)
        else:
            loss = self.objective(image_features, text_features)
        return _returned(_with_all_used(loss, logit_scale, logit_bias), output_dict)


class SigLipLoss(nn.Module):
    """SigLIP without a score matrix in the place of open_clip's `SigLipLoss`: the same value and gradient.

    Args:
        cache_labels: taken for the signature's sake; there are no labels to cache.
        rank: likewise; the process group knows.
        world_size: above 1, the features of all ranks are gathered.
        dist_impl: likewise; there is one way here.
        max_logit_scale: a larger `logit_scale` counts as this one.

    >>> z = torch.eye(2)
    >>> SigLipLoss()(z, z, torch.tensor(1.0), torch.tensor(0.0)).item()
    1.0064...

    Reference: Zhai et al. 2023.
    """

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        *,
        max_logit_scale: float = 100.0,
    ) -> None:
        super().__init__()
        require_number("max_logit_scale", max_logit_scale, above=0, advice="100 is usual.")
        self.max_logit_scale = max_logit_scale
        self._options = Options(pairing="cross", gather=world_size > 1, shared_loss=True, normalize=False)

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch.

        Args:
            image_features: [n, d] of this rank.
            text_features: [n, d], row by row of the same pairs.
            logit_scale: the inverse temperature, as the model returns it.
            logit_bias: added to every score.
            output_dict: return {"contrastive_loss": loss}.

        Returns:
            A scalar, or a dictionary with it.
        """
        pairs = PairSet.made((image_features, text_features), self._options)
        losses, _ = sig_lip(pairs, _clamped(logit_scale, self.max_logit_scale), logit_bias.reshape(()))
        return _returned(pairs.mean(losses), output_dict)


def _refuse_horovod(use_horovod: bool) -> None:
    if use_horovod:
        raise ValueError("use_horovod must be False, got True; start the processes with torchrun.")


def _clamped(scale: Tensor, most: float) -> Tensor:
    """At most `most`; the gradient passes, so that a scale beyond it can come back."""
    scale = torch.as_tensor(scale).reshape(())
    return scale + (scale.detach().clamp(max=most) - scale.detach())


def _with_all_used(loss: Tensor, *parameters: Tensor | None) -> Tensor:
    for parameter in parameters:
        if isinstance(parameter, Tensor) and parameter.requires_grad:
            loss = loss + 0.0 * parameter.sum()
    return loss


def _returned(loss: Tensor, output_dict: bool) -> Tensor | dict[str, Tensor]:
    return {"contrastive_loss": loss} if output_dict else loss
