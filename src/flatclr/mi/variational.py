"""Variational estimators: how each trains its critic and how it reads a value from held-out rows.

An estimator owns the critic and whatever else it learns. `loss` is minimised on training batches, `read` gives the
value on other rows. Reading and training differ where the literature's do: JS and SMILE train by logistic regression,
FlatNCE trains a bounded critic and reads InfoNCE. The formulas are
`flatclr.objectives.variational`'s, as losses and, with the other sign, as `flatclr.mi.bounds`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flatclr.contrast import ContrastStats, stats_from_scores
from flatclr.mi import bounds
from flatclr.mi.critics import Cosine, Critic
from flatclr.mi.outcome import Reading
from flatclr.mi.pool import Pool, clipped_means, score_pool
from flatclr.models.critics.networks import network, start_at_zero
from flatclr.objectives import EssControl, FlatNCE
from flatclr.objectives import variational as losses

SMILE_CLIP = 5.0
INTERPOLATION = 0.5
INTERPOLATED_BATCH = 256
JACKKNIFE_GROUPS = 20
MINE_DECAY = 0.99


class Variational(nn.Module):
    """A critic with its training loss and its reading."""

    batch_size = 256
    default_critic = "anchored"

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__()
        self.critic = critic

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def read(self, x: Tensor, y: Tensor) -> Reading:
        raise NotImplementedError

    def validate(self, x: Tensor, y: Tensor) -> float:
        """What early stopping maximises."""
        return self.read(x, y).nats


class InfoNCE(Variational):
    """The positive against the pool, itself among it."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return stats_from_scores(self.critic(x, y)).info_nce.mean()

    def read(self, x: Tensor, y: Tensor) -> Reading:
        stats = score_pool(self.critic, x, y).stats
        values = bounds.infonce(stats)
        # a row's y also stands in the other rows' denominators, in shares that average to one
        denominators = torch.logaddexp(stats.positive, stats.negative_logsumexp) - stats.ceiling_nats
        shares = score_pool(self.critic, x, y, row_shift=-denominators).column_logsumexp - math.log(stats.negatives)
        return Reading(values, values - shares.exp(), float(stats.ceiling_nats), _pairs(stats))

    def validate(self, x: Tensor, y: Tensor) -> float:
        return float(score_pool(self.critic, x, y).stats.mi_nats)


class Flat(InfoNCE):
    """FlatNCE on cosines whose scale the effective sample size sets; for reading, validation sets it."""

    default_critic = "cosine"

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        if not isinstance(critic, Cosine):
            raise ValueError(
                f"flatnce must have the cosine critic, got {type(critic).__name__}; an unbounded one diverges."
            )
        super().__init__(critic, dim_x, dim_y, hidden)
        self.objective = FlatNCE(EssControl(target=0.25), pairing="cross")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(self.critic, Cosine)
        return self.objective.forward(self.critic.g(x), self.critic.h(y))

    def validate(self, x: Tensor, y: Tensor) -> float:
        """Set the scale that reads most on these rows: octaves first, then closer around the best."""
        assert isinstance(self.critic, Cosine)
        readings: dict[float, float] = {}
        for step in (None, 2**0.5, 2**0.25):
            best = max(readings, key=readings.__getitem__, default=1.0)
            for scale in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0) if step is None else (best * step, best / step):
                self.critic.scale.fill_(scale)
                readings[scale] = super().validate(x, y)
        best = max(readings, key=readings.__getitem__)
        self.critic.scale.fill_(best)
        return readings[best]


class DV(Variational):
    """The partition over all pairs of the batch, and of the pool."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.dv(stats_from_scores(self.critic(x, y))).mean()

    def read(self, x: Tensor, y: Tensor) -> Reading:
        pool = score_pool(self.critic, x, y)
        return Reading(bounds.dv(pool.stats), pool.influence(), math.inf, _pairs(pool.stats))


class Mine(DV):
    """DV whose training divides by a moving average of the partition."""

    log_average: Tensor

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__(critic, dim_x, dim_y, hidden)
        self.register_buffer("log_average", torch.tensor(math.nan))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        stats = stats_from_scores(self.critic(x, y))
        now = stats.log_partition.detach()
        decayed = torch.logaddexp(self.log_average + math.log(MINE_DECAY), now + math.log1p(-MINE_DECAY))
        self.log_average.copy_(torch.where(self.log_average.isnan(), now, decayed))
        return losses.mine(stats, self.log_average).mean()


class NWJ(Variational):
    """The critic learns log r; NWJ's own optimum is that plus one."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.nwj(stats_from_scores(self.critic(x, y) + 1)).mean()

    def read(self, x: Tensor, y: Tensor) -> Reading:
        return _unnormalised(score_pool(self.critic, x, y))


