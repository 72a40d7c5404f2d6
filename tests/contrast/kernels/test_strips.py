"""The strips route, in PyTorch's operations and through Triton's interpreter: the numbers of the streamed route."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast.kernels.reductions import Block, Rows
from flatclr.contrast.known import Codes
from tests.support.harness import CASES, PAIRINGS, Batch, Case
from tests.support.interpreter import assert_near, interpreted

pytest.importorskip("triton")

import triton
import triton.language as tl

from flatclr.contrast.kernels import strips, strips_device, strips_triton

pytestmark = interpreted
TILINGS = dict(strips_triton.SUMS_TILING)
SMALL = strips_triton.Tiling(16, 16, 16, warps=4, stages=2, group=2)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (strips_triton.SUMS_TILING, strips_triton.WEIGHTS_TILING):
        for itemsize in (2, 4):
            monkeypatch.setitem(table, itemsize, SMALL)


def outcome(batch: Batch, beta: float | Tensor, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Stats, and gradients of a sum with a different weight on every output of every anchor."""
    z_a, z_b, queue = batch.tensors(dtype)
    scale = beta.detach().clone().to(dtype).requires_grad_() if isinstance(beta, Tensor) else beta
    if queue is not None:
        queue.requires_grad_()
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=scale, negatives=queue, **batch.options(), **options)
    weights = torch.randn(2, len(stats.positive), generator=torch.Generator().manual_seed(7)).to(dtype)
    total = (weights[0] * stats.positive + weights[1] * stats.negative_logsumexp).sum()
    inputs = [x for x in (z_a, z_b, queue, scale) if isinstance(x, Tensor)]
    return [stats.positive.detach(), stats.negative_logsumexp.detach(), stats.ess, *torch.autograd.grad(total, inputs)]


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(
    "source", [{}, {"queue": 21}, {"queue": 21, "in_batch": False}], ids=["batch", "both", "queue"]
)
@pytest.mark.parametrize("beta", [3.0, torch.tensor(50.0)], ids=str)
def test_strips_give_the_numbers_of_the_streamed_route(
    pairing: str, source: dict[str, Any], beta: float | Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strips, "STRIP_BYTES", 1024)  # several strips
    batch = Batch.random(21, 20, pairing=pairing, **source)
    want = outcome(batch, beta, torch.float64, route="streamed")
    for backend, dtype, near in (("triton", torch.float32, 2e-5), ("torch", torch.float64, 1e-12)):
        for mine, theirs in zip(outcome(batch, beta, dtype, route="strips", backend=backend), want, strict=True):
            assert_near(mine, theirs, near)


OF_PAIRS = [case for case in CASES if "fmicl" in case.name or case.name in ("rpc", "siglip")]


@pytest.mark.parametrize("case", OF_PAIRS, ids=lambda case: case.name)
def test_strips_take_every_function_of_the_pairs(case: Case) -> None:
    batch = Batch.random(17, 16, pairing=case.pairing)
    found = []
    for route, dtype in (("strips", torch.float32), ("streamed", torch.float64)):
        z_a, z_b, queue = batch.tensors(dtype)
        loss = case.build(**batch.options(), route=route)(z_a, z_b, negatives=queue)
        found.append((loss.detach(), *torch.autograd.grad(loss, (z_a, z_b))))
    for mine, theirs in zip(*found, strict=True):
        assert_near(mine, theirs, 5e-5)


def test_the_memory_of_a_strip_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "STRIP_BYTES", 4096)
    made = strips.strips_of(1000, 64, 4, whole=16)
    assert [made[0].start, made[-1].stop] == [0, 1000]
    assert all((s.stop - s.start) * 64 * 4 <= 4096 for s in made)
    one_tile = strips.strips_of(40, 10**9, 4, whole=16)
    assert [s.stop - s.start for s in one_tile] == [16, 16, 8]


