"""Matryoshka representations (Kusupati et al. 2022): the first features of an embedding are embeddings themselves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.checks import require_dense, require_rising_counts, view_names
from flatclr.contrast import ContrastStats
from flatclr.contrast.options import Given
from flatclr.objectives.base import Objective


class Matryoshka(Objective):
    """Any objective on prefixes of the embedding, averaged.

        loss = mean over m of objective(z[:, :m])

    Every prefix has a copy of the objective: its own controller, learned scalars and numbers of samples. An objective
    that normalises does so for every prefix. The stats are those of the longest prefix.

    Args:
        objective: of one embedding; it is copied.
        dims: how many features each prefix has, in rising order.

    >>> objective = Matryoshka(flatclr.InfoNCE(temperature=1.0), dims=(2, 4))
    >>> z = torch.eye(4)
    >>> objective(z, z)
    tensor(1.3605)

    Reference: Kusupati et al. 2022.
    """

    def __init__(self, objective: Objective, dims: Sequence[int]) -> None:
        nn.Module.__init__(self)
        if not isinstance(objective, Objective) or isinstance(objective, Matryoshka):
            raise TypeError(
                f"objective must be a flatclr.Objective of one embedding, got {type(objective).__name__}; pass one, "
                "say InfoNCE()."
            )
        if objective._graphs is not None:
            raise ValueError(
                f"objective must not capture itself inside a Matryoshka, got {type(objective).__name__}(graphed=True); "
                "leave graphed out."
            )
        require_rising_counts("dims", dims)
        self.dims = tuple(dims)
        self.prefixes = nn.ModuleList(copy.deepcopy(objective) for _ in self.dims)
        self.options = objective.options
        self._graphs = None

    @property
    def _longest(self) -> Objective:
        longest = self.prefixes[-1]
        assert isinstance(longest, Objective)
        return longest

    @property
    def inverse_temperature(self) -> float | Tensor:
        """That of the longest prefix."""
        return self._longest.inverse_temperature

    @property
    def keeps_samples(self) -> bool:
        """Whether the objective inside does."""
        return self._longest.keeps_samples

    def _evaluate(
        self,
        views: tuple[Tensor, ...],
        negatives: Tensor | None,
        index: Tensor | None,
        given: Given,
        *,
        need_stats: bool,
    ) -> tuple[Tensor, ContrastStats | None]:
        _require_width(views, self.dims[-1])
        losses, stats = [], None
        for m, prefix in zip(self.dims, self.prefixes, strict=True):
            assert isinstance(prefix, Objective)
            brought = given.copy()
            hard = brought.get("hard_negatives")
            if hard is not None:
                brought["hard_negatives"] = _prefix("hard_negatives", hard, m)
            loss, stats = prefix._evaluate(
                tuple(_prefix(name, z, m) for name, z in zip(view_names(len(views)), views, strict=False)),
                _prefix("negatives", negatives, m),
                index,
                brought,
                need_stats=need_stats and prefix is self._longest,
            )
            losses.append(loss)
        return torch.stack(losses).mean(), stats

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


def _prefix(name: str, x: Any, m: int) -> Any:
    """The first features; what is no tensor is left to who refuses it."""
    if not isinstance(x, Tensor):
        return x
    require_dense(name, x)
    return x[..., :m]


def _require_width(views: tuple[Tensor, ...], longest: int) -> None:
    for z in views:
        if isinstance(z, Tensor) and z.dim() >= 2 and z.shape[-1] < longest:
            raise ValueError(
                f"embeddings must have at least the {longest} features of the longest prefix, got {z.shape[-1]}; "
                "widen them or shorten dims."
            )
