"""Embeddings checked, gathered, in accumulation precision.

Shape suffixes: V views, N samples of the global batch, n of this rank, A anchors, k drawn negatives, M queue, d
features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import FLOAT_TYPES, unusable_rows
from flatclr.contrast.numerics import accumulation_type, unit_rows
from flatclr.contrast.options import Options
from flatclr.contrast.relation import Layout, draw_negatives, layout_of


@dataclass(frozen=True)
class Batch:
    """Views and a queue that fit together, and any draw of negatives made once."""

    views: tuple[Tensor, ...]  # [n, d] each, of this rank, as they came
    queue: Tensor | None  # [M, d], ready
    drawn_Ak: Tensor | None  # rows of (view by view, queue)
    layout: Layout
    options: Options

    @classmethod
    def made(cls, views: tuple[Tensor, ...], options: Options, *, negatives: Tensor | None = None) -> Self:
        """A batch from embeddings as they came; refuses, on every rank, what does not fit together."""
        ranks = distributed.ranks_sharing_a_batch(True) if options.gather else distributed.ALONE
        if ranks.size > 1 or not _fit_together(views, negatives):
            distributed.agree_on_batches(views, negatives, ranks)
        if options.check_embeddings:
            _require_usable_rows(views, negatives, options, ranks)
        find_layout = layout_of.__wrapped__ if torch.compiler.is_compiling() else layout_of
        layout = find_layout(
            options.pairing,
            ranks,
            views=len(views),
            own_samples=len(views[0]),
            queued=0 if negatives is None else len(negatives),
            in_batch=options.in_batch_negatives,
        )
        if layout.negatives == 0:
            raise ValueError(
                f"every anchor must have a negative, got a batch of {layout.samples} with in_batch_negatives="
                f"{options.in_batch_negatives} and no queue; use at least 2 pairs, or pass negatives=."
            )
        if negatives is not None:
            negatives = negatives.to(accumulation_type(negatives))
            negatives = unit_rows(negatives) if options.normalize else negatives
        drawn = None
        if options.negatives_per_anchor is not None:
            k, generator = options.negatives_per_anchor, options.generator
            drawn = distributed.from_first_rank(draw_negatives(layout, k, generator, views[0].device), ranks)
            layout = replace(layout, negatives=k)
        return cls(views, negatives, drawn, layout, options)

    @property
    def negatives(self) -> int:
        """Per anchor, queue included."""
        return self.layout.negatives

    @property
    def stack(self) -> Tensor:
        """All views of this rank in accumulation precision, not yet normalised: [V n, d]."""
        return torch.cat(self.views).to(accumulation_type(self.views[0]))

    @cached_property
    def everyone_VNd(self) -> Tensor:
        """All views of all ranks, ready; backward hands this rank its own rows."""
        with torch.enable_grad():  # the first to ask may be a gauge, the next a loss
            own = unit_rows(self.stack) if self.options.normalize else self.stack
            return self._of_all_ranks(own.view(self.layout.views, self.layout.own_samples, -1))

    def of_all_ranks(self, per_sample_n: Tensor) -> Tensor:
        """Values of this rank's samples -> values of all samples [N], with gradient."""
        return self._of_all_ranks(per_sample_n.unsqueeze(0)).squeeze(0)

    def _of_all_ranks(self, x_Vn: Tensor) -> Tensor:
        return distributed.gather_views_with_gradient(x_Vn, self.layout.ranks, shared_loss=self.options.shared_loss)

    def scale(self, inverse_temperature: float | Tensor) -> float | Tensor:
        """A number, or a 0-dim tensor in the precision of the sums."""
        if isinstance(inverse_temperature, Tensor):
            z = self.views[0]
            return inverse_temperature.to(z.device, accumulation_type(z)).reshape(())
        return inverse_temperature if isinstance(inverse_temperature, float) else float(inverse_temperature)


def _fit_together(views: tuple[Tensor, ...], negatives: Tensor | None) -> bool:
    """The quick look; `agree_on_batches` says what is wrong."""
    first = views[0]
    if not isinstance(first, Tensor) or first.dim() != 2 or first.dtype not in FLOAT_TYPES or first.numel() == 0:
        return False
    for z in views:
        if not isinstance(z, Tensor) or z.shape != first.shape or z.dtype != first.dtype or z.device != first.device:
            return False
    return negatives is None


def _require_usable_rows(
    views: tuple[Tensor, ...], negatives: Tensor | None, options: Options, ranks: distributed.Ranks
) -> None:
    named = {"z_a": views[0], "z_b": views[1], "negatives": negatives}
    problems = (unusable_rows(n, z, directions=options.normalize) for n, z in named.items() if z is not None)
    distributed.fail_together(next(filter(None, problems), None), views[0].device, ranks)
