"""A critic's scores over a whole held-out split, reduced to a few numbers per row without keeping the matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flatclr.contrast import ContrastStats, Phi, contrast_stats, pairwise_mean
from flatclr.mi.critics import Critic, InnerProduct

LARGEST_CAP = 256  # negatives per row of a critic that pays for every pair
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Pool:
    """Scores of n pairs and of their negatives in float64: `stats` has the rows of x as anchors."""

    stats: ContrastStats
    column_logsumexp: Tensor  # over the x each y was a negative of

    def influence(self, partition_weight: float | Tensor = 1.0) -> Tensor:
        """What each row adds to E_p f - weight * E_q e^f / Z: its positive, and its x and its y as negatives."""
        log_mean = self.stats.log_partition + math.log(self.stats.negatives)
        shares = (self.stats.negative_logsumexp - log_mean).exp() + (self.column_logsumexp - log_mean).exp()
        return self.stats.positive - partition_weight * shares


@torch.no_grad()
def score_pool(
    critic: Critic, x: Tensor, y: Tensor, *, cap: int = LARGEST_CAP, row_shift: Tensor | None = None
) -> Pool:
    """Every row's positive against all other rows; against `cap` of them where every pair costs a pass.

    `row_shift` is added to all scores of a row.
    """
    shift = x.new_zeros(len(x), dtype=torch.float64) if row_shift is None else row_shift
    if isinstance(critic, InnerProduct):
        x_NF, y_NF = critic.features(x, y)
        if row_shift is not None:
            x_NF = torch.cat([x_NF, shift.to(x_NF.dtype).unsqueeze(1)], 1)
            y_NF = torch.cat([y_NF, torch.ones_like(y_NF[:, :1])], 1)
        both = contrast_stats(x_NF, y_NF, inverse_temperature=1.0, pairing="cross", normalize=False)
        rows, columns = both.negative_logsumexp.double().chunk(2)
        return _pool(both.positive.double().chunk(2)[0], rows, columns, len(x) - 1)
    if critic.caps_negatives:
        return _from_shifts(critic, x, y, min(cap, len(x) - 1), shift)
    rows_lse, columns_lse, positives = [], x.new_full((len(x),), -torch.inf, dtype=torch.float64), []
    for first, block in _blocks(critic, x, y):
        block += shift[first : first + len(block), None]
        diagonal = block.diagonal(first)
        positives.append(diagonal.clone())
        diagonal.fill_(-torch.inf)
        rows_lse.append(block.logsumexp(1))
        columns_lse = torch.logaddexp(columns_lse, block.logsumexp(0))
    return _pool(torch.cat(positives), torch.cat(rows_lse), columns_lse, len(x) - 1)


@torch.no_grad()
def clipped_means(
    critic: Critic, x: Tensor, y: Tensor, limit: float, *, cap: int = LARGEST_CAP
) -> tuple[Tensor, Tensor]:
    """Means of exp(clip(f, -limit, limit)) over the negatives of every x, and over the x each y was a negative of."""
    if isinstance(critic, InnerProduct):
        clipped = Phi(
            "exp_clipped",
            value=lambda s: s.clamp(-limit, limit).exp(),
            derivative=lambda s: torch.where(s.abs() < limit, s.exp(), 0),
        )
        x_NF, y_NF = critic.features(x, y)
        rows, columns = pairwise_mean(x_NF, y_NF, phi=clipped, pairing="cross", normalize=False).double().chunk(2)
        return rows, columns
    if critic.caps_negatives:
        count = min(cap, len(x) - 1)
        shares = _shifted_scores(critic, x, y, count).clamp(-limit, limit).exp()
        by_y = torch.stack([shares[:, c].roll(s, 0) for c, s in enumerate(_shifts(len(x), count))], 1)
        return shares.mean(1), by_y.mean(1)
    row_sums, column_sums = [], x.new_zeros(len(x), dtype=torch.float64)
    for first, block in _blocks(critic, x, y):
        shares = block.clamp(-limit, limit).exp()
        shares.diagonal(first).zero_()
        row_sums.append(shares.sum(1))
        column_sums += shares.sum(0)
    return torch.cat(row_sums) / (len(x) - 1), column_sums / (len(x) - 1)


def _blocks(critic: Critic, x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(x), _ROWS_AT_ONCE):
        yield first, critic.matrix(x[first : first + _ROWS_AT_ONCE], y).double()


def _shifted_scores(critic: Critic, x: Tensor, y: Tensor, count: int) -> Tensor:
    """f(x_i, y_{i + s}) for `count` evenly spread shifts s != 0, [N, count]: each shift is a derangement."""
    return torch.stack([critic.paired(x, y.roll(-s, 0)).double() for s in _shifts(len(x), count)], 1)


def _from_shifts(critic: Critic, x: Tensor, y: Tensor, count: int, row_shift: Tensor) -> Pool:
    scores = _shifted_scores(critic, x, y, count) + row_shift.unsqueeze(1)
    columns = torch.stack([scores[:, c].roll(s, 0) for c, s in enumerate(_shifts(len(x), count))], 1).logsumexp(1)
    return _pool(critic.paired(x, y).double() + row_shift, scores.logsumexp(1), columns, count)


def _shifts(rows: int, count: int) -> list[int]:
    shifts: list[int] = torch.linspace(1, rows - 1, count).round().long().tolist()
    return shifts


def _pool(positive: Tensor, rows: Tensor, columns: Tensor, negatives: int) -> Pool:
    return Pool(ContrastStats(positive, rows, rows - positive, negatives, _not_measured), columns)


def _not_measured() -> Tensor:
    raise NotImplementedError("the effective sample size of a pool is not measured; ask contrast_stats for it.")
