"""torch.compile(objective) gives the same loss and gradient in one graph, whatever is said of the samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flatclr
from tests.support.interpreter import interpreted
from tests.support.relation_harness import CASES, RELATIONS, Tensors, problem_of

NAMED = {case.name: case for case in CASES}
TRACED = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracer
MARKS = [*interpreted, TRACED]


@TRACED
@pytest.mark.parametrize(
    ("name", "relation", "route"),
    [("flat_nce", "views", "dense"), ("info_nce", "some_labels", "streamed"), ("sup_con_inside", "margin", "dense")],
)
def test_a_compiled_objective_gives_the_same_loss_and_gradient(name: str, relation: str, route: str) -> None:
    compiled_and_eager(name, relation, torch.float64, route=route)


def compiled_and_eager(name: str, relation: str, dtype: torch.dtype, **options: str) -> None:
    torch._dynamo.reset()
    problem = problem_of(3, **RELATIONS[relation])
    results = []
    for compiled in (False, True):
        tensors, objective = Tensors.of(problem, dtype), NAMED[name].objective(problem, **options).to(dtype)
        call = torch.compile(objective, backend="aot_eager", fullgraph=True) if compiled else objective
        loss = call(*tensors.views, **tensors.brought)
        leaves = [*tensors.leaves, *(p for p in objective.parameters() if p.requires_grad)]
        results.append((loss.detach(), *torch.autograd.grad(loss, leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


class TestStripsInTriton:
    """Kernels that a graph holds as registered operators."""

    pytestmark = MARKS

    @pytest.fixture(autouse=True)
    def _small_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        strips_triton = pytest.importorskip("flatclr.contrast.kernels.strips_triton")
        small = strips_triton.Tiling(16, 16, 16, warps=4, stages=2, group=2)
        for table in (strips_triton.SUMS_TILING, strips_triton.WEIGHTS_TILING):
            monkeypatch.setitem(table, 4, small)
        monkeypatch.setattr(strips_triton, "PRODUCT_ROWS", 16)

    @pytest.mark.parametrize(
        ("name", "relation"),
        [
            ("info_nce", "everything"),
            ("fmicl_js", "some_labels"),
        ],
    )
    def test_a_relation_by_strips_is_one_graph(self, name: str, relation: str) -> None:
        compiled_and_eager(name, relation, torch.float32, route="strips", backend="triton")

    @pytest.mark.slow
    @pytest.mark.parametrize("relation", RELATIONS)
    @pytest.mark.parametrize(
        "name", ["flat_nce", "sup_con_inside", "sup_con_outside", "siglip", "holder_2", "rpc", "dhel", "nwj"]
    )
    def test_every_relation_by_strips_is_one_graph(self, name: str, relation: str) -> None:
        compiled_and_eager(name, relation, torch.float32, route="strips", backend="triton")

    @pytest.mark.slow
    def test_one_graph_serves_batches_of_any_size(self) -> None:
        torch._dynamo.reset()
        objective = flatclr.InfoNCE(route="strips", backend="triton")
        call = torch.compile(objective, backend="aot_eager", fullgraph=True, dynamic=True)
        torch._dynamo.utils.counters.clear()
        for samples in (4, 9):
            z = torch.randn(3, samples, 5, requires_grad=True)
            labels = torch.arange(samples) // 2
            (got,), (want,) = (torch.autograd.grad(loss(z, labels=labels), z) for loss in (call, objective))
            torch.testing.assert_close(got, want)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    def test_a_temperature_of_every_anchor_learns_in_a_graph(self) -> None:
        torch._dynamo.reset()
        views = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
        results = []
        for compiled in (False, True):
            z, beta_A = views.clone().requires_grad_(), torch.linspace(1, 5, 15).requires_grad_()

            def loss_of(z: Tensor, beta_A: Tensor) -> Tensor:
                options = {"route": "strips", "backend": "triton", "labels": torch.tensor([0, 1, 1, 0, 2])}
                return flatclr.contrast_stats(z, inverse_temperature=beta_A, **options).info_nce.mean()

            call = torch.compile(loss_of, backend="aot_eager", fullgraph=True) if compiled else loss_of
            loss = call(z, beta_A)
            results.append((loss.detach(), *torch.autograd.grad(loss, (z, beta_A))))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)

    @pytest.mark.parametrize("kind", ["log-sum-exp", "phi"])
    def test_the_operators_pass_torchs_own_checks(self, kind: str) -> None:
        from flatclr.contrast.asked import Asked
        from flatclr.contrast.selected_operators import selected_pairs, selected_pairs_backward

        rows, queue = torch.randn(2, 5, 4), torch.randn(3, 4)
        labels, queue_labels = torch.tensor([0, 1, 1, 0, 2]).int(), torch.tensor([2, 1, 0]).int()
        phi = "flatclr.contrast.kernels.phi_device:softplus_of_minus" if kind == "phi" else ""
        switches = "inpd" if kind == "phi" else "inqm"
        shift = torch.zeros(10, requires_grad=True) if kind == "phi" else None
        scale = None if kind == "phi" else torch.tensor(3.0, requires_grad=True)
        queues = (None, None) if kind == "phi" else (queue.requires_grad_(), None)
        codes = labels, None, None if kind == "phi" else queue_labels, None
        asked = Asked("strips", "views", 2, switches, phi, "")
        given = (rows.clone().requires_grad_(), rows.flatten(0, 1), *queues, scale, 3.0, shift, *codes)
        given = (*given, None, None, [], 0.0, 0.0, asked.text)
        torch.library.opcheck(selected_pairs, given)
        with torch.no_grad():
            values_QA, count_A = selected_pairs(*given)
        needs = [True, kind != "phi", kind != "phi", kind == "phi"]
        detached = tuple(x.detach() if isinstance(x, Tensor) else x for x in given)
        more = (values_QA, count_A, torch.ones_like(values_QA[0]), needs)
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(selected_pairs_backward, (*detached[1:], *more), test_utils=checks)


def lengths(objective: flatclr.Objective) -> Callable[[Tensor, Tensor], Tensor]:
    """Of three views and a queue that are used as they are: what comes and what is contrasted is one tensor."""
    return lambda z, queue: objective(z, 2 * z, 3 * z, negatives=queue)


def the_same_twice(objective: flatclr.Objective) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, queue: objective(z, z, negatives=queue)


@TRACED
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
