"""What a user knows of the samples: labels that make positives, ids that are never negatives, hard negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatclr import distributed
from flatclr.checks import FLOAT_TYPES, require_dense, require_values
from flatclr.contrast.numerics import Cached
from flatclr.contrast.options import Given
from flatclr.contrast.relation import Layout, Views

PIECE = 128  # samples of a class that are added up by one thread


@dataclass(frozen=True)
class Codes:
    """Labels and ids of the rows and of the columns of a block, and which pairs of them are meant."""

    row_labels: Tensor | None
    column_labels: Tensor | None
    row_ids: Tensor | None
    column_ids: Tensor | None
    positives: bool = False  # the pairs of one label; else those that may be negatives
    in_order: bool = False  # view by view, labels are sorted

    def excluded(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor | None:
        """Which pairs of a tile are not meant, [rows, columns]; the same sample is another matter."""
        excluded = None
        if self.row_labels is not None and self.column_labels is not None:
            row_labels, column_labels = self.row_labels[rows].unsqueeze(1), self.column_labels[columns]
            excluded = row_labels != column_labels if self.positives else row_labels == column_labels
        if self.row_ids is not None and self.column_ids is not None:
            same = self.row_ids[rows].unsqueeze(1) == self.column_ids[columns]
            excluded = same if excluded is None else excluded.logical_or_(same)
        return excluded


@dataclass(frozen=True)
class Known:
    """Labels and ids of all ranks' samples [N] and of the queue [M], numbered; None where nothing was said."""

    labels: Tensor | None = None
    ids: Tensor | None = None
    queue_labels: Tensor | None = None
    queue_ids: Tensor | None = None
    in_order: bool = False  # samples are sorted by label

    def codes(self, layout: Layout, row_views: Views, column_views: Views, *, positives: bool) -> Codes:
        """Of this rank's rows of some views against everyone's of others."""
        row_labels, row_ids = (_repeated(_own(of, layout), row_views) for of in (self.labels, self.ids))
        column_labels, column_ids = _repeated(self.labels, column_views), _repeated(self.ids, column_views)
        return Codes(row_labels, column_labels, row_ids, column_ids, positives, self.in_order)

    def queue_codes(self, layout: Layout, row_views: Views) -> Codes:
        """Of this rank's rows of some views against the queue."""
        row_labels, row_ids = (_repeated(_own(of, layout), row_views) for of in (self.labels, self.ids))
        return Codes(row_labels, self.queue_labels, row_ids, self.queue_ids)

    @Cached
    def _of_label(self) -> Tensor:
        """A number per sample, below how many there are, the same for those of one label."""
        assert self.labels is not None
        return self.labels.long() if self.queue_labels is None else numbered(self.labels)

    @Cached
    def _of_label_and_id(self) -> Tensor:
        """A number per sample, the same for those of one label and one id."""
        assert self.ids is not None
        return numbered(self._of_label * len(self.ids) + numbered(self.ids))

    @Cached
    def _pieces_of_label(self) -> Pieces:
        return Pieces.of(self._of_label)

    @Cached
    def _pieces_of_label_and_id(self) -> Pieces:
        return Pieces.of(self._of_label_and_id)

    def others_of_label(self) -> Tensor:
        """How many other samples [N] have the label of each, those of its id left out."""
        assert self.labels is not None
        of_label_N = shared(self.labels, self.labels)
        return of_label_N - (1 if self.ids is None else shared(self._of_label_and_id, self._of_label_and_id))

    def left_out(self) -> Tensor:
        """How many other samples [N] have the label or the id of each: they are not its negatives."""
        return _shared_either(self.labels, self.ids, self.labels, self.ids) - 1

    def left_out_of_queue(self) -> Tensor:
        """How many rows of the queue have the label or the id of each sample [N]."""
        return _shared_either(self.labels, self.ids, self.queue_labels, self.queue_ids)

    def summed_over_label(self, of_samples_N: Tensor) -> Tensor:
        """For every sample, the sum [N, ...] over the others of its label, those of its id left out."""
        if of_samples_N.is_cuda and of_samples_N.is_floating_point() and not torch.compiler.is_compiling():
            not_meant_N = of_samples_N if self.ids is None else sum_of_class(of_samples_N, self._pieces_of_label_and_id)
            return sum_of_class(of_samples_N, self._pieces_of_label) - not_meant_N
        not_meant_N = of_samples_N if self.ids is None else _indexed_sum(of_samples_N, self._of_label_and_id)
        return _indexed_sum(of_samples_N, self._of_label) - not_meant_N


