"""Relative error of the gradient against float64, near-aligned pairs, in lower precision.

    python -m benchmarks.precision

Positives have a cosine above 0.98 and the temperature is 0.05, so that the positive outweighs all negatives. InfoNCE's
gradient is then tiny, and a cross-entropy over materialised scores forms it as a difference of nearly equal numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import flatclr
from benchmarks import record
from benchmarks.loss_cpu import Loss

TEMPERATURE, PAIRS, D = 0.05, 64, 128


def near_aligned(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z_a, noise = F.normalize(torch.randn(2, PAIRS, D, generator=generator, dtype=torch.float64), dim=2)
    return z_a, F.normalize(z_a + 0.1 * noise, dim=1)


def plain_cross_entropy(z_a: Tensor, z_b: Tensor) -> Tensor:
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    scores = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return F.cross_entropy(scores, torch.arange(2 * PAIRS).roll(PAIRS))


LOSSES: dict[str, Loss] = {
    "flatclr.FlatNCE": flatclr.FlatNCE(TEMPERATURE),
    "flatclr.InfoNCE": flatclr.InfoNCE(TEMPERATURE),
    "InfoNCE as plain cross-entropy": plain_cross_entropy,
}


def gradient(loss: Loss, dtype: torch.dtype, seed: int) -> Tensor:
    z_a, z_b = (z.to(dtype).requires_grad_() for z in near_aligned(seed))
    return torch.cat(torch.autograd.grad(loss(z_a, z_b), (z_a, z_b))).double()


def error(loss: Loss, dtype: torch.dtype, seed: int) -> float:
    exact = gradient(loss, torch.float64, seed)
    return float((gradient(loss, dtype, seed) - exact).norm() / exact.norm())


def main() -> None:
    rows = []
    for name, loss in LOSSES.items():
        row = {"loss": name}
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            errors = sorted(error(loss, dtype, seed) for seed in range(5))
            row[str(dtype).removeprefix("torch.")] = f"{errors[2]:.1e} ({errors[0]:.1e} to {errors[-1]:.1e})"
        rows.append(row)
    print(record.markdown(rows))
    print("\nmedian (range) over 5 seeds")
    path = record.append("precision", rows, "python -m benchmarks.precision")
    print(f"appended to {path.relative_to(record.RESULTS.parent)}")


if __name__ == "__main__":
    main()
