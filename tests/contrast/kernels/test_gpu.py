"""The fused kernels on a CUDA device: the numbers of the torch backend, any shape, precision and scale, and no waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.contrast.kernels import strips
from tests.support.cuda import captured, gradients, leave_nans_in_free_memory, needs_cuda, on_device, relative_error
from tests.support.harness import PAIRINGS, Batch, Case, every_case

pytestmark = needs_cuda


@every_case
@pytest.mark.parametrize("pairs", [5, 700])
def test_fused_kernels_give_the_numbers_of_the_torch_backend(case: Case, pairs: int) -> None:
    batch = Batch.random(pairs, 16, pairing=case.pairing, queue=7)
    want = gradients(case.objective(batch).cuda(), *on_device(batch, torch.float64))
    leave_nans_in_free_memory()
    fused = case.build(**batch.options(), backend="triton").cuda()
    for mine, theirs in zip(gradients(fused, *on_device(batch, torch.float32)), want, strict=True):
        assert relative_error(mine, theirs) < 1e-4


def fused_stats(batch: Batch, beta: float | Tensor, backend: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Stats, and gradients of a sum with a different weight on every output of every anchor."""
    z_a, z_b, queue = on_device(batch, dtype)
    stats = flatclr.contrast_stats(
        z_a, z_b, inverse_temperature=beta, negatives=queue, backend=backend, **batch.options()
    )
    weights = torch.randn(2, len(stats.positive), generator=torch.Generator().manual_seed(7)).double().cuda()
    total = (weights[0] * stats.positive + weights[1] * stats.negative_logsumexp).sum()
    return (
        stats.positive.detach(),
        stats.negative_logsumexp.detach(),
        stats.ess,
        *torch.autograd.grad(total, (z_a, z_b)),
    )


def rounded(batch: Batch, dtype: torch.dtype) -> Batch:
    z_a, z_b, queue = (
        None if z is None else torch.tensor(z).to(dtype).double().numpy() for z in (batch.z_a, batch.z_b, batch.queue)
    )
    assert z_a is not None
    assert z_b is not None
    return Batch(z_a, z_b, queue, batch.pairing)


TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("d", [1, 3, 64, 128, 256, 320, 512])
@pytest.mark.parametrize("pairing", ["two_view", "cross"])
def test_fused_kernels_take_any_shape_and_precision(dtype: torch.dtype, d: int, pairing: str) -> None:
    for pairs in (2, 129, 1000):
        batch = rounded(Batch.random(pairs, d, pairing=pairing), dtype)
        want = fused_stats(batch, 5.0, "torch", torch.float64)
        leave_nans_in_free_memory()
        for mine, theirs in zip(fused_stats(batch, 5.0, "triton", dtype), want, strict=True):
            assert relative_error(mine, theirs) < TOLERANCE[dtype], (pairs, mine.shape)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("beta", [5.0, 31.0, 33.0, 200.0])
@pytest.mark.parametrize("on", ["host", "device"])
def test_fused_kernels_take_any_scale_wherever_it_lives(pairing: str, beta: float, on: str) -> None:
    batch = Batch.random(300, 24, pairing=pairing, queue=129)
    want = fused_stats(batch, beta, "torch", torch.float64)
    leave_nans_in_free_memory()
    got = fused_stats(batch, beta if on == "host" else torch.tensor(beta, device="cuda"), "triton", torch.float32)
    for mine, theirs in zip(got, want, strict=True):
        assert relative_error(mine, theirs) < 1e-4


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(
    ("dtype", "d"),
    [(torch.float32, 24), (torch.float16, 128), *((torch.bfloat16, d) for d in (64, 128, 256))],
    ids=str,
)
def test_fused_kernels_learn_the_temperature(pairing: str, d: int, dtype: torch.dtype) -> None:
    z_a, z_b, _ = on_device(Batch.random(300, d, pairing=pairing), dtype)
    found = []
    for backend, views in (("torch", [z.detach().double() for z in (z_a, z_b)]), ("triton", [z_a, z_b])):
        objective = flatclr.InfoNCE(0.2, learn_temperature=True, pairing=pairing, backend=backend).cuda()
        loss = (objective.double() if backend == "torch" else objective)(*(view.requires_grad_() for view in views))
        found.append((loss.detach(), *torch.autograd.grad(loss, [*views, *objective.parameters()])))
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert relative_error(mine, theirs) < max(1e-4, 4 * torch.finfo(dtype).eps)