class TUBA(Variational):
    """A learned baseline a(x) beside the critic."""

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__(critic, dim_x, dim_y, hidden)
        self.log_baseline = network(dim_x, 1, hidden)
        start_at_zero(self.log_baseline)

    def _baseline(self, x: Tensor) -> Tensor:
        baseline: Tensor = self.log_baseline(x).squeeze(1)
        return baseline

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.tuba(stats_from_scores(self.critic(x, y)), self._baseline(x)).mean()

    @torch.no_grad()
    def read(self, x: Tensor, y: Tensor) -> Reading:
        pool = score_pool(self.critic, x, y, row_shift=-self._baseline(x).double())
        return _unnormalised(pool)


class FLO(Variational):
    """A learned u(x, y) of the positive pair; an anchor's log ratio is where it starts."""

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__(critic, dim_x, dim_y, hidden)
        self.u = network(dim_x + dim_y, 1, hidden)
        start_at_zero(self.u)

    def _u(self, x: Tensor, y: Tensor) -> Tensor:
        u: Tensor = self.u(torch.cat([x, y], 1)).squeeze(1)
        return u - self.critic.paired(x, y)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.flo(stats_from_scores(self.critic(x, y)), self._u(x, y)).mean()

    @torch.no_grad()
    def read(self, x: Tensor, y: Tensor) -> Reading:
        stats, u = score_pool(self.critic, x, y).stats, self._u(x, y).double()
        values = bounds.flo(stats, u)
        weighted = score_pool(self.critic, x, y, row_shift=-u - stats.positive)  # a row's y as the others' negative
        columns = (weighted.column_logsumexp - math.log(stats.negatives)).exp()
        return Reading(values, values - columns, math.inf, _pairs(stats))


class JS(Variational):
    """Logistic regression learns log r; the value is NWJ's at that critic plus one."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.critic(x, y)
        return losses.js(scores.diagonal(), _off_diagonal(scores)).mean()

    def read(self, x: Tensor, y: Tensor) -> Reading:
        return _unnormalised(score_pool(self.critic, x, y))


class Smile(JS):
    """Trained as JS; clipping bounds the variance of the partition it is read with."""

    def read(self, x: Tensor, y: Tensor) -> Reading:
        stats = score_pool(self.critic, x, y).stats
        rows, columns = clipped_means(self.critic, x, y, SMILE_CLIP)
        influence = stats.positive - (rows + columns) / rows.mean()
        return Reading(bounds.smile(stats.positive, rows.mean().log()), influence, math.inf, _pairs(stats))

    def validate(self, x: Tensor, y: Tensor) -> float:
        return float(bounds.dv(score_pool(self.critic, x, y).stats).mean())


class Interpolated(Variational):
    """Between InfoNCE and TUBA with a baseline q(y), on batches: leaving one out needs the whole matrix."""

    batch_size = INTERPOLATED_BATCH

    def __init__(self, critic: Critic, dim_x: int, dim_y: int, hidden: int) -> None:
        super().__init__(critic, dim_x, dim_y, hidden)
        self.log_baseline = network(dim_y, 1, hidden)
        start_at_zero(self.log_baseline)

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return bounds.interpolated(self.critic(x, y), self.log_baseline(y).squeeze(1), INTERPOLATION)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._values(x, y).mean()

    @torch.no_grad()
    def read(self, x: Tensor, y: Tensor) -> Reading:
        """Over disjoint batches of equal size; rows of a batch depend on each other, so the error is a jackknife's."""
        values, size = self._in_batches(x, y)
        groups, group = min(JACKKNIFE_GROUPS, len(x) // 2), torch.arange(len(x))
        left_out = [
            self._in_batches(x[kept], y[kept])[0].mean() for kept in (group % groups != g for g in range(groups))
        ]
        influence = groups * values.mean() - (groups - 1) * torch.stack(left_out)
        ceiling = bounds.interpolated_ceiling_nats(size, INTERPOLATION)
        return Reading(values, influence, ceiling, len(values) * (size - 1))

    def validate(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return float(self._in_batches(x, y)[0].mean())

    def _in_batches(self, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        count = max(1, round(len(x) / INTERPOLATED_BATCH))
        size = len(x) // count
        parts = [slice(b * size, (b + 1) * size) for b in range(count)]
        return torch.cat([self._values(x[part], y[part]).double() for part in parts]), size


def _unnormalised(pool: Pool) -> Reading:
    """1 + E_p f - E_q e^f of scores that estimate log r."""
    influence = pool.influence(pool.stats.log_partition.exp())
    return Reading(bounds.js(pool.stats), influence, math.inf, _pairs(pool.stats))


def _pairs(stats: ContrastStats) -> int:
    return len(stats.positive) * int(stats.negatives)


def _off_diagonal(scores_KK: Tensor) -> Tensor:
    K = len(scores_KK)
    return scores_KK.flatten()[1:].view(K - 1, K + 1)[:, :-1].reshape(K, K - 1)
