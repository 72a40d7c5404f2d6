"""Embeddings checked, gathered, in accumulation precision.

Shape suffixes: V views, N samples of the global batch, n of this rank, A anchors, k drawn negatives, M queue, d
features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, Unpack

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import FLOAT_TYPES, refuse_transforms, unusable_rows, view_names
from flatclr.contrast.known import Known, known_of, without_nothing
from flatclr.contrast.numerics import Cached, accumulation_type, unit_rows
from flatclr.contrast.options import GIVEN_NAMES, Given, Options
from flatclr.contrast.relation import PAIRINGS, Layout, layout_of
from flatclr.contrast.sampling import draw_negatives


@dataclass(frozen=True)
class Batch:
    """Views, a queue, what is known of the samples and their own hard negatives; any draw of negatives made once."""

    views: tuple[Tensor, ...]  # [n, d] each, of this rank, as they came
    queue: Tensor | None  # [M, d], ready
    given_queue: Tensor | None  # as it came
    drawn_Ak: Tensor | None  # rows of (view by view, queue); -1: none
    layout: Layout
    options: Options
    known: Known | None = None
    hard_nHd: Tensor | None = None  # of this rank, ready
    plain: bool = True  # two views on a diagonal: one positive, the same number of negatives for every anchor

    @classmethod
    def made(
        cls, views: tuple[Tensor, ...], options: Options, negatives: Tensor | None = None, **given: Unpack[Given]
    ) -> Self:
        """A batch from embeddings as they came; refuses, on every rank, what does not fit together."""
        compiling = torch.compiler.is_compiling()
        if not compiling and torch._C._are_functorch_transforms_active():
            refuse_transforms()
        if len(views) == 1 and isinstance(views[0], Tensor) and views[0].dim() == 3:
            views = _unstacked(views[0])
        if compiling:  # no graph takes a tensor twice
            views = tuple(_anew(z) if any(z is other for other in views[:v]) else z for v, z in enumerate(views))
        if given:
            given = without_nothing(given)
        ranks = distributed.ranks_sharing_a_batch(True) if options.gather else distributed.ALONE
        if ranks.size > 1 or not _fit_together(views, negatives):
            views = distributed.agree_on_batches(views, negatives, ranks, brings=_brought(given))
        queued = 0 if negatives is None else len(negatives)
        find_layout = layout_of.__wrapped__ if compiling else layout_of
        layout = find_layout(
            options.pairing,
            PAIRINGS[options.pairing],
            ranks,
            len(views),
            views[0].shape[0],
            queued,
            options.in_batch_negatives,
        )
        if layout.negatives == 0 and given.get("hard_negatives") is None:
            raise ValueError(
                f"every anchor must have a negative, got a batch of {layout.samples} with in_batch_negatives="
                f"{options.in_batch_negatives} and no queue; use at least 2 pairs, or pass negatives=."
            )
        known = hard = None
        if given:
            known, hard, first = known_of(given, views[0], queued, ranks)
            views = first, *views[1:]
        if options.check_embeddings and compiling:
            views, negatives, hard = _looked_at(views, negatives, hard, options)
        elif options.check_embeddings:
            _require_usable_rows(views, negatives, hard, options, ranks)
        if hard is not None:
            hard = ready_rows(hard.flatten(0, 1), options).view_as(hard)
        queue = None if negatives is None else ready_rows(negatives, options)
        drawn = None
        if options.negatives_per_anchor is not None:
            k = options.negatives_per_anchor
            drawn = draw_negatives(layout, k, options.generator, views[0].device, known)
            drawn = distributed.from_first_rank(drawn, ranks)
            layout = replace(layout, negatives=k)
        plain = len(views) == 2 and known is None and hard is None and options.false_negative_margin is None
        plain = plain and len(layout.groups) <= 2  # of more, an anchor group is not a view
        return cls(views, queue, negatives, drawn, layout, options, known, hard, plain)

    def detach(self) -> Self:
        """The same batch without its graph."""
        queue, given, hard = (None if x is None else x.detach() for x in (self.queue, self.given_queue, self.hard_nHd))
        views = tuple(z.detach() for z in self.views)
        detached = replace(self, views=views, queue=queue, given_queue=given, hard_nHd=hard)
        for name in {"own_Vnd", "everyone_VNd"} & self.__dict__.keys():
            detached.__dict__[name] = self.__dict__[name].detach()
        return detached

    @property
    def negatives(self) -> int:
        """That an anchor can have at most: of the batch, of the queue, and its own hard ones."""
        return self.layout.negatives + (0 if self.hard_nHd is None else self.hard_nHd.shape[1])

    @property
    def chosen(self) -> bool:
        """Whether labels, ids, a margin or hard negatives choose the negatives: then they are not of the marginal."""
        margin = self.options.false_negative_margin is not None
        return margin or self.known is not None or self.hard_nHd is not None

    @property
    def counts_differ(self) -> bool:
        """Whether anchors may have different numbers of negatives."""
        return self.options.false_negative_margin is not None or self.known is not None

    @property
    def stack(self) -> Tensor:
        """All views of this rank in accumulation precision, not yet normalised: [V n, d]."""
        precision = accumulation_type(self.views[0])
        # before they are joined: autocast to another half type cannot join them
        return torch.cat([z if z.dtype == precision else z.to(precision) for z in self.views])

    @Cached
    def own_Vnd(self) -> Tensor:
        """All views of this rank, ready."""
        with torch.enable_grad():  # the first to ask may be a gauge, the next a loss
            own = ready_rows(self.stack, self.options)
            return own.view(self.layout.views, self.layout.own_samples, -1)

    @Cached
    def everyone_VNd(self) -> Tensor:
        """All views of all ranks, ready; backward hands this rank its own rows."""
        with torch.enable_grad():
            return self.gathered(self.own_Vnd)

    def of_all_ranks(self, per_sample_n: Tensor) -> Tensor:
        """Values of this rank's samples -> values of all samples [N], with gradient."""
        return self.gathered(per_sample_n.unsqueeze(0)).squeeze(0)

    def gathered(self, x_Vn: Tensor) -> Tensor:
        """[V, n, ...] of this rank -> [V, N, ...] of all, with gradient."""
        return distributed.gather_views_with_gradient(x_Vn, self.layout.ranks, shared_loss=self.options.shared_loss)

    def scale(self, inverse_temperature: float | Tensor) -> float | Tensor:
        """A number, or a tensor in the precision of the sums: 0-dim, or one value per anchor [A]."""
        if isinstance(inverse_temperature, Tensor):
            z = self.views[0]
            scale = inverse_temperature.to(z.device, accumulation_type(z))
            if scale.numel() == 1:
                return scale.reshape(())
            if scale.shape != (self.layout.anchors,):
                raise ValueError(
                    f"inverse_temperature must be one value, or one per anchor [{self.layout.anchors}], got "
                    f"{list(scale.shape)}; anchors come group by group, in each in the order of the samples."
                )
            return scale
        return inverse_temperature if isinstance(inverse_temperature, float) else float(inverse_temperature)