@every_case
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_fused_step_waits_for_the_device(case: Case) -> None:
    batch = Batch.random(70, 8, pairing=case.pairing)
    z_a, z_b, _ = on_device(batch, torch.bfloat16)
    objective = case.build(pairing=case.pairing, backend="triton").cuda()
    gradients(objective, z_a, z_b, None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(objective, z_a, z_b, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("route", ["fused", "strips"])
def test_a_loss_replays_inside_a_cuda_graph_on_new_inputs(dtype: torch.dtype, pairing: str, route: str) -> None:
    z_a, z_b, queue = (torch.randn(n, 32, device="cuda", dtype=dtype) for n in (300, 300, 65))
    beta = torch.tensor(10.0, device="cuda")

    def step() -> tuple[Tensor, ...]:
        a, b = (z.detach().requires_grad_() for z in (z_a, z_b))
        stats = flatclr.contrast_stats(a, b, inverse_temperature=beta, pairing=pairing, negatives=queue, route=route)
        return stats.ess, *torch.autograd.grad(stats.gap.mean(), (a, b))

    graph, outputs = captured(step)
    for scale in (5.0, 60.0):  # the fixed shift, and the running maximum
        for tensor in (z_a, z_b, queue):
            tensor.copy_(torch.randn(tensor.shape))
        beta.fill_(scale)
        graph.replay()
        replayed = [x.clone() for x in outputs]
        for mine, theirs in zip(replayed, step(), strict=True):
            assert torch.equal(mine, theirs)


def test_fused_results_repeat_bit_by_bit() -> None:
    batch = Batch.random(3000, 128)
    once, again = (fused_stats(batch, 10.0, "triton", torch.bfloat16) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(once, again, strict=True))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_fused_memory_is_a_sliver_of_the_score_matrix(pairing: str) -> None:
    n, d = 16384, 64
    z_a, z_b = (torch.randn(n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    objective = flatclr.InfoNCE(pairing=pairing, backend="triton")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(objective(z_a, z_b), (z_a, z_b))
    assert torch.cuda.max_memory_allocated() - before < 4 * n * n / 8


@pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say
def test_a_compiled_fused_objective_gives_the_same_gradient() -> None:
    batch = Batch.random(300, 32)
    objective = flatclr.InfoNCE(backend="triton")
    want = gradients(objective, *on_device(batch, torch.float32))
    got = gradients(torch.compile(objective, fullgraph=True), *on_device(batch, torch.float32))
    for mine, theirs in zip(got, want, strict=True):
        assert relative_error(mine, theirs) < 1e-5


@pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say
@pytest.mark.parametrize(("pairs", "d", "expected"), [(1000, 64, "dense"), (1100, 64, "fused"), (1100, 384, "strips")])
def test_a_compiled_loss_takes_the_route_of_the_eager_one(pairs: int, d: int, expected: str) -> None:
    """In one graph with a model, in half precision, under the controller."""
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, d, device="cuda", dtype=torch.bfloat16)
        objective = flatclr.FlatNCE(flatclr.EssControl(0.25)).cuda()
        x = torch.randn(2, pairs, 16, device="cuda", dtype=torch.bfloat16)

        def step(x: Tensor, model: Any = model, objective: Any = objective) -> Tensor:
            loss: Tensor = objective(model(x[0]), model(x[1]))
            return loss

        loss = (torch.compile(step, fullgraph=True) if compiled else step)(x)
        loss.backward()
        found.append((loss.detach(), model.weight.grad, objective.inverse_temperature))
        assert flatclr.contrast_stats(*model(x), inverse_temperature=10.0, with_ess=True).route == expected
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert relative_error(mine, theirs) < 2e-2


@pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say
def test_a_compiled_loss_of_labels_and_three_views_goes_by_strips() -> None:
    torch._dynamo.reset()
    objective = flatclr.InfoNCE(0.2)
    labels = torch.arange(700, device="cuda") % 7
    found = []
    for compiled in (False, True):
        views = torch.randn(3, 700, 200, generator=torch.Generator().manual_seed(0)).cuda().bfloat16().requires_grad_()
        loss = (torch.compile(objective, fullgraph=True) if compiled else objective)(views, labels=labels)
        found.append((loss.detach(), *torch.autograd.grad(loss, views)))
        assert objective.with_stats(views, labels=labels)[1].route == "strips"
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert relative_error(mine, theirs) < 2e-2


def test_the_operators_pass_torchs_own_checks_on_the_device() -> None:
    from flatclr.contrast.asked import Asked
    from flatclr.contrast.operators import contrast

    z_a, z_b, queue = on_device(Batch.random(70, 40, queue=33), torch.bfloat16)
    scale = torch.tensor(5.0, device="cuda", requires_grad=True)
    for route, pairing, way in (("fused", "two_view", None), ("strips", "cross", scale)):
        asked = Asked(route, pairing, 2, "in" if way is None else "inm", "", "").text
        torch.library.opcheck(contrast, (z_a, z_b, queue, queue, way, 5.0, [], 0.0, 0.0, asked))


def test_a_fused_loss_on_autocast_embeddings_takes_them_as_they_come() -> None:
    x = torch.randn(2, 200, 16, device="cuda")
    weight = torch.randn(16, 32, device="cuda", requires_grad=True)
    losses = {}
    for backend in ("torch", "triton"):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            losses[backend] = flatclr.FlatNCE(backend=backend)(x[0] @ weight, x[1] @ weight)
    assert losses["triton"].dtype == torch.float32
    torch.testing.assert_close(losses["triton"], losses["torch"], rtol=1e-3, atol=1e-3)
    assert torch.autograd.grad(losses["triton"], weight)[0].isfinite().all()


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        (2048, torch.bfloat16, "fused"),
        (1024, torch.bfloat16, "fused"),
        (256, torch.bfloat16, "dense"),
        (1024, torch.float16, "fused"),
        (256, torch.float16, "dense"),
        (2048, torch.float32, "streamed"),
    ],
)
def test_auto_takes_the_fused_kernels_for_large_half_precision_batches(
    rows: int, dtype: torch.dtype, expected: str
) -> None:
    z_a, z_b = (torch.randn(rows, 16, device="cuda", dtype=dtype) for _ in range(2))
    assert flatclr.contrast_stats(z_a, z_b, inverse_temperature=5.0).route == expected


def test_auto_falls_back_for_a_phi_no_kernel_knows() -> None:
    z_a, z_b = (torch.randn(1024, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    square = flatclr.Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    auto, torch_only = (flatclr.pairwise_mean(z_a, z_b, phi=square, backend=b) for b in ("auto", "torch"))
    torch.testing.assert_close(auto, torch_only)


def test_any_size_and_alignment_gives_the_same_gradient() -> None:
    """Triton compiles anew for sizes and addresses that are multiples of 16, and for ones."""
    for samples, d in ((16, 16), (17, 16), (16, 33), (8, 1)):
        for shifted in (0, 1):
            for _ in range(2):
                whole = torch.randn(2, samples * d + shifted, device="cuda")
                z_a, z_b = (z[shifted:].view(samples, d).requires_grad_() for z in whole)
                results = [
                    torch.autograd.grad(flatclr.InfoNCE(backend=backend)(z_a, z_b), [z_a, z_b])
                    for backend in ("triton", "torch")
                ]
                torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("d", [48, 384, 1000])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_strips_take_any_shape_and_precision(dtype: torch.dtype, d: int, pairing: str) -> None:
    for pairs, beta in ((129, 5.0), (700, torch.tensor(50.0, device="cuda"))):
        batch = rounded(Batch.random(pairs, d, pairing=pairing, queue=77), dtype)
        found = []
        for route, precision in (("strips", dtype), ("streamed", torch.float64)):
            z_a, z_b, queue = on_device(batch, precision)
            leave_nans_in_free_memory()
            stats = flatclr.contrast_stats(
                z_a, z_b, inverse_temperature=beta, negatives=queue, route=route, **batch.options()
            )
            assert stats.route == route
            # scaled as a training step would: float16 cannot hold the small gradients of a mean
            gradients_of = torch.autograd.grad(2**12 * stats.gap.mean(), (z_a, z_b))
            found.append((stats.negative_logsumexp.detach(), stats.ess, *gradients_of))
        for mine, theirs in zip(*found, strict=True):
            assert relative_error(mine, theirs) < TOLERANCE[dtype], (pairs, mine.shape)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("classes", [3, 40, 500])
@pytest.mark.parametrize("pairing", ["two_view", "cross", "one_way"])
def test_labels_by_strips_are_near_float64(
    dtype: torch.dtype, classes: int, pairing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few classes and many, in one strip and in several: products over the tiles that hold a pair of one label."""
    batch = rounded(Batch.random(900, 200, pairing=pairing), dtype)
    labels = torch.randint(classes, (900,), generator=torch.Generator().manual_seed(1)).cuda()
    options: Any = {"pairing": pairing, "labels": labels, "inverse_temperature": 5.0}
    for strip_bytes in (2**29, 2**19):
        monkeypatch.setattr(strips, "STRIP_BYTES", strip_bytes)
        found = []
        for route, precision in (("strips", dtype), ("streamed", torch.float64)):
            z_a, z_b, _ = on_device(batch, precision)
            leave_nans_in_free_memory()
            stats = flatclr.contrast_stats(z_a, z_b, route=route, **options)
            gradients_of = torch.autograd.grad(2**12 * stats.info_nce.mean(), (z_a, z_b), retain_graph=True)
            of_gap = torch.autograd.grad(2**12 * stats.gap.mean(), (z_a, z_b))
            found.append((stats.info_nce.detach(), stats.ess, stats.negatives, *gradients_of, *of_gap))
        for mine, theirs in zip(*found, strict=True):
            assert relative_error(mine, theirs) < TOLERANCE[dtype]
