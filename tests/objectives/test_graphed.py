"""A loss that captures itself: when it does not and what it says, and that replays are eager calls; by hand on a CPU."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr import EssControl, Objective
from flatclr.contrast import Options
from flatclr.distributed import Ranks
from flatclr.objectives import graphed
from flatclr.objectives.graphed import GraphedCalls, why_not_graphed


class ByHand:
    """Replays by doing the work again; counts what was captured and replayed."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Callable[[], None], **_: Any) -> tuple[SimpleNamespace, None]:
        self.captures += 1
        with_gradient = torch.is_grad_enabled()
        work()

        def replay() -> None:
            self.replays += 1
            with torch.set_grad_enabled(with_gradient):
                work()

        return SimpleNamespace(replay=replay), None


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    """Calls are captured on the CPU too, which has no graphs; a capture there takes a step of the controller."""
    recorder = ByHand()
    capture_without_a_trace = graphed.CapturedCall.of.__func__  # type: ignore[attr-defined]

    def of(module: torch.nn.Module, *arguments: Any) -> Any:
        before = [(x, x.clone()) for x in module.buffers()]
        call = capture_without_a_trace(graphed.CapturedCall, module, *arguments)
        for x, value in before:
            x.copy_(value)
        return call

    monkeypatch.setattr(graphed, "captured", recorder)
    monkeypatch.setattr(graphed.CapturedCall, "of", of)
    monkeypatch.setattr(graphed, "why_not_graphed", lambda *_: None)
    return recorder


def views(pairs: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    z = torch.randn(2, pairs, 4, generator=torch.Generator().manual_seed(seed))
    return z[0].clone().requires_grad_(), z[1].clone().requires_grad_()


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: flatclr.InfoNCE(0.2, **o),
        lambda **o: flatclr.FlatNCE(EssControl(0.4, rate=0.3), **o),
        lambda **o: flatclr.InfoNCE(0.2, learn_temperature=True, pairing="cross", **o),
        lambda **o: flatclr.FLO(0.2, **o),
    ],
    ids=["fixed", "controlled", "learned", "parameters"],
)
def test_replays_are_eager_calls_bit_by_bit(make: Callable[..., Objective], by_hand: ByHand) -> None:
    eager, replayed = make(), make(graphed=True)
    for step in range(4):
        for scaled in (1.0, 1024.0):  # as a gradient scaler does
            found = []
            for objective in (eager, replayed):
                z_a, z_b = views(seed=step)
                loss = objective(z_a, z_b)
                (scaled * loss).backward()
                torch.optim.SGD([z_a], lr=0.0).step()  # the controller's step
                parameters = [p.grad for p in objective.parameters()]
                found.append([loss.detach(), z_a.grad, z_b.grad, *parameters, *objective.buffers()])
            for mine, theirs in zip(*found, strict=True):
                assert torch.equal(mine, theirs)
    assert by_hand.captures == 2
    assert by_hand.replays == 16


def test_a_queue_hard_negatives_and_a_view_without_gradient_are_inputs_too(by_hand: ByHand) -> None:
    z_a, z_b = views()
    z_b = z_b.detach()
    queue, hard = torch.randn(5, 4, requires_grad=True), torch.randn(8, 2, 4, requires_grad=True)
    eager, replayed = flatclr.InfoNCE(0.2), flatclr.InfoNCE(0.2, graphed=True)
    for scale in (1.0, 2.0):
        losses = [f(z_a, z_b, negatives=queue * scale, hard_negatives=hard + scale) for f in (eager, replayed)]
        for mine, theirs in zip(*(torch.autograd.grad(x, (z_a, queue, hard)) for x in losses), strict=True):
            assert torch.equal(mine, theirs)
    assert by_hand.replays == 4


