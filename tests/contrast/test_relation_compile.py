"""torch.compile(objective) gives the same loss and gradient in one graph, whatever is said of the samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flatclr
from tests.support.relation_harness import CASES, RELATIONS, Tensors, problem_of

NAMED = {case.name: case for case in CASES}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracer
@pytest.mark.parametrize(
    ("name", "relation", "route"),
    [("flat_nce", "views", "dense"), ("info_nce", "some_labels", "streamed"), ("sup_con_inside", "margin", "dense")],
)
def test_a_compiled_objective_gives_the_same_loss_and_gradient(name: str, relation: str, route: str) -> None:
    torch._dynamo.reset()
    problem = problem_of(3, **RELATIONS[relation])
    results = []
    for compiled in (False, True):
        tensors, objective = Tensors.of(problem), NAMED[name].objective(problem, route=route)
        call = torch.compile(objective, backend="aot_eager", fullgraph=True) if compiled else objective
        loss = call(*tensors.views, **tensors.brought)
        results.append((loss.detach(), *torch.autograd.grad(loss, tensors.leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def lengths(objective: flatclr.Objective) -> Callable[[Tensor, Tensor], Tensor]:
    """Of three views and a queue that are used as they are: what comes and what is contrasted is one tensor."""
    return lambda z, queue: objective(z, 2 * z, 3 * z, negatives=queue)


def the_same_twice(objective: flatclr.Objective) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, queue: objective(z, z, negatives=queue)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("options", [{"route": "streamed"}, {"route": "strips", "backend": "torch"}], ids=str)
@pytest.mark.parametrize("kind", [lengths, the_same_twice])
def test_a_graph_takes_no_tensor_twice(kind: Callable[..., Callable[..., Tensor]], options: dict[str, str]) -> None:
    torch._dynamo.reset()
    call = kind(flatclr.InfoNCE(1.0, normalize=False, **options))
    z, queue = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    results = []
    for loss_of in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        loss = loss_of(z, queue)
        results.append((loss.detach(), *torch.autograd.grad(loss, (z, queue))))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