def ready_rows(rows: Tensor, options: Options) -> Tensor:
    """Embeddings in accumulation precision, on the sphere if asked."""
    rows = rows.to(accumulation_type(rows))
    return unit_rows(rows) if options.normalize else rows


def _brought(given: Given) -> tuple[int, ...]:
    """What a rank says of its samples, as far as ranks must agree on it: what there is, and how many hard negatives."""
    hard = given.get("hard_negatives")
    per_sample = hard.shape[1] if isinstance(hard, Tensor) and hard.dim() == 3 else 0
    return *(int(given.get(name) is not None) for name in GIVEN_NAMES), per_sample


def _anew(z: Tensor) -> Tensor:
    return z.view_as(z) if isinstance(z, Tensor) else z


def _unstacked(views_Vnd: Tensor) -> tuple[Tensor, ...]:
    device = views_Vnd.device.type
    if views_Vnd.is_meta:
        return views_Vnd.unbind()  # which is refused; autocast does not know the device
    if torch.is_autocast_enabled(device) and views_Vnd.dtype not in (torch.get_autocast_dtype(device), torch.float32):
        return tuple(views_Vnd[v] for v in range(len(views_Vnd)))  # backward of unbind joins, as autocast here cannot
    return views_Vnd.unbind()


def _fit_together(views: tuple[Tensor, ...], negatives: Tensor | None) -> bool:
    """The quick look; `agree_on_batches` says what is wrong."""
    if len(views) < 2:
        return False
    first = views[0]
    if not isinstance(first, Tensor) or first.dim() != 2 or first.dtype not in FLOAT_TYPES or first.numel() == 0:
        return False
    if first.is_meta or first.layout != torch.strided:
        return False
    for z in views[1:]:
        if not isinstance(z, Tensor) or z.shape != first.shape or z.dtype != first.dtype or z.device != first.device:
            return False
        if z.layout != torch.strided:
            return False
    return negatives is None


def _require_usable_rows(
    views: tuple[Tensor, ...],
    negatives: Tensor | None,
    hard_nHd: Tensor | None,
    options: Options,
    ranks: distributed.Ranks,
) -> None:
    named = {**dict(zip(view_names(len(views)), views, strict=True)), "negatives": negatives}
    named["hard_negatives"] = None if hard_nHd is None else hard_nHd.flatten(0, 1)
    problems = (unusable_rows(n, z, directions=options.normalize) for n, z in named.items() if z is not None)
    distributed.fail_together(next(filter(None, problems), None), views[0].device, ranks)


def _looked_at(
    views: tuple[Tensor, ...], negatives: Tensor | None, hard_nHd: Tensor | None, options: Options
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """The same embeddings, from an operator that raises when it runs: a graph cannot look at values."""
    names, switches = view_names(len(views)), (options.normalize, options.gather)
    seen = tuple(torch.ops.flatclr.usable_rows(z, name, *switches) for z, name in zip(views, names, strict=True))
    if negatives is not None:
        negatives = torch.ops.flatclr.usable_rows(negatives, "negatives", *switches)
    if hard_nHd is not None:
        rows = torch.ops.flatclr.usable_rows(hard_nHd.flatten(0, 1), "hard_negatives", *switches)
        hard_nHd = rows.view_as(hard_nHd)
    return seen, negatives, hard_nHd


@torch.library.custom_op("flatclr::usable_rows", mutates_args=(), tags=distributed.WAITS)
def usable_rows(rows: Tensor, name: str, directions: bool, gather: bool) -> Tensor:
    """A copy of rows that were looked at; a copy, because an operator must not return its argument."""
    ranks = distributed.ranks_sharing_a_batch(gather)
    distributed.fail_together(unusable_rows(name, rows, directions=directions), rows.device, ranks)
    return rows.clone()


@usable_rows.register_fake
def _(rows: Tensor, name: str, directions: bool, gather: bool) -> Tensor:
    return torch.empty_like(rows)


usable_rows.register_autograd(lambda ctx, upstream: (upstream, None, None, None))