def test_a_loss_that_waits_for_backward_is_not_overwritten(by_hand: ByHand) -> None:
    objective, pairs = flatclr.InfoNCE(0.2, graphed=True), [views(seed=seed) for seed in range(2)]
    first = objective(*pairs[0])
    with pytest.warns(UserWarning, match="an earlier loss still waits for its backward pass; it runs eagerly"):
        second = objective(*pairs[1])
    for loss, (z_a, z_b) in zip((first, second), pairs, strict=True):
        got, want = (torch.autograd.grad(x, z_a)[0] for x in (loss, flatclr.InfoNCE(0.2)(z_a, z_b)))
        assert torch.equal(got, want)
    del first, second
    replays = by_hand.replays
    for _ in range(3):
        objective(*pairs[0])  # dropped at once, so nothing waits
    assert by_hand.replays == replays + 3


def test_a_second_backward_pass_is_refused(by_hand: ByHand) -> None:
    z_a, z_b = views()
    loss = flatclr.InfoNCE(0.2, graphed=True)(z_a, z_b)
    torch.autograd.grad(loss, z_a, retain_graph=True)
    with pytest.raises(RuntimeError, match=r"a graphed loss must be differentiated once, got a second backward pass"):
        torch.autograd.grad(loss, z_a)


def test_what_a_graph_depends_on_makes_another(by_hand: ByHand) -> None:
    objective, (z_a, z_b) = flatclr.InfoNCE(0.2, graphed=True), views()

    def captures(**state: float) -> int:
        vars(objective.scale).update(state)
        want = flatclr.InfoNCE(1 / objective.scale.inverse_temperature)(z_a, z_b)
        torch.testing.assert_close(objective(z_a, z_b), want)
        return by_hand.captures

    assert captures() == 2
    assert captures() == 2
    assert captures(inverse_temperature=7.0) == 4
    with torch.no_grad():
        assert captures() == 5  # forward alone
    with torch.inference_mode():
        assert captures() == 6
    objective.eval()
    assert captures() == 8
    assert captures(inverse_temperature=5.0) == 10


