"""Gradient noise against the covariance itself, on a model whose gradients are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr import diagnostics
from flatclr.diagnostics import GradientNoise, gradient_noise


class Means(nn.Module):
    """A loss whose gradient is the mean of the batch: weights w, loss w . mean(x)."""

    def __init__(self, features: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, 1, bias=False), nn.Linear(features, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) + 2 * self.second(x)).mean()


def mean_loss(model: nn.Module, batch: Tensor) -> Tensor:
    value: Tensor = model(batch)
    return value


def draws(batches: int, size: int, mean: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return mean + torch.randn(batches, size, 3, generator=generator, dtype=torch.float64)


def test_the_ratio_is_the_trace_of_the_covariance_over_the_squared_mean() -> None:
    size, batches = 8, 1500
    noise = gradient_noise(Means().double(), mean_loss, draws(batches, size))
    assert noise.layers == ["first", "second"]
    truth = (3 / size) / (3 * 0.5**2)  # of each layer; twice the gradient has the same ratio
    for layer in (None, "first", "second"):
        low, high = noise.interval(layer)
        assert low < noise.ratio(layer) < high
        assert noise.ratio(layer) == pytest.approx(truth, rel=4 * (high - low) / noise.ratio(layer))
        assert (high - low) / truth < 0.3


def test_the_ratio_equals_the_unbiased_sums_over_pairs() -> None:
    x = draws(6, 4)
    gradients = x.mean(1)
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    signal = sum((gradients[i] @ gradients[j]).item() for i, j in pairs) / len(pairs)
    power = sum((gradients[i] @ gradients[i]).item() for i in range(6)) / 6
    assert gradient_noise(Means().double(), mean_loss, x).ratio("first") == pytest.approx((power - signal) / signal)


def test_few_batches_do_not_bias_signal_and_noise() -> None:
    signals, noises = [], []
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        g = 1 + torch.randn(3, 2, generator=generator, dtype=torch.float64)
        gram = g @ g.T
        signals.append((gram.sum() - gram.trace()) / 6)
        noises.append(gram.trace() / 3 - signals[-1])
        assert GradientNoise({"a": gram}).ratio() == pytest.approx(
            (noises[-1] / signals[-1]).item() if signals[-1] > 0 else torch.inf
        )
    for values, truth in ((torch.stack(signals), 2.0), (torch.stack(noises), 2.0)):
        assert (values.mean() - truth).abs() < 4 * values.std() / len(values) ** 0.5


def test_no_signal_of_either_says_nothing_and_of_one_alone_that_it_is_noisier() -> None:
    hidden, seen = (GradientNoise({"a": torch.eye(4) + shift}) for shift in (-0.1, 5.0))  # all i != j below 0, above it
    assert hidden.quotients(hidden).unique().tolist() == [1.0]
    value, low, high = hidden.relative_to(hidden)
    assert value != value
    assert (low, high) == (1.0, 1.0)
    assert hidden.relative_to(seen)[1] > 1e300
    assert seen.relative_to(hidden)[2] == 0


def test_a_noisier_loss_is_told_apart_on_the_same_batches() -> None:
    x = draws(64, 8)
    calm = gradient_noise(Means().double(), mean_loss, x)
    noisy = gradient_noise(Means().double(), lambda model, batch: model(batch[:2]), x)
    value, low, high = noisy.relative_to(calm)
    assert 1 < low < value < high
    assert value == pytest.approx(noisy.ratio() / calm.ratio())
    assert calm.relative_to(calm) == (1, 1, 1)


def test_any_model_loss_and_loader_will_do_and_nothing_is_changed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective = flatclr.FlatNCE(temperature=0.2)

    def contrast(model: nn.Module, views: tuple[Tensor, Tensor]) -> Tensor:
        return objective(*map(model, views))

    loader = ((x, x + 0.1) for x in torch.randn(4, 16, 5))
    noise = gradient_noise(model, contrast, loader)
    assert noise.layers == ["0", "1", "3"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="loader must give at least 2 batches, got 1"):
        gradient_noise(Means().double(), mean_loss, draws(1, 4))
    with pytest.raises(ValueError, match="model must have parameters that require a gradient, got none"):
        gradient_noise(Means().requires_grad_(False), mean_loss, draws(2, 4))
    one, other = (gradient_noise(Means().double(), mean_loss, draws(n, 4)) for n in (2, 3))
    with pytest.raises(ValueError, match="other must be of 2 batches, got 3"):
        one.relative_to(other)
    with pytest.raises(ValueError, match="layer must be one of 'first', 'second', got 'third'"):
        one.ratio("third")
    assert diagnostics.gradient_noise is gradient_noise
