"""The literature's printed mistakes, each tested as its correct statement.

Numbered as in "Printed errors" of the mathematics notes. Where that is telling, the printed form is
computed beside the right one and shown to fail, so that nobody "fixes" the code back to it.

Legend: N anchors, M columns of scores (diagonal = positives), K = M - 1 negatives per anchor.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from flatclr import EssControl, stats_from_scores
from flatclr.contrast import ContrastStats, numerics
from flatclr.objectives import f_divergence, nce, variational
from flatclr.studies import latent_classes


def random_scores(anchors: int, columns: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(anchors, columns, generator=generator, dtype=torch.float64)


def off_diagonal(scores_NM: Tensor) -> Tensor:
    """The K negatives of each row, [N, K]."""
    anchors, columns = scores_NM.shape
    return scores_NM[~torch.eye(anchors, columns, dtype=torch.bool)].view(anchors, columns - 1)


def bound_nats(loss: Tensor) -> float:
    return -loss.mean().item()


# 1. Table S2: rows of the variational bounds


def test_dv_takes_the_mean_inside_the_logarithm():
    scores = random_scores(5, 9)
    partition = off_diagonal(scores).exp().mean()

    loss = variational.dv(stats_from_scores(scores)).mean()

    torch.testing.assert_close(loss, partition.log() - scores.diagonal().mean())


def test_dv_of_a_constant_critic_is_zero_where_the_printed_row_is_not():
    level, negatives = 3.0, 8
    scores = torch.full((negatives + 1, negatives + 1), level, dtype=torch.float64)
    printed = level - math.log(negatives * math.exp(level)) / negatives

    assert bound_nats(variational.dv(stats_from_scores(scores))) == pytest.approx(0.0, abs=1e-12)
    assert printed > 2.0


def test_nwj_reaches_zero_for_independent_variables_only_with_its_factor_one_over_e():
    optimal_critic = torch.ones(6, 6, dtype=torch.float64)  # f* = 1 + log r, r = 1
    without_factor = 1.0 - math.e

    assert bound_nats(variational.nwj(stats_from_scores(optimal_critic))) == pytest.approx(0.0)
    assert without_factor < -1.7


def test_nwj_matches_its_definition_on_random_scores():
    scores = random_scores(5, 9)
    expected = scores.diagonal().mean() - off_diagonal(scores).exp().mean() / math.e

    assert bound_nats(variational.nwj(stats_from_scores(scores))) == pytest.approx(expected.item())


def test_flo_evaluates_u_at_the_positive_pair():
    scores_NM, u_N = random_scores(5, 9), random_scores(1, 5, seed=1)[0]
    contrast_N = (off_diagonal(scores_NM) - scores_NM.diagonal()[:, None]).exp().mean(dim=1)

    loss = variational.flo(stats_from_scores(scores_NM), u_N)

    torch.testing.assert_close(loss.mean(), (u_N + (-u_N).exp() * contrast_N - 1).mean())


def test_flo_at_its_optimal_u_is_nwj_at_its_optimal_critic():
    log_ratio = random_scores(6, 6)
    flo = variational.flo(stats_from_scores(log_ratio), -log_ratio.diagonal())
    nwj = variational.nwj(stats_from_scores(log_ratio + 1))

    assert bound_nats(flo) == pytest.approx(bound_nats(nwj))


@pytest.mark.parametrize("u", [-5.0, -1.0, 0.0, 1.0, 5.0])
def test_flo_of_independent_variables_never_exceeds_zero_where_u_at_the_negatives_does(u: float):
    stats = stats_from_scores(torch.zeros(4, 4, dtype=torch.float64))
    u_negative = 20.0  # free to differ from u once the exponent reads u(x_i, y_j)
    printed = 1 - (-5.0 + math.exp(-u_negative))

    bound = bound_nats(variational.flo(stats, torch.full((4,), u, dtype=torch.float64)))

    assert bound == pytest.approx(1 - u - math.exp(-u), abs=1e-12)
    assert bound <= 1e-12
    assert printed > 5.0


def test_flat_nce_is_the_mean_negative_times_exp_of_minus_the_positive_over_its_own_value():
    scores = random_scores(5, 5).requires_grad_()
    contrast_N = off_diagonal(scores).exp().mean(dim=1) * (-scores.diagonal()).exp()
    (expected,) = torch.autograd.grad((contrast_N / contrast_N.detach()).mean(), scores)

    loss_N = nce.flat_nce(stats_from_scores(scores), value="paper")
    (actual,) = torch.autograd.grad(loss_N.mean(), scores)

    torch.testing.assert_close(loss_N, torch.ones_like(loss_N))
    torch.testing.assert_close(actual, expected)


# 2. Lemma S3 and equations (24), (26)


def log_mean_contrast(stats: ContrastStats) -> Tensor:
    """log((1/K) sum_j exp(s_ij - p_i)), the optimal u."""
    return stats.gap - math.log(stats.negatives)


def test_flo_is_tight_at_the_log_of_the_mean_contrast_and_not_at_the_mean_contrast():
    stats = stats_from_scores(random_scores(5, 9))
    log_mean_N = log_mean_contrast(stats)

    tight_N = variational.flo(stats, log_mean_N)
    printed_N = variational.flo(stats, log_mean_N.exp())

    torch.testing.assert_close(tight_N, log_mean_N)
    assert (printed_N > log_mean_N + 1e-3).all()


@pytest.mark.parametrize("offset", [-2.0, -0.1, 0.1, 2.0])
def test_flo_is_looser_at_any_other_u(offset: float):
    stats = stats_from_scores(random_scores(5, 9))

    loss_N = variational.flo(stats, log_mean_contrast(stats) + offset)

    assert (loss_N > log_mean_contrast(stats) + 1e-3).all()


def test_the_constant_of_equation_24_is_minus_one():
    stats = stats_from_scores(random_scores(4, 6))
    u_N = log_mean_contrast(stats)
    contrast_N = u_N.exp()

    constant_N = variational.flo(stats, u_N) - (u_N + (-u_N).exp() * contrast_N)

    torch.testing.assert_close(constant_N, -torch.ones_like(u_N))


@pytest.mark.parametrize("seed", range(5))
def test_dv_is_below_the_bound_with_one_partition_per_anchor(seed: int):
    stats = stats_from_scores(random_scores(6, 10, seed))

    assert bound_nats(variational.dv(stats)) < bound_nats(log_mean_contrast(stats)) - 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_equation_26_lies_between_dv_and_the_mutual_information(seed: int):
    joint_XY = random_scores(6, 7, seed, scale=1.0).flatten().softmax(0).view(6, 7)
    marginal_X, marginal_Y = joint_XY.sum(1), joint_XY.sum(0)
    log_ratio_XY = (joint_XY / torch.outer(marginal_X, marginal_Y)).log()
    information = (joint_XY * log_ratio_XY).sum()
    critic_XY = log_ratio_XY + random_scores(6, 7, seed + 100, scale=0.5)

    positive = (joint_XY * critic_XY).sum()
    partition_X = critic_XY.exp() @ marginal_Y
    dv = positive - (marginal_X @ partition_X).log()
    equation_26 = positive - marginal_X @ partition_X.log()

    assert dv < equation_26 < information


# 3. Corollary S5: the positive belongs in the denominator of a bound


def gaussian_log_ratio(x: Tensor, y: Tensor, correlation: float) -> Tensor:
    rho2 = correlation**2
    quadratic = rho2 * x**2 - 2 * correlation * x * y + rho2 * y**2
    return -0.5 * math.log(1 - rho2) - quadratic / (2 * (1 - rho2))


def gaussian_batch_stats(batch: int, batches: int, correlation: float) -> list[ContrastStats]:
    """Stats of independent batches under the optimal critic."""
    generator = torch.Generator().manual_seed(batch)
    x, noise = torch.randn(2, batches, batch, generator=generator, dtype=torch.float64)
    y = correlation * x + math.sqrt(1 - correlation**2) * noise
    scores_BKK = gaussian_log_ratio(x[:, :, None], y[:, None, :], correlation)
    return [stats_from_scores(scores_KK) for scores_KK in scores_BKK]


def mean_and_standard_error(values: list[Tensor]) -> tuple[float, float]:
    values_B = torch.stack(values)
    return values_B.mean().item(), (values_B.std() / math.sqrt(len(values))).item()


@pytest.mark.parametrize(("batch", "batches", "noted_nats"), [(2, 4000, 2.47), (16, 1500, 0.63)])
def test_only_the_form_with_the_positive_is_below_the_mutual_information(batch: int, batches: int, noted_nats: float):
    correlation = 0.8
    information = -0.5 * math.log(1 - correlation**2)  # 0.51 nats
    stats = gaussian_batch_stats(batch, batches, correlation)

    kept, kept_error = mean_and_standard_error([s.mi_nats for s in stats])
    dropped, dropped_error = mean_and_standard_error([math.log(s.negatives) - s.gap.mean() for s in stats])

    assert kept + 3 * kept_error < information
    assert dropped - 3 * dropped_error > information
    # the noted values divide the sum over K - 1 negatives by K
    noted_to_two_digits = 0.005
    printed = dropped + math.log(batch / (batch - 1))
    assert abs(printed - noted_nats) < 4 * dropped_error + noted_to_two_digits


# 4. ESS divides by the number of negatives


def test_ess_of_equal_negatives_is_one_and_not_k_minus_one_over_k():
    batch = 5
    stats = stats_from_scores(torch.eye(batch, dtype=torch.float64))

    torch.testing.assert_close(stats.ess, torch.ones(batch, dtype=torch.float64))
    assert stats.ess.mean() > (batch - 1) / batch + 0.1


def test_ess_of_one_dominant_negative_is_one_over_the_number_of_negatives():
    scores = torch.zeros(4, 8, dtype=torch.float64)
    scores[:, 7] = 60.0

    ess_N = stats_from_scores(scores).ess

    torch.testing.assert_close(ess_N, torch.full((4,), 1 / 7, dtype=torch.float64))


# 5. Algorithm S2: the signs of the ESS rule, and beta applied to the scores


def random_cosines(pairs: int = 64, features: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    z_a, z_b = normalize(torch.randn(2, pairs, features, generator=generator), dim=-1)
    return z_a @ z_b.T


@pytest.mark.parametrize("initial", [1.5, 10.0, 60.0])
def test_ess_control_settles_at_its_target(initial: float):
    cosines, target = random_cosines(), 0.25
    control = EssControl(target=target, rate=0.01, initial=initial)
    history = []
    for _ in range(400):
        ess_N = stats_from_scores(control.inverse_temperature * cosines).ess
        history.append(ess_N.mean().item())
        control.observe(ess_N)

    # one step moves log beta by 0.01 and ESS (about exp(-beta^2 / d)) by less than 0.01
    assert history[-50:] == pytest.approx([target] * 50, abs=0.02)
    assert 1.5 < control.inverse_temperature < 60


@pytest.mark.parametrize(("ess", "factor"), [(0.9, 1.01), (0.1, 0.99)])
def test_ess_control_sharpens_above_the_target_and_softens_below_it(ess: float, factor: float):
    control = EssControl(target=0.25, rate=0.01, initial=10.0)
    control.observe(torch.full((4,), ess))

    assert control.inverse_temperature.item() == pytest.approx(10 * factor)


def test_the_printed_ess_rule_collapses_beta_to_zero():
    ess_of_unscaled_scores = stats_from_scores(random_cosines()).ess.mean()
    beta, target, rate = 10.0, 0.25, 0.01
    for _ in range(2000):
        beta *= 1 - rate if ess_of_unscaled_scores > target else 1 + rate

    assert beta < 1e-6


@pytest.mark.parametrize(("initial", "escape"), [(3.0, "zero"), (8.0, "infinity")])
def test_reversed_signs_drive_beta_away_from_the_target(initial: float, escape: str):
    cosines, beta, target, rate = random_cosines(), initial, 0.25, 0.01
    for _ in range(400):
        ess = stats_from_scores(beta * cosines).ess.mean()
        beta *= 1 - rate if ess > target else 1 + rate

    assert beta < 0.1 if escape == "zero" else beta > 100


# 6. Equation (21) and Proposition 3.2: FlatNCE's gradient


@pytest.mark.parametrize("value", ["nats", "paper"])
def test_flat_nce_gradient_keeps_the_importance_weights(value: str):
    scores = random_scores(5, 9).requires_grad_()
    diagonal = torch.eye(5, 9, dtype=torch.float64)
    weights = scores.detach().masked_fill(diagonal.bool(), -math.inf).softmax(dim=1)
    unweighted = 1 - diagonal

    flat_nce_N = nce.flat_nce(stats_from_scores(scores), value=value)
    (gradient,) = torch.autograd.grad(flat_nce_N.sum(), scores)

    torch.testing.assert_close(gradient, weights - diagonal)
    assert not torch.allclose(gradient, unweighted - diagonal)


def test_flat_nce_value_is_constant_while_its_gradient_is_not_zero():
    scores = random_scores(4, 4).requires_grad_()
    loss_N = nce.flat_nce(stats_from_scores(scores), value="paper")
    (gradient,) = torch.autograd.grad(loss_N.sum(), scores)

    torch.testing.assert_close(loss_N, torch.ones_like(loss_N))
    torch.testing.assert_close(gradient.diagonal(), -torch.ones(4, dtype=torch.float64))


# 7. The log-K curse is cancellation, not overflow


def well_separated_pairs() -> Tensor:
    return torch.tensor([[20.0, 0.0], [0.0, 20.0]], dtype=torch.float32)


def test_info_nce_keeps_the_small_loss_that_float32_cancels():
    cancelled = torch.log(1 + torch.exp(torch.tensor(-20.0, dtype=torch.float32)))

    loss_N = nce.info_nce(stats_from_scores(well_separated_pairs()))

    assert cancelled == 0
    assert loss_N.tolist() == pytest.approx([math.log1p(math.exp(-20))] * 2, rel=1e-5)


def test_float32_gradients_survive_where_info_nce_saturates():
    scores = well_separated_pairs().requires_grad_()
    (info_nce,) = torch.autograd.grad(nce.info_nce(stats_from_scores(scores)).sum(), scores)
    (flat_nce,) = torch.autograd.grad(nce.flat_nce(stats_from_scores(scores)).sum(), scores)

    tiny = math.exp(-20) / (1 + math.exp(-20))
    assert info_nce[0].tolist() == pytest.approx([-tiny, tiny], rel=1e-5)
    assert flat_nce[0].tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("level", [-1e4, 1e4])
def test_huge_scores_do_not_overflow(level: float):
    scores = level + well_separated_pairs()

    loss_N = nce.info_nce(stats_from_scores(scores))

    assert loss_N.tolist() == pytest.approx([math.log1p(math.exp(-20))] * 2, rel=1e-2)


# 8. The sign of alignment


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
def test_alignment_is_least_for_equal_pairs_and_largest_for_antipodal_ones(alpha: float):
    x, y = normalize(random_scores(20, 3).view(2, 10, 3), dim=-1)

    equal, generic, antipodal = (numerics.alignment(x, z, alpha=alpha) for z in (x, y, -x))

    assert equal.tolist() == pytest.approx([0.0] * 10, abs=1e-12)
    assert antipodal.tolist() == pytest.approx([2.0**alpha] * 10)
    assert ((generic > 0) & (generic < 2.0**alpha)).all()


def test_descending_alignment_brings_pairs_together():
    x, y = normalize(random_scores(20, 3).view(2, 10, 3), dim=-1)
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(numerics.alignment(x, y).sum(), y)

    cosine_before = (x * y).sum(dim=1)
    cosine_after = (x * normalize(y - 0.1 * gradient, dim=-1)).sum(dim=1)

    assert (cosine_after > cosine_before).all()


# 9 and 11. What few independent negatives do to bounds, exactly, on a binary symmetric channel.
# x, y in {-1, 1}, r = 1 + c x y; the number of agreeing negatives is binomial, so that expectations
# are finite sums and need no simulation.


def channel_information_nats(c: float) -> float:
    return ((1 + c) * math.log(1 + c) + (1 - c) * math.log(1 - c)) / 2


def channel_expectation(
    value: Callable[[ContrastStats], Tensor], negatives: int, c: float, critic_scale: float = 1.0
) -> float:
    """E value(stats) of one anchor under the critic `critic_scale * log r`."""
    agree, disagree = critic_scale * math.log(1 + c), critic_scale * math.log(1 - c)
    total = 0.0
    for positive, probability in ((agree, (1 + c) / 2), (disagree, (1 - c) / 2)):
        for agreeing in range(negatives + 1):
            row = [positive] + [agree] * agreeing + [disagree] * (negatives - agreeing)
            stats = stats_from_scores(torch.tensor([row], dtype=torch.float64))
            weight = probability * math.comb(negatives, agreeing) / 2**negatives
            total += weight * value(stats).mean().item()
    return total


@pytest.mark.parametrize("negatives", [16, 64])
def test_dv_bias_is_upward_and_falls_as_chi_squared_over_twice_the_negatives(negatives: int):
    c = 0.5
    chi_squared = c**2

    bias = -channel_expectation(variational.dv, negatives, c) - channel_information_nats(c)

    # -E log(1 + e) = v/2 + 3 v^2/4 + O(v^3) for the symmetric e with variance v = chi^2 / negatives
    next_order = 1.5 * chi_squared / negatives
    assert bias * 2 * negatives / chi_squared == pytest.approx(1.0, abs=2 * next_order)
    assert bias < 0.1 * chi_squared / 2  # the printed statement, without 1 / negatives


@pytest.mark.parametrize("negatives", [1, 3, 15])
@pytest.mark.parametrize("c", [0.3, 0.9])
def test_info_nce_with_independent_negatives_only_is_above_the_mutual_information(negatives: int, c: float):
    def bound_without_positive(stats: ContrastStats) -> Tensor:
        return math.log(stats.negatives) - stats.gap

    value = channel_expectation(bound_without_positive, negatives, c)

    assert value > channel_information_nats(c) + 1e-4


@pytest.mark.parametrize("negatives", [1, 3, 15])
@pytest.mark.parametrize("c", [0.3, 0.9])
@pytest.mark.parametrize("critic_scale", [0.5, 1.0, 2.0])
def test_info_nce_with_the_positive_is_below_the_mutual_information(negatives: int, c: float, critic_scale: float):
    value = channel_expectation(lambda stats: stats.mi_nats, negatives, c, critic_scale)

    assert value < channel_information_nats(c)


@pytest.mark.parametrize("seed", range(5))
def test_info_nce_bound_never_exceeds_its_ceiling_while_the_form_without_the_positive_does(
    seed: int,
):
    scores = random_scores(4, 8, seed) + 30 * torch.eye(4, 8, dtype=torch.float64)
    stats = stats_from_scores(scores)

    assert stats.mi_nats <= stats.ceiling_nats == pytest.approx(math.log(8))
    assert math.log(stats.negatives) - stats.gap.mean() > stats.ceiling_nats


# 10. f-MICL's table


DIVERGENCES = {
    **f_divergence.DIVERGENCES,
    **{f"tsallis {order}": f_divergence.tsallis(order) for order in (0.5, 1.5, 3.0)},
}
every_divergence = pytest.mark.parametrize("name", DIVERGENCES)


def ratios() -> Tensor:
    return torch.logspace(-1.5, 1.0, 26, dtype=torch.float64)


@every_divergence
def test_every_generator_vanishes_at_one(name: str):
    one = torch.ones((), dtype=torch.float64)

    assert DIVERGENCES[name].f(one).item() == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("order", [0.5, 1.5, 3.0])
def test_tsallis_generator_subtracts_the_one_that_the_printed_generator_lacks(order: float):
    u = ratios()
    printed = u**order / (order - 1)

    generator = f_divergence.tsallis(order).f(u)

    torch.testing.assert_close(printed - generator, torch.full_like(u, 1 / (order - 1)))


@every_divergence
def test_derivative_is_the_gradient_of_the_generator(name: str):
    u = ratios().requires_grad_()
    (slope,) = torch.autograd.grad(DIVERGENCES[name].f(u).sum(), u)

    torch.testing.assert_close(DIVERGENCES[name].derivative(u), slope)


@every_divergence
def test_conjugate_of_derivative_satisfies_fenchel_youngs_equality(name: str):
    divergence, u = DIVERGENCES[name], ratios()
    fenchel_young = u * divergence.derivative(u) - divergence.f(u)

    torch.testing.assert_close(divergence.conjugate_of_derivative(u), fenchel_young)
    torch.testing.assert_close(divergence.conjugate(divergence.derivative(u)), fenchel_young)


@every_divergence
def test_conjugate_is_the_supremum_over_a_fine_grid(name: str):
    divergence = DIVERGENCES[name]
    t = divergence.derivative(ratios())
    grid = torch.logspace(-3.0, 2.0, 20_001, dtype=torch.float64)  # neighbours differ by 0.06 %
    supremum = (t[:, None] * grid - divergence.f(grid)).amax(dim=1)

    torch.testing.assert_close(divergence.conjugate(t), supremum, rtol=1e-5, atol=1e-5)


def test_vincze_le_cam_conjugate_of_derivative_is_zero_at_one_where_the_printed_one_is_one():
    u = torch.ones((), dtype=torch.float64)
    printed = 3 - 4 / (u + 1)

    value = DIVERGENCES["vlc"].conjugate_of_derivative(u)

    assert value.item() == pytest.approx(0.0, abs=1e-15)
    assert printed == 1


def test_a_sample_cannot_tell_entropies_beyond_ln_2kn2() -> None:
    """Erratum 9: N draws from 2 k N^2 equal symbols repeat with probability below 1/(4k), so no bound can go beyond."""
    for n, k in ((10, 1), (100, 1), (100, 5)):
        symbols = 2 * k * n**2
        no_repeat = math.exp(sum(math.log1p(-i / symbols) for i in range(n)))
        assert 1 - no_repeat < 1 / (4 * k)
        few = 2 * k * n  # without the square a repeat is near certain, and would be evidence
        assert math.exp(sum(math.log1p(-i / few) for i in range(n))) < 0.1


# 12. The review: ascent, and the positive in Lemma 3.3


def test_descending_flat_nce_is_ascending_its_bound():
    scores = random_scores(4, 6).requires_grad_()
    bound = (scores.diagonal() - off_diagonal(scores).logsumexp(1)).mean()
    (uphill,) = torch.autograd.grad(bound, scores)
    (downhill,) = torch.autograd.grad(nce.flat_nce(stats_from_scores(scores)).mean(), scores)

    torch.testing.assert_close(downhill, -uphill)
    with torch.no_grad():
        moved = scores + 1e-3 * uphill
        assert (moved.diagonal() - off_diagonal(moved).logsumexp(1)).mean() > bound


def test_the_best_u_gives_info_nce_exactly_when_the_positive_is_in_the_contrast():
    scores = random_scores(6, 6)
    contrasts = (scores - scores.diagonal().unsqueeze(1)).exp()
    with_positive = contrasts.mean(1)
    without = off_diagonal(contrasts).mean(1)

    def best_bound(contrast_N: Tensor) -> Tensor:
        u_N = contrast_N.log()
        return -(u_N + (-u_N).exp() * contrast_N - 1).mean()

    info_nce = (scores.diagonal() - (scores.exp().mean(1)).log()).mean()
    torch.testing.assert_close(best_bound(with_positive), info_nce)
    assert not torch.isclose(best_bound(without), info_nce)


# 13. The paper: the change of variable, the optimal u, and the re-scaled copy


def test_the_change_of_variable_needs_the_minus_sign_inside_the_logarithm():
    t = torch.tensor([0.2, 1.0, 7.0], dtype=torch.float64)
    v = -1 / t  # where -log t = max_v (v t + 1 + log(-v)), over v < 0
    torch.testing.assert_close(v * t + 1 + (-v).log(), -t.log())
    u = -(-v).log()

    torch.testing.assert_close(u + (-u).exp() * t - 1, t.log())
    assert (-v.log()).isnan().all()


def test_the_optimal_u_is_minus_the_score_plus_a_function_of_the_anchor():
    scores = random_scores(5, 7)
    stats = stats_from_scores(scores)
    positive_N = scores.diagonal()
    of_anchor_N = off_diagonal(scores).exp().mean(1).log()
    best = variational.flo(stats, -positive_N + of_anchor_N)

    for shift in (-0.3, 0.3):
        assert (variational.flo(stats, -positive_N + of_anchor_N + shift) > best).all()
    assert (variational.flo(stats, positive_N + of_anchor_N) >= best).all()
    assert variational.flo(stats, positive_N + of_anchor_N).mean() > best.mean() + 0.1


def test_flat_nce_is_no_randomly_rescaled_copy_of_info_nce_because_the_factor_shares_its_negatives():
    """One anchor, three symbols, two negatives: both expected gradients by enumeration."""
    conditional, margin = (torch.tensor(p, dtype=torch.float64) for p in ([0.7, 0.2, 0.1], [0.4, 0.4, 0.2]))
    scores = torch.tensor([1.0, 0.3, -0.5], dtype=torch.float64, requires_grad=True)

    def expected(gradient_of: Callable[[Tensor], Tensor]) -> Tensor:
        total = torch.zeros(3, dtype=torch.float64)
        for y in range(3):
            for first in range(3):
                for second in range(3):
                    gap = torch.logsumexp(scores[[first, second]], 0) - scores[y]
                    chance = conditional[y] * margin[first] * margin[second]
                    total += chance * torch.autograd.grad(gradient_of(gap), scores)[0]
        return total

    flat, info = expected(lambda gap: gap), expected(torch.nn.functional.softplus)
    mean_factor = (flat @ info) / (info @ info)
    # anchor by anchor the one is the other over sigmoid(gap)
    gap = torch.logsumexp(scores[[0, 1]], 0) - scores[2]
    one, other = (
        torch.autograd.grad(f, scores, retain_graph=True)[0] for f in (gap, torch.nn.functional.softplus(gap))
    )
    torch.testing.assert_close(other, torch.sigmoid(gap) * one)
    assert (flat - mean_factor * info).norm() > 0.05 * flat.norm()


# 14. The slides on negatives


def test_the_interval_around_the_contrastive_loss_is_as_wide_as_both_parts_added():
    """Their difference, as printed, is below zero with many negatives."""
    prior, negatives = latent_classes.class_prior([1] * 10), 64
    points = torch.nn.functional.normalize(torch.randn(10, 12, generator=torch.Generator().manual_seed(0)).double())
    loss = latent_classes.contrastive_loss(points, prior, negatives=negatives).item()
    mean = latent_classes.classification_loss(points, points, prior).item()
    lower, upper = latent_classes.interval_widths(prior, negatives)

    assert loss - lower <= mean <= loss + upper
    assert (loss + upper) - (loss - lower) == pytest.approx(lower + upper)
    assert lower + upper > 0 > upper - lower


def test_the_supervised_loss_of_unbalanced_classes_does_not_increase_with_negatives():
    """It falls, so that the printed "non-decreasing" is the wrong way round."""
    prior = latent_classes.class_prior([8, 1, 1])
    minima = [latent_classes.minimise(prior, negatives=k) for k in (1, 4, 32)]
    losses = [float(latent_classes.supervised_loss(minimum.points, prior)) for minimum in minima]

    assert all(minimum.converged for minimum in minima)
    assert losses[0] > losses[1] + 1e-3 > losses[2] + 1e-3