def test_under_autocast_weights_are_rounded_anew_by_every_replay(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast keeps what it has rounded: a graph would go on reading the weights of its capture."""
    without_cache: list[Any] = []

    class Autocast(nullcontext[None]):
        def __init__(self, *_: Any, cache_enabled: bool = True, **options: Any) -> None:
            super().__init__()
            if not cache_enabled:
                without_cache.append(options["dtype"])

    monkeypatch.setattr(torch, "autocast", Autocast)
    objective, pairs = flatclr.FLO(0.2, graphed=True), views()

    def captures(dtype: torch.dtype | None) -> int:
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: dtype is not None)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda *_: dtype)
        without_cache.clear()
        objective(*pairs)
        assert set(without_cache) == ({dtype} if dtype is not None else set())
        return by_hand.captures

    assert [captures(dtype) for dtype in (None, torch.bfloat16, torch.float16, torch.bfloat16, None)] == [2, 4, 6, 6, 6]


def test_after_a_few_shapes_calls_are_eager_and_say_so(by_hand: ByHand) -> None:
    objective = flatclr.InfoNCE(0.2, graphed=True)
    for pairs in range(2, 2 + graphed.MOST_SHAPES):
        objective(*views(pairs)).backward()
    with pytest.warns(UserWarning, match=r"InfoNCE is not captured in a CUDA graph: calls came in more than 8 shapes"):
        objective(*views(30))
    replays = by_hand.replays
    objective(*views(30))
    assert by_hand.replays == replays


def test_what_cannot_be_captured_is_tried_once(monkeypatch: pytest.MonkeyPatch, by_hand: ByHand) -> None:
    def broken(work: Callable[[], None], **_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphed, "captured", broken)
    objective, (z_a, z_b) = flatclr.InfoNCE(0.2, graphed=True), views()
    with pytest.warns(UserWarning, match=r"graph: operation not permitted when stream is capturing; it runs eagerly"):
        loss = objective(z_a, z_b)
    assert torch.equal(loss, flatclr.InfoNCE(0.2)(z_a, z_b))
    assert torch.equal(objective(z_a, z_b), loss)  # without another warning, which would be an error here


def test_labels_in_a_list_are_not_captured(by_hand: ByHand) -> None:
    objective = flatclr.InfoNCE(0.2, graphed=True)
    with pytest.warns(UserWarning, match="not all it was given are tensors; it runs eagerly"):
        loss = objective(*views(4), labels=[0, 0, 1, 1])  # type: ignore[arg-type]
    assert torch.equal(loss, flatclr.InfoNCE(0.2)(*views(4), labels=torch.tensor([0, 0, 1, 1])))
    assert by_hand.captures == 0


@pytest.mark.filterwarnings("ignore:.*not all it was given are tensors")
def test_bad_input_is_refused_as_ever(by_hand: ByHand) -> None:
    with pytest.raises(ValueError, match="must have the same shape"):
        flatclr.InfoNCE(graphed=True)(torch.randn(4, 3), torch.randn(5, 3))
    with pytest.raises(ValueError, match="at least 2 views, got 0"):
        flatclr.InfoNCE(graphed=True)()
    with pytest.raises(TypeError, match=r"z_a must be a torch\.Tensor"):
        flatclr.InfoNCE(graphed=True)([[1.0]], torch.randn(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="graphed must be True or False, got 1; pass a bool"):
        flatclr.InfoNCE(graphed=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="option of contrast_stats must be one of"):
        flatclr.contrast_stats(*views(), inverse_temperature=1.0, graphed=True)


def test_on_a_cpu_calls_are_eager_and_say_so_once() -> None:
    (z_a, z_b), control = views(), EssControl(0.4)
    objective = flatclr.FlatNCE(control, graphed=True)
    with pytest.warns(
        UserWarning, match=r"FlatNCE is not captured .*: the embeddings are on the CPU; it runs eagerly"
    ) as told:
        loss = objective(z_a, z_b)
    assert told[0].filename == __file__
    assert torch.equal(loss, flatclr.FlatNCE(EssControl(0.4))(z_a, z_b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective(z_a, z_b)
        objective.with_stats(z_a, z_b)
    assert "graphed=True" in repr(objective)
    assert flatclr.PairSet.of(z_a, z_b, **objective.options).negatives == 14  # which takes no graphed


def test_copies_have_graphs_of_their_own() -> None:
    objective = flatclr.InfoNCE(0.2, graphed=True)
    for again in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert isinstance(again._graphs, GraphedCalls)
        assert again._graphs is not objective._graphs
        with pytest.warns(UserWarning, match="on the CPU"):
            assert torch.equal(again(*views()), flatclr.InfoNCE(0.2)(*views()))


ON_GPU = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("objective", "options", "brings", "reason"),
    [
        (flatclr.InfoNCE(), {"negatives_per_anchor": 3}, {}, "it draws negatives anew"),
        (flatclr.InfoNCE(), {"check_embeddings": True}, {}, "check_embeddings looks"),
        (flatclr.InfoNCE(), {}, {"labels": None}, "labels, ids and a margin choose other pairs"),
        (flatclr.InfoNCE(), {"false_negative_margin": 0.1}, {}, "labels, ids and a margin choose other pairs"),
        (flatclr.FlatNCE(EssControl()), {}, {}, "its temperature or parameters are not on cuda:0; move the objective"),
        (flatclr.InfoNCE(), {"gather": True}, {}, "several processes share the batch"),
    ],
    ids=["drawn", "checked", "labels", "margin", "controller", "ranks"],
)
def test_what_differs_from_call_to_call_is_not_captured(
    objective: Objective, options: Any, brings: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: Any = {"0": ON_GPU, **brings}
    assert why_not_graphed(flatclr.InfoNCE(), {"0": ON_GPU}, Options()) is None  # type: ignore[dict-item]
    monkeypatch.setattr(graphed.distributed, "ranks_sharing_a_batch", lambda gather: Ranks(0, 2) if gather else Ranks())
    found = why_not_graphed(objective, inputs, Options(**options))
    assert found is not None
    assert found.startswith(reason)
