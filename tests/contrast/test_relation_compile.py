"""torch.compile(objective) gives the same loss and gradient in one graph, whatever is said of the samples."""

from __future__ import annotations

import pytest
import torch

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
