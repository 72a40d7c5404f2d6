"""Objectives on a CUDA device: the numbers of the CPU, without waiting, and inside a CUDA graph."""

import copy
import time

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import EssControl
from flatclr.contrast.kernels import tiled_torch
from tests.support.cuda import captured, gradients, needs_cuda, on_device
from tests.support.harness import Batch, Case, every_case

pytestmark = needs_cuda


@every_case
@pytest.mark.parametrize("pairs", [5, 700])
def test_cuda_gives_the_numbers_of_the_cpu(case: Case, pairs: int, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if pairs > 100 and route == "streamed":
        monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 512)
    batch = Batch.random(pairs, 16, pairing=case.pairing, queue=7)
    z_a, z_b, queue = batch.tensors()
    expected = gradients(case.objective(batch, route=route), z_a, z_b, queue)
    got = gradients(case.objective(batch, route=route).cuda(), *on_device(batch, torch.float64))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-9, atol=1e-11)


@every_case
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_step_waits_for_the_device(case: Case, route: str) -> None:
    batch = Batch.random(6, 8, pairing=case.pairing)
    z_a, z_b, _ = on_device(batch, torch.float32)
    objective = case.build(pairing=case.pairing, route=route).cuda()
    gradients(objective, z_a, z_b, None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(objective, z_a, z_b, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_controlled_step_replays_inside_a_cuda_graph(route: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 8, device="cuda", requires_grad=True)
    x = torch.randn(2, 12, 16, device="cuda")
    control = EssControl(target=0.3).cuda()
    objective = flatclr.FlatNCE(control, route=route).cuda()

    def step() -> Tensor:
        loss = objective(x[0] @ weight, x[1] @ weight)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        control.advance()
        return loss.detach()

    start, untouched = weight.detach().clone(), {name: x.clone() for name, x in control.state_dict().items()}
    graph, loss = captured(step)

    def reset() -> None:
        with torch.no_grad():
            weight.copy_(start)
        control.load_state_dict(untouched)

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


def test_the_controller_steps_in_one_launch_as_on_the_cpu() -> None:
    pytest.importorskip("triton")
    here, there = flatclr.EssControl(target=0.3, initial=99.0), flatclr.EssControl(target=0.3, initial=99.0).cuda()
    assert there._runs_in_one_launch(torch.tensor(0.5, device="cuda"))
    for ess in (0.9, 0.9, 0.1, 0.3, float("nan"), 0.66, *[0.2] * 8, 0.64, 0.9, 0.9):
        here.observe(torch.tensor(ess))
        there.observe(torch.tensor(ess, device="cuda"))
        for name, value in there.state_dict().items():
            assert torch.equal(value.cpu(), here.state_dict()[name]), (ess, name)


GRAPHED = {
    "dense": lambda **o: flatclr.InfoNCE(0.1, **o),
    "controlled": lambda **o: flatclr.FlatNCE(EssControl(0.25, rate=0.2), **o),
    "cross, learned": lambda **o: flatclr.InfoNCE(0.1, learn_temperature=True, pairing="cross", **o),
    "phi": lambda **o: flatclr.FMICL("js", **o),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("pairs", "d"), [(16, 64), (1100, 64), (1100, 384)])
@pytest.mark.parametrize("name", GRAPHED)
def test_a_graphed_loss_is_the_eager_one_bit_by_bit(name: str, pairs: int, d: int, dtype: torch.dtype) -> None:
    """Through steps of the controller, changing upstream gradients, another shape in between, and a queue."""
    objectives = [GRAPHED[name](**options).cuda() for options in ({}, {"graphed": True})]
    for step in range(4):
        generator = torch.Generator("cuda").manual_seed(step)
        size = pairs if step != 2 else pairs // 2
        z_a, z_b = torch.randn(2, size, d, device="cuda", generator=generator).to(dtype).unbind()
        queue = torch.randn(40, d, device="cuda", generator=generator).to(dtype) if step != 1 else None
        found = []
        for objective in objectives:
            views = [z.clone().requires_grad_() for z in (z_a, z_b)]
            loss = objective(*views, negatives=queue)
            (loss * 2.0**step).backward()
            torch.optim.SGD(views, lr=0.0).step()  # the controller's step
            moved = [p.grad for p in objective.parameters()]
            found.append([loss.detach(), *(v.grad for v in views), *moved, *objective.buffers()])
            objective.zero_grad()
        for mine, theirs in zip(*found, strict=True):
            assert torch.equal(mine, theirs)
    assert objectives[1]._graphs.captured
    assert not objectives[1]._graphs.told


class OfPair(torch.nn.Module):
    """A number of each pair, by a layer that autocast rounds."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(d, d)

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return (self.linear(z_a) * z_b).sum(1).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_graphed_loss_under_autocast_follows_its_weights(dtype: torch.dtype) -> None:
    """Rounded weights that a capture had kept would be those of the first step for ever."""
    torch.manual_seed(0)
    u = OfPair(64)
    eager, replayed = (flatclr.FLO(0.2, u=copy.deepcopy(u), graphed=graphed).cuda() for graphed in (False, True))
    z_a, z_b = torch.randn(2, 64, 64, device="cuda").unbind()
    for step in range(4):
        found = []
        for objective in (eager, replayed):
            with torch.autocast("cuda", dtype=dtype):
                loss = objective(z_a, z_b)
            found.append([loss.detach(), *torch.autograd.grad(loss, list(objective.parameters()))])
            with torch.no_grad():
                for p in objective.parameters():
                    p.mul_(1.0 + 0.1 * step)
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert replayed._graphs.captured
    assert not replayed._graphs.told


def test_a_graphed_loss_takes_less_of_the_host() -> None:
    views = [torch.randn(64, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    times = {}
    for graphed in (False, True):
        objective = flatclr.FlatNCE(EssControl(0.25), graphed=graphed).cuda()
        for _ in range(5):
            torch.autograd.grad(objective(*views), views)
        found = []
        for _ in range(50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            torch.autograd.grad(objective(*views), views)
            found.append(time.perf_counter() - start)  # without what the device, which others may share, takes after it
        times[graphed] = sorted(found)[25]
    assert times[True] < times[False] / 2


def test_a_graphed_loss_trains_inside_somebody_elses_graph_and_without_gradient() -> None:
    views = [torch.randn(16, 8, device="cuda", requires_grad=True) for _ in range(2)]
    objective = flatclr.InfoNCE(0.1, graphed=True)
    want = flatclr.InfoNCE(0.1)(*views)
    graph, loss = captured(lambda: objective(*views))
    graph.replay()
    assert torch.equal(loss, want)
    with torch.no_grad():
        assert torch.equal(objective(*views), want)


@pytest.mark.parametrize("reads", [True, False])
def test_a_loss_that_waits_for_the_device_is_not_captured(reads: bool) -> None:
    class Reading(flatclr.InfoNCE):
        def loss(self, pairs, inverse_temperature):  # type: ignore[no-untyped-def]
            if reads:
                pairs.views[0].sum().item()
            return super().loss(pairs, inverse_temperature)

    views = [torch.randn(16, 8, device="cuda", requires_grad=True) for _ in range(2)]
    objective = Reading(0.1, graphed=True)
    if reads:
        with pytest.warns(UserWarning, match="Reading is not captured in a CUDA graph: it waits for the device"):
            loss = objective(*views)
    else:
        loss = objective(*views)
    assert torch.equal(loss, flatclr.InfoNCE(0.1)(*views))
