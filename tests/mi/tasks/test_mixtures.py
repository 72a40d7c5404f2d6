"""Mixtures of Gaussians: their Monte Carlo information against other ways to it, and what is refused."""

import numpy as np
import pytest
from scipy import integrate, stats

from flatclr.mi import tasks

CLOSE = 0.01  # three standard errors of the Monte Carlo mean, or more


def test_one_component_has_the_information_of_the_gaussian():
    covariance = np.array([[1.0, 0.0, 0.6], [0.0, 2.0, -0.5], [0.6, -0.5, 1.5]])
    mixture = tasks.gaussian_mixture([1.0], np.ones((1, 3)), covariance[None], dim_x=2)
    assert mixture.mi_nats == pytest.approx(tasks.gaussian(covariance, dim_x=2).mi_nats, abs=CLOSE)


def test_two_crossed_components_have_the_information_of_hidden_signs():
    crossed = np.array([[[1.0, rho], [rho, 1.0]] for rho in (-0.9, 0.9)])
    mixture = tasks.gaussian_mixture([0.5, 0.5], np.zeros((2, 2)), crossed, dim_x=1)
    assert mixture.mi_nats == pytest.approx(tasks.sign_mixture(1, 0.9).mi_nats, abs=CLOSE)


@pytest.mark.parametrize(("dim", "components"), [(3, 5), (5, 10)])
def test_concentric_balls_share_what_an_integral_over_the_radius_gives(dim: int, components: int):
    """y names the ball, so I = mean over balls of KL(ball, all balls); all densities depend on the radius alone."""
    radii = np.arange(1, components + 1)

    def log_ratio(r: float, own: int) -> float:
        log_densities = -dim * np.log(radii) - r**2 / (2 * radii**2)
        return float(log_densities[own - 1] - np.log(np.mean(np.exp(log_densities))))

    parts = [
        integrate.quad(lambda r, own=own: stats.chi.pdf(r / own, dim) / own * log_ratio(r, own), 0, 12 * own)[0]
        for own in radii
    ]
    assert tasks.concentric(dim, components).mi_nats == pytest.approx(np.mean(parts), abs=CLOSE)


def test_columns_of_noise_change_no_information_and_rows_follow_the_proportions():
    assert tasks.inliers(7, 0.3).mi_nats == tasks.inliers(2, 0.3).mi_nats
    task = tasks.gaussian_mixture([0.2, 0.8], np.array([[0.0, 0.0], [50.0, 50.0]]), np.array([np.eye(2)] * 2), dim_x=1)
    x, y = task.sample(4000, seed=0)
    assert np.mean(x > 25) == pytest.approx(0.8, abs=0.03)
    assert ((x > 25) == (y > 25)).all()


@pytest.mark.parametrize("task", [tasks.letters(), tasks.galaxy(), tasks.inliers(3, 0.5)], ids=lambda task: task.name)
def test_samples_have_the_stated_shapes_and_follow_the_seed(task: tasks.Task):
    x, y = task.sample(60, seed=3)
    again, other = task.sample(60, seed=3), task.sample(60, seed=4)
    assert x.shape == (60, task.dim_x)
    assert y.shape == (60, task.dim_y)
    np.testing.assert_array_equal(np.hstack([x, y]), np.hstack(again))
    assert not np.array_equal(x, other[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.gaussian_mixture([0.5, 0.6], np.zeros((2, 2)), np.array([np.eye(2)] * 2), 1), "sum to 1, got"),
        (lambda: tasks.gaussian_mixture([1.0], np.zeros((2, 2)), np.array([np.eye(2)] * 2), 1), "each of the 2 means"),
        (lambda: tasks.gaussian_mixture([1.0], np.zeros((1, 2)), np.eye(2)[None], 2), "dim_x must be .* <= 1, got 2"),
        (lambda: tasks.concentric(3, 1), "components must be a whole number >= 2, got 1"),
        (lambda: tasks.inliers(1, 0.5), "dim must be a whole number >= 2, got 1"),
        (lambda: tasks.inliers(3, 1.0), "share must be a finite number > 0 and < 1, got 1"),
        (lambda: tasks.galaxy(distance=-1), "distance must be a finite number > 0, got -1"),
    ],
)
def test_impossible_mixtures_are_refused(call: object, message: str):
    with pytest.raises(ValueError, match=message):
        call()
