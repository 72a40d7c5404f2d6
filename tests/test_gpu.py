"""The same numbers on a CUDA device, without waiting for it, and inside a CUDA graph."""

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import EssControl, Objective
from tests.harness import CASES, Batch, Case

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
        request.getfixturevalue("monkeypatch").setattr(flatclr.kernels.tiled_torch, "tile_edge", lambda device: 512)
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
        monkeypatch.setattr(flatclr.pairs, "LARGEST_KEPT", 0)
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
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

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
