"""The same numbers on a CUDA device, without waiting for it, and inside a CUDA graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import EssControl, Objective
from flatclr.data.views import ViewConfig, ViewParameters, draw_views, gathered_views
from tests.support.harness import CASES, PAIRINGS, Batch, Case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def on_device(batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    z_a, z_b, queue = batch.tensors(dtype)
    on_cuda = [z.detach().cuda().requires_grad_() for z in (z_a, z_b)]
    return on_cuda[0], on_cuda[1], None if queue is None else queue.cuda()


def gradients(objective: Objective, z_a: Tensor, z_b: Tensor, queue: Tensor | None) -> tuple[Tensor, ...]:
    loss = objective(z_a, z_b, negatives=queue)
    return loss.detach(), *torch.autograd.grad(loss, (z_a, z_b))


@every_case
@pytest.mark.parametrize("pairs", [5, 700])
@pytest.mark.usefixtures("way")
def test_cuda_gives_the_numbers_of_the_cpu(case: Case, pairs: int, request: pytest.FixtureRequest) -> None:
    if pairs > 100 and "streamed" in request.node.name:
        request.getfixturevalue("monkeypatch").setattr(
            flatclr.contrast.kernels.tiled_torch, "tile_edge", lambda device: 512
        )
    batch = Batch.random(pairs, 16, pairing=case.pairing, queue=7)
    z_a, z_b, queue = batch.tensors()
    expected = gradients(case.objective(batch), z_a, z_b, queue)
    got = gradients(case.objective(batch).cuda(), *on_device(batch, torch.float64))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-9, atol=1e-11)


@every_case
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.usefixtures("way")
def test_no_step_waits_for_the_device(case: Case) -> None:
    batch = Batch.random(6, 8, pairing=case.pairing)
    z_a, z_b, _ = on_device(batch, torch.float32)
    objective = case.build(pairing=case.pairing).cuda()
    gradients(objective, z_a, z_b, None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(objective, z_a, z_b, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("way_out", ["kept", "streamed"])
def test_a_controlled_step_replays_inside_a_cuda_graph(way_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way_out == "streamed":
        monkeypatch.setattr(flatclr.contrast.route, "LARGEST_DENSE", 0)
    torch.manual_seed(0)
    weight = torch.randn(16, 8, device="cuda", requires_grad=True)
    x = torch.randn(2, 12, 16, device="cuda")
    objective = flatclr.FlatNCE(EssControl(target=0.3)).cuda()

    def step() -> Tensor:
        loss = objective(x[0] @ weight, x[1] @ weight)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        return loss.detach()

    start = weight.detach().clone()
    graph, loss = captured(step)

    def reset() -> None:
        with torch.no_grad():
            weight.copy_(start)
        objective.scale.control.inverse_temperature.fill_(10.0)

    reset()
    for _ in range(5):
        graph.replay()
    replayed, beta = loss.clone(), objective.inverse_temperature
    reset()
    for _ in range(5):
        eager = step()
    torch.testing.assert_close(replayed, eager)
    torch.testing.assert_close(beta, objective.inverse_temperature)
    assert beta != 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_device_accumulates_in_float32(dtype: torch.dtype) -> None:
    batch = Batch.random(64, 32)
    z_a, z_b, _ = on_device(batch, dtype)
    loss, g_a, _ = gradients(flatclr.FlatNCE(0.1).cuda(), z_a, z_b, None)
    rounded_a, rounded_b = (z.detach().double().cpu().requires_grad_() for z in (z_a, z_b))
    expected, e_a, _ = gradients(flatclr.FlatNCE(0.1), rounded_a, rounded_b, None)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    assert (g_a.double().cpu() - e_a).norm() < 4 * torch.finfo(dtype).eps * e_a.norm()


def relative_error(got: Tensor, want: Tensor) -> float:
    """In relation to the norm, or to 100 where it is 0 (nothing moves on the sphere of one dimension)."""
    norm = want.double().norm().cpu()
    error = (got.double().cpu() - want.double().cpu()).norm()
    return float(error / torch.where(norm > 1e-9, norm, 100))


def leave_nans_in_free_memory() -> None:
    """What a kernel reads without having written it will then show."""
    junk = [torch.full((size,), torch.nan, device="cuda") for size in (10**3, 10**5, 10**7) for _ in range(8)]
    del junk


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


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_fused_loss_replays_inside_a_cuda_graph_on_new_inputs(dtype: torch.dtype, pairing: str) -> None:
    z_a, z_b, queue = (torch.randn(n, 32, device="cuda", dtype=dtype) for n in (300, 300, 65))
    beta = torch.tensor(10.0, device="cuda")

    def step() -> tuple[Tensor, ...]:
        a, b = (z.detach().requires_grad_() for z in (z_a, z_b))
        stats = flatclr.contrast_stats(
            a, b, inverse_temperature=beta, pairing=pairing, negatives=queue, backend="triton"
        )
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
    got = gradients(torch.compile(objective), *on_device(batch, torch.float32))
    for mine, theirs in zip(got, want, strict=True):
        assert relative_error(mine, theirs) < 1e-5


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
    [(2048, torch.bfloat16, "triton"), (256, torch.bfloat16, "torch"), (2048, torch.float32, "torch")],
)
def test_auto_takes_the_fused_kernels_for_large_half_precision_batches(
    rows: int, dtype: torch.dtype, expected: str
) -> None:
    z_a, z_b = (torch.randn(rows, 16, device="cuda", dtype=dtype) for _ in range(2))
    assert flatclr.PairSet.of(z_a, z_b).layout.backend == expected


def test_auto_falls_back_for_a_phi_no_kernel_knows() -> None:
    z_a, z_b = (torch.randn(1024, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    square = flatclr.Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    auto, torch_only = (flatclr.pairwise_mean(z_a, z_b, phi=square, backend=b) for b in ("auto", "torch"))
    torch.testing.assert_close(auto, torch_only)


VIEWS = ViewConfig(hue=0.5, blur_probability=0.5, solarize_probability=0.3)


def view_parameters(images: Tensor, rows: int, seed: int = 0) -> ViewParameters:
    height, width = images.shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    return draw_views(VIEWS, rows, height=height, width=width, generator=generator, device="cuda")


def assert_same_views(got: Tensor, want: Tensor) -> None:
    """Within rounding, but for the few pixels it takes across the threshold of solarize."""
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.shape == want.shape
    assert ((got - want).abs() > 1e-4).double().mean() < 1e-4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("stored", "size"), [(32, 32), (28, 40), (64, 24), (96, 96)])
def test_fused_views_are_those_of_the_torch_path(channels: int, stored: int, size: int) -> None:
    images = torch.randint(256, (20, channels, stored, stored), dtype=torch.uint8, device="cuda")
    index = torch.tensor([3, 19, 0, 7, 7], device="cuda")
    parameters = view_parameters(images, 10)
    for stored_images in (images, images.float() / 255):
        want = gathered_views(stored_images, index, parameters, VIEWS, size=size, backend="torch")
        leave_nans_in_free_memory()
        got = gathered_views(stored_images, index, parameters, VIEWS, size=size, backend="triton")
        assert_same_views(got, want)
        half = gathered_views(
            stored_images, index, parameters, VIEWS, size=size, dtype=torch.bfloat16, backend="triton"
        )
        assert torch.equal(half, got.bfloat16())


def test_fused_views_replay_inside_a_cuda_graph_with_new_images_and_parameters() -> None:
    images = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index, static = torch.arange(8, device="cuda"), view_parameters(images, 16)
    graph, out = captured(lambda: gathered_views(images, index, static, VIEWS, backend="triton"))
    for seed in (1, 2):
        index.copy_(torch.randperm(50)[:8])
        static.values_NP.copy_(view_parameters(images, 16, seed).values_NP)
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, gathered_views(images, index, static, VIEWS, backend="auto"))
        assert_same_views(replayed, gathered_views(images, index, static, VIEWS, backend="torch"))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_fused_views_do_not_wait_for_the_device() -> None:
    images = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index, parameters = torch.arange(8, device="cuda"), view_parameters(images, 16)
    gathered_views(images, index, parameters, VIEWS, backend="triton")
    torch.cuda.set_sync_debug_mode("error")
    try:
        gathered_views(images, index, parameters, VIEWS, backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")


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


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")  # the sample's own, from its making
def test_a_graphed_callable_gives_the_gradients_of_the_loss(backend: str, dtype: torch.dtype) -> None:
    """What those use who call the loss from an eager loop: `torch.cuda.make_graphed_callables`."""
    objective = flatclr.FlatNCE(0.2, backend=backend).cuda()
    sample = tuple(torch.randn(600, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    graphed = torch.cuda.make_graphed_callables(flatclr.FlatNCE(0.2, backend=backend).cuda(), sample)
    for _ in range(2):
        z_a, z_b = (torch.randn(600, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
        expected = torch.autograd.grad(objective(z_a, z_b), (z_a, z_b))
        got = torch.autograd.grad(graphed(z_a, z_b), (z_a, z_b))
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.equal(mine, theirs)
