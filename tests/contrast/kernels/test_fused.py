"""The fused kernels through Triton's interpreter: the numbers of the torch backend, on the CPU."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import Phi
from flatclr.contrast import route
from flatclr.contrast.kernels import tiled_torch
from flatclr.contrast.kernels.reductions import Block, Embeddings, LogSumExp, LogSumExpSums, Side
from flatclr.contrast.relation import same_sample_pairs
from flatclr.distributed import Ranks
from tests.support import oracles
from tests.support.harness import CASES, PAIRINGS, Batch, Case, every_pairing
from tests.support.interpreter import assert_near, interpreted, use_tiles, weighted_stats

pytest.importorskip("triton")

import triton
import triton.language as tl  # noqa: F401  its interpreter looks for it in the module of a function

from flatclr.contrast.kernels import fused_triton
from flatclr.contrast.kernels.fused_triton import Tiling

pytestmark = interpreted


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a batch of a few has several, of every kind."""
    use_tiles(monkeypatch, Tiling(32, 16, 4, 2))


def loss_and_gradients(
    case: Case, batch: Batch, backend: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    z_a, z_b, queue = batch.tensors(dtype)
    inputs = [z_a, z_b]
    if queue is not None:
        inputs.append(queue.requires_grad_())
    objective = case.build(**batch.options(), backend=backend)
    loss = (objective.double() if dtype == torch.float64 else objective)(z_a, z_b, negatives=queue)
    return loss.detach(), *torch.autograd.grad(loss, inputs)  # type: ignore[return-value]


# one case of each way through the kernels visits every pairing, the others their own; what is a function of single pairs
# differs only in its formula, which tests/objectives/device compares
REPRESENTATIVE = ("info_nce", "flat_nce", "dv", "holder_2", "holder_-1", "rpc", "fmicl_js", "fmicl_tsallis_cosine")


CLIMBING = [case for case in CASES if case.name in REPRESENTATIVE or not case.name.startswith("fmicl")]


LADDER = [(case, case.pairing, queue) for case in CLIMBING for queue in (0, 5) if not case.of_stats]


LADDER += [(c, pairing, 0) for c in CASES if c.name in REPRESENTATIVE for pairing in PAIRINGS if pairing != c.pairing]


@pytest.mark.parametrize(("case", "pairing", "queue"), LADDER, ids=lambda x: getattr(x, "name", str(x)))
def test_fused_loss_and_gradients_are_those_of_the_torch_backend(case: Case, pairing: str, queue: int) -> None:
    batch = Batch.random(9, 3, pairing=pairing, queue=queue)
    got = loss_and_gradients(case, batch, "triton", torch.float32)
    want = loss_and_gradients(case, batch, "torch", torch.float64)
    assert got[0].item() == pytest.approx(case.value(batch), rel=2e-5, abs=2e-5)
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        assert mine is not None
        assert theirs is not None
        assert_near(mine, theirs, 2e-5)


@every_pairing
@pytest.mark.parametrize(
    "source", [{}, {"queue": 21}, {"queue": 21, "in_batch": False}], ids=["batch", "both", "queue"]
)
@pytest.mark.parametrize("beta", [3.0, torch.tensor(50.0)], ids=str)
def test_per_anchor_outputs_and_gradients_are_those_of_the_torch_backend(
    pairing: str, source: dict[str, Any], beta: float | Tensor
) -> None:
    batch = Batch.random(19, 5, pairing=pairing, **source)
    got = weighted_stats(batch, beta, "triton", torch.float32)
    for mine, theirs in zip(got, weighted_stats(batch, beta, "torch", torch.float64), strict=True):
        assert_near(mine, theirs, 1e-5)


@pytest.mark.parametrize("pairing", ["two_view", "cross"])
@pytest.mark.parametrize("beta", [31.0, 33.0])
def test_a_scale_only_the_device_knows_gives_the_numbers_of_one_the_host_knows(
    pairing: str, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 is the largest scale for the fixed shift: below and above it different kernels answer."""
    monkeypatch.setattr(fused_triton, "FEWER_LAUNCHES", 0)  # as for a large batch
    batch = Batch.random(19, 5, pairing=pairing)
    known, unknown = (weighted_stats(batch, b, "triton", torch.float32) for b in (beta, torch.tensor(beta)))
    for mine, theirs in zip(unknown, known, strict=False):
        assert_near(mine, theirs, 1e-6)
    for mine, theirs in zip(known, weighted_stats(batch, beta, "torch", torch.float64), strict=True):
        assert_near(mine, theirs, 1e-5)


@every_pairing
@pytest.mark.parametrize("beta", [5.0, 50.0])
def test_a_small_batch_at_a_scale_only_the_device_knows_takes_one_way_that_serves_all(
    pairing: str, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_choice(block: Block, phi: bool) -> list[tuple[str, bool]]:
        launches = ways(block, phi)
        assert launches == [("online", False)]
        return launches

    ways = fused_triton.ways
    monkeypatch.setattr(fused_triton, "ways", no_choice)
    batch = Batch.random(19, 5, pairing=pairing)
    got = weighted_stats(batch, torch.tensor(beta), "triton", torch.float32)
    for mine, theirs in zip(got, weighted_stats(batch, torch.tensor(beta), "torch", torch.float64), strict=True):
        assert_near(mine, theirs, 1e-5)


@every_pairing
def test_scores_without_bound_keep_a_running_maximum(pairing: str) -> None:
    batch = Batch.random(19, 5, pairing=pairing)
    batch = Batch(4 * batch.z_a, 4 * batch.z_b, None, pairing)  # scores beyond 200
    beta = torch.tensor(1.5)
    got = weighted_stats(batch, beta, "triton", torch.float32, normalize=False)
    for mine, theirs in zip(got, weighted_stats(batch, beta, "torch", torch.float64, normalize=False), strict=True):
        assert_near(mine, theirs, 1e-4)


@pytest.mark.parametrize(
    ("pairs", "queue", "d", "expected"),
    [(512, 0, 4, "dense"), (16, 0, 4, "dense"), (16, 1, 4, "fused"), (513, 0, 128, "fused"), (513, 0, 129, "strips")],
)
def test_auto_takes_triton_for_large_batches_and_queues_and_strips_for_wide_embeddings(
    pairs: int, queue: int, d: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "prefers_triton", lambda *_: True)  # as on a GPU
    z = torch.randn(pairs, d, dtype=torch.bfloat16)
    negatives = torch.randn(queue, d, dtype=torch.bfloat16) if queue else None
    assert route.route_of(flatclr.PairSet.of(z, z, negatives=negatives), plain=True) == expected
    labels, queue_labels = torch.arange(pairs), torch.arange(queue) if queue else None
    related = flatclr.PairSet.of(z, z, negatives=negatives, labels=labels, negative_labels=queue_labels)
    assert route.route_of(related, plain=False) == ("strips" if pairs > 512 else "dense")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_half_precision_rounds_the_products_operands_once_and_accumulates_in_float32(
    dtype: torch.dtype, normalize: bool
) -> None:
    exact = Batch.random(40, 16)
    z_a, z_b = (torch.tensor(z / 4).to(dtype).double().numpy() for z in (exact.z_a, exact.z_b))
    batch = Batch(z_a, z_b, None, "two_view")
    got = weighted_stats(batch, 5.0, "triton", dtype, normalize=normalize)
    assert [x.dtype for x in got] == [torch.float32] * 3 + [dtype] * 2
    for mine, theirs in zip(got, weighted_stats(batch, 5.0, "torch", torch.float64, normalize=normalize), strict=True):
        assert_near(mine, theirs, 2 * torch.finfo(dtype).eps)


def test_half_precision_sums_of_many_small_terms_keep_float32_accuracy() -> None:
    z = torch.nn.functional.normalize(torch.randn(150, 4).double(), dim=1)
    exact = flatclr.contrast_stats(z, z, inverse_temperature=0.01)
    low = flatclr.contrast_stats(z.bfloat16(), z.bfloat16(), inverse_temperature=0.01, backend="triton")
    torch.testing.assert_close(low.negative_logsumexp.double(), exact.negative_logsumexp, rtol=2e-5, atol=0)


def test_float16_weights_of_a_mean_over_many_anchors_do_not_vanish() -> None:
    """An upstream gradient of 1e-7 times a share of 1e-3 is below the smallest float16."""
    batch = Batch.random(40, 8)
    z_a, z_b, _ = batch.tensors(torch.float16)
    loss = 1e-5 * flatclr.InfoNCE(0.5, backend="triton")(z_a, z_b)
    (got,) = torch.autograd.grad(loss * 2.0**20, z_a)  # a scaled loss, so that the result itself is a float16
    a, b = (z.detach().double().requires_grad_() for z in (z_a, z_b))
    (want,) = torch.autograd.grad(1e-5 * 2.0**20 * flatclr.InfoNCE(0.5)(a, b), a)
    assert_near(got, want, 4e-3)


def test_a_collapsed_batch_has_uniform_weights_at_the_largest_fixed_scale() -> None:
    z = torch.ones(40, 4)
    stats = flatclr.contrast_stats(z, z, inverse_temperature=32.0, backend="triton")
    torch.testing.assert_close(stats.negative_logsumexp, torch.full((80,), 32 + float(np.log(78))))
    torch.testing.assert_close(stats.ess, torch.ones(80))


@pytest.mark.parametrize("beta", [31.0, 33.0, 200.0])
def test_opposite_embeddings_keep_their_effective_sample_size(beta: float) -> None:
    """Negatives at the far end of the sphere: the squares of their weights are the first to underflow."""
    z = torch.cat([torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 1e-3]]).repeat(5, 1)])
    z[1:, 1] *= torch.arange(1, 6)
    got = flatclr.contrast_stats(z, z, inverse_temperature=beta, pairing="one_way", backend="triton")
    want = flatclr.contrast_stats(z.double(), z.double(), inverse_temperature=beta, pairing="one_way")
    torch.testing.assert_close(got.ess.double(), want.ess, rtol=1e-4, atol=0)
    torch.testing.assert_close(got.negative_logsumexp.double(), want.negative_logsumexp, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_nearly_aligned_pairs_keeps_its_precision() -> None:
    rng = np.random.default_rng(0)
    z_a = rng.normal(size=(24, 16))
    batch = Batch(z_a, z_a + 1e-3 * rng.normal(size=z_a.shape), None, "two_view")
    case = next(case for case in CASES if case.name == "flat_nce")
    got, want = (
        loss_and_gradients(case, batch, backend, dtype)
        for backend, dtype in (("triton", torch.float32), ("torch", torch.float64))
    )
    assert_near(got[1], want[1], 1e-4)


@pytest.mark.parametrize("length", [1e-30, 1e-20, 1e20, 1e30])
def test_directions_survive_any_float32_length_in_a_fused_pass(length: float) -> None:
    z_a, z_b = torch.randn(2, 6, 4).unbind()
    long = (length * z_a).requires_grad_()
    loss = flatclr.InfoNCE(0.1, backend="triton")(long, z_b)
    torch.testing.assert_close(loss, flatclr.InfoNCE(0.1)(z_a, z_b), rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(loss, long)[0].isfinite().all()


def test_a_zero_embedding_scores_zero_and_gets_no_gradient() -> None:
    z_a, z_b = torch.randn(2, 6, 4).unbind()
    z_a[2] = 0
    z_a.requires_grad_()
    stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=3.0, backend="triton")
    assert stats.positive[2] == 0
    (gradient,) = torch.autograd.grad(stats.info_nce.mean(), z_a)
    assert gradient.isfinite().all()
    assert (gradient[2] == 0).all()


def test_a_nan_embedding_stays_visible() -> None:
    z_a, z_b = torch.randn(2, 20, 4).unbind()
    z_a[3, 1] = torch.nan
    for beta in (5.0, 60.0):
        stats = flatclr.contrast_stats(z_a, z_b, inverse_temperature=beta, backend="triton")
        assert stats.negative_logsumexp.isnan().any()


def test_two_runs_agree_bit_by_bit() -> None:
    batch = Batch.random(19, 7, queue=9)
    once, again = (weighted_stats(batch, torch.tensor(5.0), "triton", torch.float32) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(once, again, strict=True))


def test_a_detached_view_leaves_the_other_views_gradient_as_it_is() -> None:
    z_a, z_b, _ = Batch.random(9, 4, pairing="cross").tensors(torch.float32)
    objective = flatclr.InfoNCE(pairing="cross", backend="triton")
    (alone,) = torch.autograd.grad(objective(z_a, z_b.detach()), z_a)
    torch.testing.assert_close(alone, torch.autograd.grad(objective(z_a, z_b), z_a)[0])


def test_a_rank_excludes_its_own_samples_among_everyones() -> None:
    own, ranks = 11, Ranks(rank=1, size=3)
    everyone = torch.nn.functional.normalize(torch.randn(2 * 33, 5), dim=1)
    stack = everyone.view(2, 33, 5)[:, ranks.own_rows(own)].flatten(0, 1)
    anchors = Side(torch.randn(66), torch.rand(66))
    own_anchors = Side(torch.randn(22), torch.rand(22))
    results = []
    for kernels in (tiled_torch, fused_triton):
        rows, columns = (kernels.operand(Embeddings(z, z, normalized=True), z.dtype) for z in (stack, everyone))
        block = Block(rows, columns, 4.0, excluded=same_sample_pairs((0, 1), (0, 1), own, ranks), bounded=True)
        sums = LogSumExpSums.start(2 * own, stack, with_moment=True)
        kernels.reduce_block(block, sums)
        d_rows, _ = kernels.block_gradients(
            block, LogSumExp(), own_anchors, anchors, need_rows=True, need_columns=False
        )
        assert d_rows is not None
        results.append((*sums.finish(64), d_rows.sum(0) if d_rows.dim() == 3 else d_rows))  # strips are yet to be added
    for mine, theirs in zip(*results, strict=True):
        assert_near(mine, theirs, 1e-5)


def test_whole_numbers_are_numbers() -> None:
    z_a, z_b, _ = Batch.random(9, 4).tensors(torch.float32)
    got, want = (flatclr.RPC(1, a=1, b=1, g=1, backend=backend)(z_a, z_b) for backend in ("triton", "torch"))
    torch.testing.assert_close(got, want)
    got, want = (
        flatclr.contrast_stats(z_a, z_b, inverse_temperature=beta, backend="triton").gap for beta in (1, np.float32(1))
    )
    torch.testing.assert_close(got, want)


CUBE = Phi("cube", value=lambda s: s**3, derivative=lambda s: 3 * s**2)


IMPOSTOR = Phi("rpc", value=lambda s: s**3, derivative=lambda s: 3 * s**2)


@pytest.mark.parametrize("phi", [CUBE, IMPOSTOR], ids=lambda phi: phi.name)
def test_a_phi_without_device_code_is_refused(phi: Phi) -> None:
    with pytest.raises(ValueError, match=r"phi must have device code for backend='triton', got .* use backend='torch'"):
        flatclr.pairwise_mean(torch.eye(3), torch.eye(3), phi=phi, backend="triton")


@triton.jit
def cube_on_device(s, first, second):  # type: ignore[no-untyped-def]
    return first * s * s * s, 3 * first * s * s


def test_a_phi_may_bring_device_code_of_its_own() -> None:
    cube = Phi("cube", lambda s: 2 * s**3, lambda s: 6 * s**2, parameters=(2.0,), device=cube_on_device)
    found = []
    for backend in ("triton", "torch"):
        z_a, z_b, _ = Batch.random(9, 4).tensors(torch.float32)
        mean = flatclr.pairwise_mean(z_a, z_b, phi=cube, inverse_temperature=2.0, backend=backend)
        found.append((mean, *torch.autograd.grad(mean.square().sum(), (z_a, z_b))))
    for mine, theirs in zip(*found, strict=True):
        assert_near(mine, theirs, 1e-5)


def test_float64_embeddings_are_refused() -> None:
    z = torch.eye(3, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"must be given float32, bfloat16 or float16 .* got torch.float64; use"):
        flatclr.contrast_stats(z, z, inverse_temperature=1.0, backend="triton")


def test_compiled_kernels_refuse_embeddings_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_triton, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"must be given embeddings on a CUDA device, got cpu; move"):
        flatclr.contrast_stats(torch.eye(3), torch.eye(3), inverse_temperature=1.0, backend="triton")


def test_without_triton_everything_else_works_and_the_error_says_what_to_do() -> None:
    """In a process of its own, where importing the package has loaded neither Triton nor a compiler."""
    code = """
import sys, torch, flatclr
print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])
sys.modules["triton"] = None  # as if it were not installed
z = torch.eye(3)
print(flatclr.InfoNCE()(z, z).item() >= 0)
try:
    flatclr.InfoNCE(backend="triton")(z, z)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, works, message = done.stdout.splitlines()
    assert loaded == "[]"
    assert works == "True"
    assert message.startswith("backend='triton' must find the package triton, got none installed; install it, or")


def test_fused_values_agree_with_the_oracle() -> None:
    batch = Batch.random(19, 5, pairing="cross", queue=4)
    z_a, z_b, queue = batch.tensors(torch.float32)
    stats = flatclr.contrast_stats(
        z_a, z_b, inverse_temperature=2.5, pairing="cross", negatives=queue, backend="triton"
    )
    rows = batch.rows(2.5)
    np.testing.assert_allclose(stats.positive.detach(), [row.positive for row in rows], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        stats.negative_logsumexp.detach(), [oracles.logsumexp(row.negatives) for row in rows], rtol=1e-5
    )
    np.testing.assert_allclose(stats.ess, oracles.ess(rows), rtol=1e-5)


def test_where_a_kernel_cannot_be_launched_torch_is_used_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(device: torch.device) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused_triton, "try_launch", no_compiler)
    with pytest.warns(UserWarning, match=r"Triton does not run on cpu \(no C compiler\)"):
        assert not flatclr.contrast.kernels.fused_kernels_run(torch.device("cpu"))
    monkeypatch.undo()
    assert flatclr.contrast.kernels.fused_kernels_run(torch.device("cpu"))  # interpreted
