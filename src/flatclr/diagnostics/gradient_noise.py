"""How noisy the gradient of a batch is, layer by layer, of any model, loss and loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.checks import require_one_of

RESAMPLES = 1000


@dataclass(frozen=True)
class GradientNoise:
    """The gradients of B batches at the same weights, as their inner products.

    With G the inner products and i != j two batches, E G_ij is the squared length of the mean gradient, and
    E G_ii - E G_ij the trace of their covariance. Neither estimate is biased by the number of batches.

    Args:
        grams: [B, B] by layer.

    >>> noise = GradientNoise({"layer": torch.tensor([[10.0, 8.0], [8.0, 10.0]])})  # gradients (3, 1) and (3, -1)
    >>> noise.ratio()  # (10 - 8) / 8
    0.25
    """

    grams: Mapping[str, Tensor]

    @property
    def layers(self) -> list[str]:
        """Their names, in the order of the model."""
        return list(self.grams)

    def ratio(self, layer: str | None = None) -> float:
        """Trace of the covariance over the squared length of the mean gradient.

        Args:
            layer: one of `layers`; None: all of them together.

        Returns:
            The ratio; infinite where no signal is seen.
        """
        gram = self._gram(layer)
        return _ratios(gram, torch.ones(1, len(gram), dtype=gram.dtype)).item()

    def interval(self, layer: str | None = None, *, seed: int = 0) -> tuple[float, float]:
        """A 95 % interval of the ratio by a bootstrap over batches.

        Args:
            layer: one of `layers`; None: all of them together.
            seed: of the resamples.

        Returns:
            The lower and the upper end.
        """
        gram = self._gram(layer)
        return _ends(_ratios(gram, _resamples(len(gram), seed)))

    def relative_to(
        self, other: GradientNoise, layer: str | None = None, *, seed: int = 0
    ) -> tuple[float, float, float]:
        """The ratio over that of another objective on the same batches, which are resampled together.

        Args:
            other: of as many batches.
            layer: one of `layers`; None: all of them together.
            seed: of the resamples.

        Returns:
            The quotient, and the ends of its 95 % interval; above 1 this one is noisier. NaN where no signal is seen
            of either.
        """
        return self.ratio(layer) / other.ratio(layer), *_ends(self.quotients(other, layer, seed=seed))

    def quotients(self, other: GradientNoise, layer: str | None = None, *, seed: int = 0) -> Tensor:
        """The ratio over that of another objective, in each resample of the batches of both.

        Args:
            other: of as many batches, the same ones.
            layer: one of `layers`; None: all of them together.
            seed: of the resamples.

        Returns:
            [R], of which `relative_to` gives the ends; the largest number where only the other's signal is seen, 1
            where neither is, which says nothing of either.
        """
        own, its = self._gram(layer), other._gram(layer)
        if len(own) != len(its):
            raise ValueError(f"other must be of {len(own)} batches, got {len(its)}; measure both on the same ones.")
        counts = _resamples(len(own), seed)
        return _finite((_ratios(own, counts) / _ratios(its, counts)).nan_to_num(nan=1.0, posinf=torch.inf))

    def _gram(self, layer: str | None) -> Tensor:
        if layer is None:
            return torch.stack([gram.double().cpu() for gram in self.grams.values()]).sum(0)
        require_one_of("layer", layer, self.grams)
        return self.grams[layer].double().cpu()


def gradient_noise(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], loader: Iterable[Any]) -> GradientNoise:
    """How noisy the gradient of a batch is: tr Cov / |mean|^2, layer by layer.

    The gradients of all batches are held in memory at once. The model is left as it is, running statistics included.

    Args:
        model: at the weights to measure at; its parameters that require a gradient are looked at.
        loss: a function of the model and a batch that returns a scalar.
        loader: at least 2 batches, drawn independently.

    Returns:
        The ratio of every layer, with intervals, and comparisons with another objective.

    Raises:
        ValueError: for fewer than 2 batches, or a model without parameters to train.

    >>> model, generator = torch.nn.Linear(4, 1), torch.Generator().manual_seed(0)
    >>> batches = torch.randn(16, 32, 4, generator=generator)
    >>> noise = gradient_noise(model, lambda model, x: model(x).square().mean(), batches)
    >>> low, high = noise.interval()
    >>> low < noise.ratio() < high
    True

    Reference: McCandlish et al. 2018; of contrastive objectives, Chen et al. 2021.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        raise ValueError("model must have parameters that require a gradient, got none; call requires_grad_().")
    rows: list[tuple[Tensor, ...]] = []
    with _buffers_kept(model):
        for batch in loader:
            found = torch.autograd.grad(loss(model, batch), list(weights.values()), allow_unused=True)
            rows.append(
                tuple(torch.zeros_like(w) if g is None else g for w, g in zip(weights.values(), found, strict=True))
            )
    if len(rows) < 2:
        raise ValueError(f"loader must give at least 2 batches, got {len(rows)}; noise shows between them.")
    grams: dict[str, Tensor] = {}
    for name, of_batches in zip(weights, zip(*rows, strict=True), strict=True):
        layer = name.rpartition(".")[0] or name
        gradients_BP = torch.stack([gradient.flatten() for gradient in of_batches]).double()
        gram_BB = gradients_BP @ gradients_BP.T
        grams[layer] = grams[layer] + gram_BB if layer in grams else gram_BB
    return GradientNoise(grams)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


def _ratios(gram_BB: Tensor, counts_RB: Tensor) -> Tensor:
    """Of batches drawn so many times each; a batch is never compared with its own copy."""
    own_R = counts_RB @ gram_BB.diagonal() / counts_RB.sum(1)
    squares_B = gram_BB.diagonal()
    crossed_R = ((counts_RB @ gram_BB) * counts_RB).sum(1) - counts_RB.square() @ squares_B
    signal_R = crossed_R / (counts_RB.sum(1).square() - counts_RB.square().sum(1))
    return torch.where(signal_R > 0, (own_R - signal_R) / signal_R, torch.inf)


def _resamples(batches: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(batches, (RESAMPLES, batches), generator=generator)
    ones = torch.ones(RESAMPLES, batches, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, drawn, ones)


def _finite(values_R: Tensor) -> Tensor:
    """The largest number for what is infinite."""
    return values_R.clamp(max=torch.finfo(torch.float64).max)


def _ends(values_R: Tensor) -> tuple[float, float]:
    low, high = _finite(values_R).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