def without_nothing(given: Given) -> Given:
    """What was said, without what was said to be None: on another rank it may not have been said at all."""
    said: Given = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    return said


def known_of(
    given: Given, view: Tensor, queued: int, ranks: distributed.Ranks
) -> tuple[Known | None, Tensor | None, Tensor]:
    """(labels and ids, gathered; hard negatives; the view) of a call, once they were looked at on every rank."""
    problem, codes, hard = None, {}, given.get("hard_negatives")
    try:
        codes = _checked(given, view, queued)
    except (TypeError, ValueError) as error:
        if ranks.size == 1:
            raise
        problem, hard = str(error), None
    view = distributed.unless_refused(view, problem, ranks)
    (labels, queue_labels), (ids, queue_ids) = (
        _small(_gathered(codes.get(name), ranks), codes.get(f"negative_{name}")) for name in ("labels", "ids")
    )
    known = None if labels is None and ids is None else Known(labels, ids, queue_labels, queue_ids)
    return known, hard, view


def _small(mine: Tensor | None, theirs: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Codes of samples and of a queue in 32 bits, by which they are the same or not and in the order they were in."""
    if mine is None:
        return None, None
    numbers = numbered(mine if theirs is None else torch.cat([mine.long(), theirs.long()])).int()
    return numbers[: len(mine)], None if theirs is None else numbers[len(mine) :]


def _checked(given: Given, like: Tensor, queued: int) -> dict[str, Tensor | None]:
    """Labels and ids by name, on the views' device."""
    codes: dict[str, Tensor | None] = {}
    for name, mine, theirs in (
        ("labels", given.get("labels"), given.get("negative_labels")),
        ("ids", given.get("ids"), given.get("negative_ids")),
    ):
        if theirs is not None and (mine is None or queued == 0):
            missing = "negatives" if queued == 0 else name
            raise ValueError(f"negative_{name} must come with {missing}=, got them alone; pass both or neither.")
        if mine is not None and queued and theirs is None:
            raise ValueError(
                f"{name} with a queue must come with negative_{name} [{queued}], got none; say what its rows are."
            )
        codes[name] = _codes(name, mine, len(like), like.device)
        codes[f"negative_{name}"] = _codes(f"negative_{name}", theirs, queued, like.device)
    if given.get("hard_negatives") is not None:
        _require_hard_negatives(given["hard_negatives"], like)
    return codes


def _require_hard_negatives(hard: Any, like: Tensor) -> None:
    """Refuse anything but [N, H, d] of the views' type."""
    samples, d = like.shape
    if not isinstance(hard, Tensor):
        raise TypeError(f"hard_negatives must be a torch.Tensor [N, H, d], got {type(hard).__name__}; stack them.")
    require_dense("hard_negatives", hard)
    if hard.dim() != 3 or hard.shape[0] != samples or hard.shape[1] == 0 or hard.shape[2] != d:
        raise ValueError(
            f"hard_negatives must have shape [{samples}, H, {d}], got {list(hard.shape)}; "
            "row n holds those of sample n."
        )
    if hard.dtype not in FLOAT_TYPES or hard.dtype != like.dtype or hard.device != like.device:
        raise TypeError(
            f"hard_negatives must be {like.dtype} on {like.device} as the views, got {hard.dtype} on {hard.device}; "
            "call .to(z) on them."
        )


def _codes(name: str, codes: Any, count: int, device: torch.device) -> Tensor | None:
    if codes is None:
        return None
    try:
        codes = torch.as_tensor(codes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be {count} whole numbers, one per sample, got {type(codes).__name__} ({error}); "
            "number them with integers."
        ) from error
    require_dense(name, codes)
    if codes.dim() != 1 or len(codes) != count or codes.dtype.is_floating_point or codes.dtype.is_complex:
        raise ValueError(
            f"{name} must be {count} whole numbers, one per sample, got {codes.dtype} of shape {list(codes.shape)}; "
            "number them with integers."
        )
    if device.type != "meta":
        require_values(name, codes)
    moved: Tensor = codes.to(device)
    return moved


def _gathered(codes: Tensor | None, ranks: distributed.Ranks) -> Tensor | None:
    if codes is None or ranks.size == 1:
        return codes
    return distributed.gather_views(codes.long().unsqueeze(0), ranks).squeeze(0)


def numbered(codes: Tensor) -> Tensor:
    """Codes as numbers from 0 to their number of kinds less 1, in shapes that do not depend on them: no wait.

    >>> numbered(torch.tensor([7, -2, 7, 9]))
    tensor([1, 0, 1, 2])
    """
    ordered, order = codes.long().sort()
    kinds = torch.cat([ordered.new_zeros(1), (ordered[1:] != ordered[:-1]).cumsum(0)])
    return torch.zeros_like(kinds).index_put((order,), kinds)


def shared(codes_N: Tensor, among_M: Tensor) -> Tensor:
    """How many among others are the same as each of these.

    >>> shared(torch.tensor([7, 5]), torch.tensor([7, -2, 7, 9]))
    tensor([2, 0])
    """
    return _how_many(among_M.long().contiguous().sort().values, codes_N.long().contiguous())


def _shared_either(labels: Tensor | None, ids: Tensor | None, their_labels: Any, their_ids: Any) -> Tensor:
    """How many others have the label or the id of each."""
    if labels is None or ids is None:
        mine, theirs = (ids, their_ids) if labels is None else (labels, their_labels)
        assert mine is not None
        return shared(mine, theirs)
    of_label, of_id = (
        numbered(torch.cat([mine.long(), theirs.long()])) for mine, theirs in ((labels, their_labels), (ids, their_ids))
    )
    of_both = of_label * len(of_id) + of_id
    either = shared(labels, their_labels) + shared(ids, their_ids)
    return either - shared(of_both[: len(labels)], of_both[len(labels) :])


class Pieces(NamedTuple):
    """How samples are added up class by class: pieces of a class first, then the pieces.

    One thread adds up a segment. Were a large class one segment, the others would wait for it: ten classes of 6,554
    samples took 5 ms. Shapes do not depend on the classes, so nothing waits for the device: there are as many pieces
    as samples, the last ones empty.
    """

    class_N: Tensor
    order_N: Tensor  # samples class by class
    in_piece_N: Tensor  # how many of them a piece takes
    in_class_N: Tensor  # how many pieces a class has

    @classmethod
    def of(cls, class_N: Tensor) -> Pieces:
        ordered_N, order_N = class_N.sort(stable=True)
        place_N = torch.arange(len(class_N), device=class_N.device)
        begins_N = place_N % PIECE == 0
        begins_N[1:] |= ordered_N[1:] != ordered_N[:-1]
        in_piece_N = _how_many(begins_N.cumsum(0) - 1, place_N)
        first_N = in_piece_N.cumsum(0) - in_piece_N
        # empty pieces stand behind all classes
        of_piece_N = torch.where(in_piece_N > 0, ordered_N[first_N.clamp_max(len(class_N) - 1)], len(class_N))
        return cls(class_N, order_N, in_piece_N, _how_many(of_piece_N, place_N))

    def summed(self, of_samples_N: Tensor) -> Tensor:
        """The sum over the class of every sample."""
        pieces_N = torch.segment_reduce(of_samples_N[self.order_N], "sum", lengths=self.in_piece_N, unsafe=True)
        return torch.segment_reduce(pieces_N, "sum", lengths=self.in_class_N, unsafe=True)[self.class_N]


def _indexed_sum(of_samples_N: Tensor, class_N: Tensor) -> Tensor:
    """The sum over the class of every sample; not index_add, whose order on a GPU is by chance."""
    return torch.zeros_like(of_samples_N).index_put((class_N,), of_samples_N, accumulate=True)[class_N]


def sum_of_class(of_samples_N: Tensor, pieces: Pieces) -> Tensor:
    """The same, class by class in the order of the samples: where there are many features, much faster on a GPU."""
    found: Tensor = _SumOfClass.apply(of_samples_N, pieces)
    return found


class _SumOfClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_samples_N: Tensor, pieces: Pieces) -> Tensor:
        ctx.pieces = pieces
        return pieces.summed(of_samples_N)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return _SumOfClass.apply(upstream, ctx.pieces), None


def _how_many(ordered_N: Tensor, wanted_M: Tensor) -> Tensor:
    return torch.searchsorted(ordered_N, wanted_M, right=True) - torch.searchsorted(ordered_N, wanted_M)


def _own(codes: Tensor | None, layout: Layout) -> Tensor | None:
    return None if codes is None else codes[layout.ranks.own_rows(layout.own_samples)]


def _repeated(codes: Tensor | None, views: Views) -> Tensor | None:
    return None if codes is None else codes.repeat(len(views))
