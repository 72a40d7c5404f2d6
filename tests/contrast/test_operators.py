"""The registered operators keep the contract of torch.library, and a compiled loss is one graph on Triton's routes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr import EssControl, Objective
from flatclr.contrast.asked import Asked
from flatclr.contrast.operators import contrast, contrast_backward, quantities_of
from tests.support.harness import CASES, PAIRINGS, Batch, Case
from tests.support.interpreter import interpreted, use_tiles

pytest.importorskip("triton")

from flatclr.contrast.kernels.fused_triton import Tiling

pytestmark = [
    *interpreted,
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # torch's own tracer
]
JS = "flatclr.objectives.device.f_divergence:js_gaussian"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, Tiling(32, 16, 4, 2))


def arguments(asked: Asked, *, queue: bool = False, scale: Tensor | None = None) -> tuple[Any, ...]:
    """Of the operator, with gradients wherever they can be."""
    z_a, z_b, rows = Batch.random(5, 4, queue=3).tensors(torch.float32)
    assert rows is not None
    phi_tensors = [torch.tensor(-0.5)] * asked.phi_kinds.count("t")
    queues = (rows.requires_grad_(), rows.detach()) if queue else (None, None)
    return z_a, z_b, *queues, scale, 3.0, phi_tensors, -0.5, 0.0, asked.text


@pytest.mark.parametrize(
    ("asked", "queue", "scale"),
    [
        (Asked("fused", "cross", 2, "inm", "", ""), True, torch.tensor(3.0, requires_grad=True)),
        (Asked("strips", "one_way", 2, "n", "", ""), True, torch.tensor(40.0)),
        (Asked("fused", "within", 2, "i", JS, "t"), False, None),
    ],
    ids=["learned_scale", "queue_alone", "phi_of_a_tensor"],
)
def test_the_operators_pass_torchs_own_checks(asked: Asked, queue: bool, scale: Tensor | None) -> None:
    given = arguments(asked, queue=queue, scale=scale)
    torch.library.opcheck(contrast, given)
    with torch.no_grad():
        values = contrast(*given)
    assert values.shape == (quantities_of(asked), values.shape[1])
    needs = [True, True, queue, scale is not None and scale.requires_grad]
    checks = ("test_schema", "test_faketensor")
    detached = tuple(x.detach() if isinstance(x, Tensor) else x for x in given)
    torch.library.opcheck(contrast_backward, (*detached, values, torch.ones_like(values), needs), test_utils=checks)


@pytest.mark.parametrize(
    ("route", "pairing"),
    [("dense", "two_view"), ("streamed", "one_way"), ("fused", "cross"), ("strips", "within")],
)
def test_a_compiled_model_and_loss_are_one_graph(route: str, pairing: str) -> None:
    """With the controller, which every update steps once, and a queue where the route takes one."""
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, objective = nn.Linear(6, 4), flatclr.FlatNCE(EssControl(0.4, rate=0.5), pairing=pairing, route=route)
        x = torch.randn(2, 7, 6)
        queue = None if route == "dense" else torch.randn(3, 4)

        def model_and_loss(
            x: Tensor, model: nn.Module = model, objective: Objective = objective, queue: Tensor | None = queue
        ) -> Tensor:
            loss: Tensor = objective(model(x[0]), model(x[1]), negatives=queue)
            return loss

        call = torch.compile(model_and_loss, backend="aot_eager", fullgraph=True) if compiled else model_and_loss
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            call(x).backward()  # a micro-batch
            loss = call(x)
            loss.backward()
            optimizer.step()
            assert objective.inverse_temperature != 10
        results.append((loss.detach(), model.weight.grad, objective.inverse_temperature))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def compiled_and_eager(make: Callable[[], Objective], views: tuple[Tensor, ...], **more: Any) -> None:
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        objective = make()
        call = torch.compile(objective, backend="aot_eager", fullgraph=True) if compiled else objective
        loss = call(*views, **more)
        inputs = [*views, *(p for p in objective.parameters() if p.requires_grad)]
        found.append((loss.detach(), *torch.autograd.grad(loss, inputs, allow_unused=True)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def _name(parameter: Case | str) -> str:
    return parameter if isinstance(parameter, str) else parameter.name


FAMILIES = ("holder_2", "fmicl_tsallis")


@pytest.mark.parametrize("case", [case for case in CASES if case.name in FAMILIES], ids=lambda case: case.name)
def test_a_compiled_objective_is_one_graph_with_the_fused_kernels(case: Case) -> None:
    z_a, z_b, _ = Batch.random(5, 4, pairing=case.pairing).tensors(torch.float32)
    compiled_and_eager(lambda: case.build(pairing=case.pairing, route="fused"), (z_a, z_b))


@pytest.mark.slow
@pytest.mark.parametrize("route", ["dense", "streamed", "fused", "strips"])
@pytest.mark.parametrize(("case", "pairing"), list(zip(CASES, itertools.cycle(PAIRINGS), strict=False)), ids=_name)
def test_every_objective_is_one_graph_on_every_route(case: Case, pairing: str, route: str) -> None:
    z_a, z_b, queue = Batch.random(5, 4, pairing=pairing, queue=3).tensors(torch.float32)
    for negatives in (None, queue):
        compiled_and_eager(lambda: case.build(pairing=pairing, route=route), (z_a, z_b), negatives=negatives)


def test_a_learned_temperature_is_learned_in_the_graph() -> None:
    z_a, z_b, queue = Batch.random(5, 4, queue=3).tensors(torch.float32)
    learned = {"learn_temperature": True, "pairing": "cross", "route": "fused"}
    compiled_and_eager(lambda: flatclr.InfoNCE(0.3, **learned), (z_a, z_b), negatives=queue)  # type: ignore[arg-type]


def test_one_graph_serves_batches_of_any_size() -> None:
    torch._dynamo.reset()
    objective = flatclr.InfoNCE(route="fused")
    call = torch.compile(objective, backend="aot_eager", fullgraph=True, dynamic=True)
    for pairs in (4, 9):
        z_a, z_b, _ = Batch.random(pairs, 4).tensors(torch.float32)
        (got,), (want,) = (torch.autograd.grad(loss(z_a, z_b), z_a) for loss in (call, objective))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_graph_looks_at_embeddings_when_it_runs() -> None:
    torch._dynamo.reset()
    call = torch.compile(flatclr.InfoNCE(check_embeddings=True), backend="aot_eager", fullgraph=True)
    z, other = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    (g,) = torch.autograd.grad(call(z, other), z)
    torch.testing.assert_close(g, torch.autograd.grad(flatclr.InfoNCE()(z, other), z)[0])
    with pytest.raises(ValueError, match=r"z_b must be finite, got NaN or Inf in 4 of 4 rows"):
        call(z, other * torch.nan)
    torch.library.opcheck(torch.ops.flatclr.usable_rows, (z, "z_a", True, False))


def test_a_graph_draws_from_the_generator_of_its_objective() -> None:
    torch._dynamo.reset()
    z_a, z_b, _ = Batch.random(9, 4).tensors(torch.float32)
    first = flatclr.InfoNCE(negatives_per_anchor=3, generator=torch.Generator().manual_seed(5))
    objectives = first, copy.deepcopy(first)  # each with a generator of its own
    call = torch.compile(objectives[1], backend="aot_eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(call(z_a, z_b), objectives[0](z_a, z_b))


def test_operators_that_ask_the_ranks_are_the_identity_in_one_process() -> None:
    z, mine = torch.randn(4, 3, requires_grad=True), [4, 3, 0, 0, 2]
    torch.library.opcheck(torch.ops.flatclr.agreed_view, (z, mine))
    torch.library.opcheck(torch.ops.flatclr.from_first_rank, (torch.arange(6),))
    agreed = torch.ops.flatclr.agreed_view(z, mine)
    assert torch.equal(agreed, z)
    assert torch.equal(torch.autograd.grad(agreed.sum(), z)[0], torch.ones_like(z))