def test_tiles_need_not_be_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strips_triton.SUMS_TILING, 4, replace(SMALL, columns=32))
    monkeypatch.setitem(strips_triton.WEIGHTS_TILING, 4, replace(SMALL, rows=32))
    batch = Batch.random(37, 40, pairing="cross")
    for mine, theirs in zip(
        outcome(batch, 3.0, torch.float32, route="strips"),
        outcome(batch, 3.0, torch.float64, route="streamed"),
        strict=True,
    ):
        assert_near(mine, theirs, 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("d", [3, 16, 31])
def test_embeddings_narrower_than_a_tile_are_not_read_beyond_their_rows(
    dtype: torch.dtype, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in (strips_triton.SUMS_TILING, strips_triton.WEIGHTS_TILING):
        for itemsize, tiling in TILINGS.items():
            monkeypatch.setitem(table, itemsize, tiling)
    batch = Batch.random(5, d)
    got, want = (outcome(batch, 3.0, dtype, route=route) for route in ("strips", "streamed"))
    for mine, theirs in zip(got, want, strict=True):
        assert_near(mine, theirs, 1e-4 if dtype == torch.float32 else 1e-2)


def block_with_labels(rows: int, columns: int) -> Block:
    codes = Codes(torch.zeros(rows), torch.zeros(columns), None, None)
    return Block(*(Rows(torch.zeros(n, 8, dtype=torch.bfloat16), None) for n in (rows, columns)), 1.0, codes=codes)


def test_weights_that_are_alike_keep_their_sums_where_labels_choose_pairs() -> None:
    """To the nearest, every one of them would be 0.2 % too small."""
    for alike in (0.40234375 + 0.0009, -(2.0**-15) * (1 + 0.3 / 128)):
        weights = torch.full((300, 500), alike).mul_(1 + 1e-5 * torch.rand(300, 500))
        rounded = strips.in_product_type(weights.clone(), slice(0, 300), block_with_labels(300, 500)).double()
        above, below = rounded.abs().amax(), rounded.abs().amin()
        assert below < abs(alike) < above <= below * (1 + 2**-7), "up or down to what is next to it"
        assert len(rounded.unique()) == 2
        nearest = weights.bfloat16().double()
        assert ((nearest.sum(1) / weights.double().sum(1) - 1).abs() > 1e-3).all()
        for dim in (0, 1):
            assert ((rounded.sum(dim) / weights.double().sum(dim) - 1).abs() < 1e-4).all()


def test_a_strip_further_down_goes_on_where_the_last_one_stopped() -> None:
    weights, block = torch.rand(64, 32), block_with_labels(64, 32)
    whole = strips.in_product_type(weights.clone(), slice(0, 64), block)
    lower = strips.in_product_type(weights[40:].clone(), slice(40, 64), block)
    assert torch.equal(whole[40:], lower)


def test_weights_that_are_exact_or_no_numbers_stay_so_when_they_are_rounded_by_place() -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0**-100, math.inf, -math.inf])
    weights = exact.repeat(50, 9)
    weights[:, 3::7] = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).repeat(25).view(torch.float32).unsqueeze(1)
    rounded = strips.in_product_type(weights.clone(), slice(0, 50), block_with_labels(50, 63))
    assert torch.equal(
        rounded.float().nan_to_num(7.0, math.inf, -math.inf), weights.nan_to_num(7.0, math.inf, -math.inf)
    )


@triton.jit
def rounded_kernel(weights_ptr, out_ptr, row0, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = rows[:, None] * COLUMNS + columns[None, :]
    tl.store(out_ptr + at, strips_device._rounded_by_place(tl.load(weights_ptr + at), row0 + rows, columns))


def test_triton_rounds_by_place_as_pytorchs_operations_do() -> None:
    weights = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    weights[3, 4], weights[5, 6] = math.nan, math.inf
    weights.view(torch.int32)[3, 5:7] = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32)  # the NaN of a GPU
    found = torch.empty(64, 128, dtype=torch.bfloat16)
    rounded_kernel[(1,)](weights, found, 1_000_000, ROWS=64, COLUMNS=128)
    want = strips.in_product_type(weights, slice(1_000_000, 1_000_064), block_with_labels(64, 128))
    assert torch.equal(found.nan_to_num(7.0), want.nan_to_num(7.0))
    assert found.isnan().sum() == 3
