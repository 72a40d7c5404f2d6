"""Every bound at the known optimal critic of correlated Gaussians, against its closed-form expectation.

For one pair of correlation rho: I = -1/2 ln(1 - rho^2), chi^2 = E_q r^2 - 1 = rho^2 / (1 - rho^2). With M negatives a
mean of ratios r has the log -chi^2 / (2 M) on average, to first order; with the positive among M + 1 terms the log gains
chi^2 / M. Legend: B batches, K rows of a batch.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flatclr import stats_from_scores
from flatclr.mi import bounds, limits, variational
from flatclr.mi.critics import Cosine, Critic
from flatclr.mi.variational import Variational

RHO = 0.6
INFORMATION = -0.5 * math.log(1 - RHO**2)
CHI_SQUARED = RHO**2 / (1 - RHO**2)
K, BATCHES = 64, 600


def log_ratio(x: Tensor, y: Tensor) -> Tensor:
    quadratic = RHO**2 * x**2 - 2 * RHO * x * y + RHO**2 * y**2
    return INFORMATION - quadratic / (2 * (1 - RHO**2))


def gaussian_batches(batches: int = BATCHES, rows: int = K, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, batches, rows, generator=generator, dtype=torch.float64)
    return x, RHO * x + math.sqrt(1 - RHO**2) * noise


def optimal_scores(batches: int = BATCHES, rows: int = K, seed: int = 0) -> Tensor:
    x, y = gaussian_batches(batches, rows, seed)
    return log_ratio(x[:, :, None], y[:, None, :])


def log_conditional(batches: int = BATCHES, rows: int = K) -> Tensor:
    """log q(y_j | x_i) of the true conditional, [B, K, K]."""
    x, y = gaussian_batches(batches, rows)
    variance = 1 - RHO**2
    return -0.5 * (math.log(2 * math.pi * variance) + (y[:, None, :] - RHO * x[:, :, None]) ** 2 / variance)


def assert_mean_is(values: list[float], expected: float, *, slack: float = 0.0) -> None:
    mean, error = np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(mean - expected) < 4 * error + slack, (mean, expected, error)


UNBIASED = {
    "nwj": lambda s: bounds.nwj(stats_from_scores(s + 1)),
    "tuba": lambda s: bounds.tuba(stats_from_scores(s), 0.0),
    "js": lambda s: bounds.js(stats_from_scores(s)),
    "flo": lambda s: bounds.flo(stats_from_scores(s), -s.diagonal()),
    "interpolated_at_alpha_0": lambda s: bounds.interpolated(s, torch.zeros(K, dtype=s.dtype), 0.0),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_bounds_without_a_logarithm_of_a_mean_expect_the_information_itself(name: str):
    values = [UNBIASED[name](scores).mean().item() for scores in optimal_scores()]

    assert_mean_is(values, INFORMATION)


BIASED = {
    "infonce": (lambda s: bounds.infonce(stats_from_scores(s)), lambda m: -CHI_SQUARED / (2 * m)),
    "l1out": (lambda s: bounds.l1out(s), lambda m: CHI_SQUARED / (2 * m)),
}


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("rows", [16, 64])
def test_the_logarithm_of_a_mean_biases_by_chi_squared_over_twice_the_negatives(name: str, rows: int):
    value, bias = BIASED[name]
    matrices = optimal_scores(3000, rows) if name == "infonce" else log_conditional(3000, rows)
    values = [value(matrix).mean().item() for matrix in matrices]

    assert_mean_is(values, INFORMATION + bias(rows - 1), slack=(CHI_SQUARED / rows) ** 2 * 2)


def test_dv_expects_the_information_and_a_bias_that_all_pairs_together_make_small():
    values = [bounds.dv(stats_from_scores(scores)).mean().item() for scores in optimal_scores()]

    assert_mean_is(values, INFORMATION, slack=limits.dv_bias_nats(CHI_SQUARED, K))


class LogRatio(Critic):
    """The optimal critic of one correlated pair."""

    def matrix(self, x: Tensor, y: Tensor) -> Tensor:
        return log_ratio(x, y.T)

    def paired(self, x: Tensor, y: Tensor) -> Tensor:
        return log_ratio(x, y).squeeze(1)


def read_batches(method: Variational, batches: int = BATCHES, rows: int = K) -> list[float]:
    return [method.read(x[:, None], y[:, None]).nats for x, y in zip(*gaussian_batches(batches, rows), strict=True)]


def clipped_partition(tau: float) -> float:
    """E_q exp(clip(log r, -tau, tau)) by quadrature."""
    grid = np.linspace(-7, 7, 1401)
    x, y = np.meshgrid(grid, grid)
    ratio = log_ratio(torch.from_numpy(x), torch.from_numpy(y)).clamp(-tau, tau).exp().numpy()
    return float((ratio * stats.norm.pdf(x) * stats.norm.pdf(y)).sum() * (grid[1] - grid[0]) ** 2)


@pytest.mark.parametrize("tau", [0.2, 0.5, 5.0])
def test_smile_reads_the_information_less_the_log_of_its_clipped_partition(tau: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(variational, "SMILE_CLIP", tau)
    values = read_batches(variational.Smile(LogRatio(), 1, 1, 4))
    unclipped = read_batches(variational.DV(LogRatio(), 1, 1, 4))
    by_clipping = [value - other for value, other in zip(values, unclipped, strict=True)]

    assert_mean_is(values, INFORMATION - math.log(clipped_partition(tau)), slack=CHI_SQUARED / K**2)
    assert_mean_is(by_clipping, -math.log(clipped_partition(tau)), slack=CHI_SQUARED / K**2)
    if tau < 1:  # clipping matters
        assert abs(math.log(clipped_partition(tau))) > 10 * np.std(by_clipping) / math.sqrt(len(values))


def test_mine_reads_the_information_and_its_loss_expects_the_partition_over_the_average_less_it():
    mine = variational.Mine(LogRatio(), 1, 1, 4)
    assert_mean_is(read_batches(mine), INFORMATION, slack=CHI_SQUARED / K**2)

    average = math.log(1.7)
    losses = [bounds.mine_loss(stats_from_scores(s), torch.tensor(average)).mean().item() for s in optimal_scores()]
    assert_mean_is(losses, 1 / 1.7 - INFORMATION)


def nearly_optimal_cosine(scale: float = 1e8) -> Cosine:
    """A cosine that is the optimal critic up to a function of x and a constant, both of which InfoNCE ignores.

    With s the scale and a = rho / (1 - rho^2): s cos(angle) of points at angles v sqrt(a / s) of a circle is
    s - a (x - y)^2 / 2 to first order, which is too low by b y^2, b = a (1 - rho) / 2. A third coordinate adds that.
    """
    slope = RHO / (1 - RHO**2)
    step, missing = math.sqrt(slope / scale), slope * (1 - RHO) / 2

    def on_the_circle(v: Tensor, height: Tensor) -> Tensor:
        return torch.cat([(step * v).cos(), (step * v).sin(), height], 1)

    class G(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return on_the_circle(x, torch.full_like(x, scale**-0.25))

    class H(torch.nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return on_the_circle(y, missing * y.square() * scale**-0.75)

    critic = Cosine(1, 1, hidden=4).double()
    critic.g, critic.h = G(), H()
    critic.scale = torch.tensor(scale * math.sqrt(1 + scale**-0.5), dtype=torch.float64)  # g is longer than one
    return critic


@pytest.mark.parametrize("rows", [16, 64])
def test_flatnce_reads_at_the_optimal_cosine_what_info_nce_expects_at_the_optimal_critic(rows: int):
    flat = variational.Flat(nearly_optimal_cosine(), 1, 1, 4)
    values = read_batches(flat, 1000, rows)

    assert_mean_is(values, INFORMATION - CHI_SQUARED / (2 * (rows - 1)), slack=(CHI_SQUARED / rows) ** 2 * 2)


def test_ba_expects_the_information():
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    values = [bounds.ba(matrix.diagonal(), entropy).mean().item() for matrix in log_conditional()]

    assert_mean_is(values, INFORMATION)


def test_club_expects_chi_squared_which_is_above_the_information():
    values = [bounds.club(matrix).mean().item() for matrix in log_conditional()]

    assert_mean_is(values, CHI_SQUARED)
    assert CHI_SQUARED > INFORMATION


def interpolated_oracle(scores: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """The definition, with loops."""
    rows = range(len(scores))
    total, pairs = 0.0, 0
    for j in rows:
        mixed = [
            alpha * np.mean([math.exp(scores[other, i]) for other in rows if other != j]) + (1 - alpha) * q[i]
            for i in rows
        ]
        for i in rows:
            if i != j:
                total += scores[i, i] - math.log(mixed[i]) - math.exp(scores[i, j]) / mixed[j]
                pairs += 1
    return 1 + total / pairs


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_interpolated_is_its_definition(alpha: float):
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(7, 7, generator=generator, dtype=torch.float64)
    log_q = torch.randn(7, generator=generator, dtype=torch.float64)

    value = bounds.interpolated(scores, log_q, alpha).mean().item()

    assert value == pytest.approx(interpolated_oracle(scores.numpy(), log_q.exp().numpy(), alpha))


def test_interpolated_at_alpha_1_is_below_the_information_and_near_it():
    values = [bounds.interpolated(s, torch.zeros(K, dtype=s.dtype), 1.0).mean().item() for s in optimal_scores()]
    error = np.std(values) / math.sqrt(len(values))

    assert np.mean(values) < INFORMATION + 3 * error
    assert np.mean(values) > INFORMATION - CHI_SQUARED / (K - 1) - 3 * error


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_interpolated_never_exceeds_its_ceiling_and_stays_finite(alpha: float, scale: float):
    scores = scale * torch.eye(8, dtype=torch.float64)

    value = bounds.interpolated(scores, torch.zeros(8, dtype=torch.float64), alpha).mean().item()

    assert math.isfinite(value)
    assert value <= bounds.interpolated_ceiling_nats(8, alpha) + 1e-9


def test_interpolated_has_a_finite_gradient_at_extreme_scores():
    scores = (300 * torch.eye(6)).requires_grad_()
    bounds.interpolated(scores, torch.zeros(6), 0.5).mean().backward()

    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_nwj_read_at_the_log_ratio_itself_is_low_by_one_over_e():
    read_at_log_ratio = [bounds.nwj(stats_from_scores(s)).mean().item() for s in optimal_scores()]

    assert_mean_is(read_at_log_ratio, INFORMATION - 1 / math.e)


def test_js_loss_is_least_at_the_log_ratio():
    scores = optimal_scores(60)
    off = ~torch.eye(K, dtype=torch.bool)

    def loss(change: float) -> float:
        changed = scores * (1 + change) + change
        return float(np.mean([bounds.js_loss(s.diagonal(), s[off].view(K, K - 1)).mean() for s in changed]))

    assert loss(0.0) < min(loss(-0.2), loss(0.2))


def test_mine_has_the_gradient_of_dv_where_the_average_is_the_partition():
    scores = optimal_scores(1)[0].requires_grad_()
    stats_now = stats_from_scores(scores)
    (mine,) = torch.autograd.grad(
        bounds.mine_loss(stats_now, stats_now.log_partition.detach()).mean(), scores, retain_graph=True
    )
    (dv,) = torch.autograd.grad(-bounds.dv(stats_now).mean(), scores)

    torch.testing.assert_close(mine, dv)


def test_mine_with_a_larger_average_follows_the_partition_less():
    scores = optimal_scores(1)[0].requires_grad_()
    now = stats_from_scores(scores)
    (gradient,) = torch.autograd.grad(bounds.mine_loss(now, now.log_partition.detach() + math.log(4)).mean(), scores)

    off = ~torch.eye(K, dtype=torch.bool)
    assert gradient[off].sum().item() == pytest.approx(1 / 4)
    assert gradient.diagonal().sum().item() == pytest.approx(-1)


def test_tuba_is_tightest_at_the_mean_ratio_of_each_anchor():
    scores = stats_from_scores(optimal_scores(1)[0] + torch.linspace(-2, 2, K, dtype=torch.float64)[:, None])
    best = scores.negative_logsumexp - math.log(K - 1)
    values = [bounds.tuba(scores, best + shift).mean() for shift in (-0.3, 0.0, 0.3)]

    assert values[1] > max(values[0], values[2])


@pytest.mark.parametrize("level", [-1e3, 1e3])
def test_huge_scores_stay_finite(level: float):
    scores = stats_from_scores(torch.full((4, 4), level, dtype=torch.float64))

    for bound in (bounds.dv, bounds.infonce, bounds.nwj, bounds.js):
        assert bound(scores).isfinite().all()


def test_the_nwj_partition_term_has_the_variance_that_theory_gives_the_gaussian_family():
    x, _ = gaussian_batches(1, 200_000)
    y, _ = gaussian_batches(1, 200_000, seed=1)
    ratio = log_ratio(x, y).exp()

    assert limits.gaussian_nwj_variance(INFORMATION, 1) == pytest.approx(CHI_SQUARED)
    assert ratio.var().item() == pytest.approx(CHI_SQUARED, rel=0.1)
    assert limits.nwj_least_variance(INFORMATION, 1) < CHI_SQUARED


def test_limits_of_a_sample_are_warned_of_within_ten_percent():
    def warned(nats: float) -> tuple[str, ...]:
        return tuple(limits.Limits(nats, ceiling_nats=math.log(100), rows=1000, negative_pairs=1000 * 99).warnings())

    assert warned(3.0) == ()
    assert "ceiling of 4.61 nats" in warned(4.3)[0]
    assert "ln N = 6.91 nats of 1000 rows" in warned(6.5)[1]
