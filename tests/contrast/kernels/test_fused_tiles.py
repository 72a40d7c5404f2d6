"""Fused tiles of any size, and features taken chunk by chunk, give the numbers of the torch backend."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from tests.support.harness import Batch, every_pairing
from tests.support.interpreter import assert_near, interpreted, use_tiles, weighted_stats
from tests.support.memory import LargestTensor

pytest.importorskip("triton")

from flatclr.contrast.kernels import fused_triton
from flatclr.contrast.kernels.fused_triton import Tiling

pytestmark = interpreted


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a batch of a few has several, of every kind."""
    use_tiles(monkeypatch, Tiling(32, 16, 4, 2))


SHIPPED = {name: getattr(fused_triton, name) for name in ("sums_tiling", "mirrored_tiling", "gradients_tiling")}


# tiles depend on type and width; every pairing meets one kind of scale and one type, on a GPU all of them
TYPES_AND_SCALES = [
    *((pairing, True, torch.float32, 128) for pairing in ("two_view", "within")),
    *((pairing, False, torch.float16, 128) for pairing in ("cross", "one_way")),
    *((pairing, True, torch.float16, d) for pairing, d in (("two_view", 64), ("cross", 256))),
]


@pytest.mark.parametrize(("pairing", "learned", "dtype", "d"), TYPES_AND_SCALES, ids=str)
def test_the_tiles_that_ship_give_the_numbers_of_the_torch_backend(
    pairing: str, learned: bool, dtype: torch.dtype, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, choose in SHIPPED.items():
        monkeypatch.setattr(fused_triton, name, choose)
    exact = Batch.random(90, d, pairing=pairing)
    z_a, z_b = (torch.tensor(z / 4).to(dtype).double().numpy() for z in (exact.z_a, exact.z_b))
    batch, beta = Batch(z_a, z_b, None, pairing), torch.tensor(5.0) if learned else 5.0
    want = weighted_stats(batch, beta, "torch", torch.float64)
    for mine, theirs in zip(weighted_stats(batch, beta, "triton", dtype), want, strict=True):
        assert_near(mine, theirs, 2e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("pairing", ["two_view", "cross"])
@pytest.mark.parametrize("tiling", [Tiling(16, 16, 4, 1), Tiling(64, 16, 4, 1), Tiling(64, 64, 4, 1)], ids=str)
def test_the_size_of_a_fused_tile_changes_nothing(
    pairing: str, tiling: Tiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch.random(19, 4, pairing=pairing, queue=5)
    want = weighted_stats(batch, 4.0, "triton", torch.float32)
    use_tiles(monkeypatch, tiling)
    for mine, theirs in zip(weighted_stats(batch, 4.0, "triton", torch.float32), want, strict=True):
        assert_near(mine, theirs, 5e-6)


@every_pairing
def test_visiting_both_sides_at_once_or_in_turn_gives_the_same(pairing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch.random(19, 4, pairing=pairing)
    mirrored = weighted_stats(batch, torch.tensor(4.0), "triton", torch.float32)
    monkeypatch.setattr(fused_triton, "MIRRORED_BYTES", 0)
    for mine, theirs in zip(weighted_stats(batch, torch.tensor(4.0), "triton", torch.float32), mirrored, strict=True):
        assert_near(mine, theirs, 5e-6)


@pytest.mark.parametrize(
    ("pairing", "source", "beta"),
    [
        ("two_view", {"queue": 21}, 3.0),
        ("cross", {}, torch.tensor(50.0)),
        ("one_way", {"queue": 21}, 3.0),
        ("within", {}, torch.tensor(50.0)),
    ],
    ids=str,
)
def test_features_are_multiplied_chunk_by_chunk_where_they_do_not_fit(
    pairing: str, source: dict[str, Any], beta: float | Tensor
) -> None:
    batch = Batch.random(11, 320, pairing=pairing, **source)
    *got, last = weighted_stats(batch, beta, "triton", torch.float32)
    *wanted, wanted_last = weighted_stats(batch, beta, "torch", torch.float64)
    for mine, theirs in zip(got, wanted, strict=True):
        assert_near(mine, theirs, 2e-6)
    assert_near(last, wanted_last, 2e-4)  # of the scale, where terms cancel


@pytest.mark.parametrize("d", [320, 520])
def test_functions_of_pairs_are_summed_over_features_chunk_by_chunk(d: int) -> None:
    z_a, z_b = (torch.randn(11, d, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2))
    losses = [flatclr.FMICL("js", backend=backend)(z_a, z_b) for backend in ("triton", "torch")]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    for mine, theirs in zip(*(torch.autograd.grad(loss, (z_a, z_b)) for loss in losses), strict=True):
        assert_near(mine, theirs, 1e-5)


@pytest.mark.parametrize(
    ("pairs", "d"), [*((2, d) for d in (1, 3, 64, 128, 256, 320, 512)), *((17, d) for d in (1, 64, 320))]
)
def test_any_number_of_pairs_and_features_is_fused(pairs: int, d: int) -> None:
    batch = Batch.random(pairs, d)
    got = weighted_stats(batch, 3.0, "triton", torch.float32)
    for mine, theirs in zip(got, weighted_stats(batch, 3.0, "torch", torch.float64), strict=True):
        assert_near(mine, theirs, 1e-5)


@every_pairing
def test_no_fused_operation_makes_a_score_matrix(pairing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, Tiling(128, 128, 4, 2))
    n, d = 384, 8
    z_a, z_b = (torch.randn(n, d, requires_grad=True) for _ in range(2))
    with LargestTensor() as largest:
        stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0, pairing=pairing, backend="triton")
        stats.info_nce.mean().backward()
    assert largest.elements < n * n // 2  # the interpreter's copies count bytes
