"""Optimizers against explicit loops, and the schedule at its corners."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import flatclr
from flatclr.models import build_encoder, build_head
from flatclr.optim import (
    LARS,
    OPTIMIZERS,
    build_optimizer,
    scaled_learning_rate,
    set_learning_rate,
    warmup_cosine,
)

Arrays = list[np.ndarray[Any, Any]]


def lars_loop(
    weights: Arrays, gradients: list[Arrays], *, lr: float, momentum: float, decay: float, trust: float
) -> Arrays:
    """You et al. 2017, Algorithm 1, tensor by tensor."""
    weights = [w.copy() for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    for step in gradients:
        for i, g in enumerate(step):
            w_norm, g_norm = np.sqrt((weights[i] ** 2).sum()), np.sqrt((g**2).sum())
            local = trust * w_norm / (g_norm + decay * w_norm) if w_norm > 0 and g_norm + decay * w_norm > 0 else 1.0
            velocities[i] = momentum * velocities[i] + lr * local * (g + decay * weights[i])
            weights[i] = weights[i] - velocities[i]
    return weights


@pytest.mark.parametrize("decay", [0.0, 1e-2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)])
def test_lars_equals_an_explicit_loop(decay: float, momentum: float, rate: Any) -> None:
    shapes = [(3, 4), (2, 3, 5, 1), (7,), (2, 2)]
    start = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    start[3][:] = 0  # a zero tensor has no norm to scale with
    gradients = [
        [np.random.default_rng(10 * s + i).normal(size=shape) for i, shape in enumerate(shapes)] for s in range(5)
    ]
    weights = [nn.Parameter(torch.from_numpy(w.copy())) for w in start]
    optimizer = LARS(weights, rate, momentum=momentum, weight_decay=decay, trust=0.02)
    for step in gradients:
        for w, g in zip(weights, step, strict=True):
            w.grad = torch.from_numpy(g.copy())
        optimizer.step()
    expected = lars_loop(start, gradients, lr=0.5, momentum=momentum, decay=decay, trust=0.02)
    for w, e in zip(weights, expected, strict=True):
        np.testing.assert_allclose(w.detach().numpy(), e, rtol=1e-7, atol=1e-9)


def test_lars_step_has_the_length_the_weights_set_whatever_the_gradient() -> None:
    for scale in (1e-3, 1.0, 1e3):
        w = nn.Parameter(torch.full((4, 4), 2.0))
        w.grad = scale * torch.randn(4, 4)
        LARS([w], lr=1.0, trust=0.001).step()
        assert (w - 2).norm().item() == pytest.approx(0.001 * 8, rel=1e-3)


def test_lars_without_adaptation_is_sgd() -> None:
    """At a constant rate: momentum holds lr times what SGD's holds."""
    ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    lars = LARS([ours], lr=0.1, weight_decay=0.01, adapt=False)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(6):
        ours.grad = torch.randn(3)
        theirs.grad = ours.grad.clone()
        lars.step()
        sgd.step()
    torch.testing.assert_close(ours, theirs)


def test_lars_passes_over_parameters_without_gradient_and_returns_the_closure() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([used, unused], lr=0.1)

    def closure() -> float:
        loss = used.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))


def test_lars_norms_do_not_overflow_in_half_precision() -> None:
    w = nn.Parameter(torch.full((300, 300), 300.0, dtype=torch.float16))  # norm 90,000 > 65,504
    w.grad = torch.full_like(w, 300.0)
    LARS([w], lr=1.0, trust=0.01).step()
    torch.testing.assert_close(w.detach(), torch.full_like(w, 297.0))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("capturable", [False, True])
def test_a_resumed_optimizer_continues_exactly(name: str, capturable: bool) -> None:
    def steps(module: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()

    def fresh() -> torch.optim.Optimizer:
        return build_optimizer(name, module, learning_rate=0.1, weight_decay=0.01, capturable=capturable)

    module = nn.Linear(3, 2)
    optimizer = fresh()
    steps(module, optimizer, range(3))
    weights, state = copy.deepcopy(module.state_dict()), copy.deepcopy(optimizer.state_dict())
    steps(module, optimizer, range(3, 6))
    expected = copy.deepcopy(module.state_dict())
    module.load_state_dict(weights)
    optimizer = fresh()
    optimizer.load_state_dict(state)
    steps(module, optimizer, range(3, 6))
    assert all(torch.equal(value, expected[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_only_matrices_and_kernels_are_decayed(name: str, norm: str) -> None:
    encoder = build_encoder("resnet18", channels=3, image_size=32, width=4, norm=norm)
    head = build_head(encoder.features, norm=norm)
    objective = flatclr.InfoNCE(learn_temperature=True)
    optimizer = build_optimizer(name, [encoder, head, objective], learning_rate=0.1, weight_decay=1e-4)
    decayed, *others = optimizer.param_groups
    assert (decayed["weight_decay"], *(group["weight_decay"] for group in others)) == (1e-4, *(0 for _ in others))
    adapted = (True, False, False) if name == "lars" else (None, None, None)
    assert all(group.get("adapt") == adapts for group, adapts in zip((decayed, *others), adapted, strict=False))
    kernels = [m.weight for root in (encoder, head) for m in root.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert {id(p) for p in decayed["params"]} == {id(p) for p in kernels}
    everything = [p for root in (encoder, head, objective) for p in root.parameters()]
    assert len(everything) == sum(len(group["params"]) for group in optimizer.param_groups)
    assert any(p.dim() == 0 for p in others[-1]["params"])  # the temperature


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(("name", "share"), [("sgd", 0.01), ("lars", 0.01), ("adamw", 1.0)])
def test_single_numbers_learn_at_a_share_of_the_rate(name: str, share: float, capturable: bool) -> None:
    """Adam's steps do not grow with the gradient, those of others do."""
    modules = [nn.Linear(2, 2), flatclr.SigLIP(0.1)]
    if capturable and name == "adamw":
        pytest.skip("AdamW that can be captured needs a CUDA device")
    optimizer = build_optimizer(name, modules, learning_rate=0.5, weight_decay=0.0, capturable=capturable)
    for rate in (0.5, 0.25):
        for group in optimizer.param_groups:
            single = all(p.dim() == 0 for p in group["params"])
            assert float(group["lr"]) == pytest.approx(rate * (share if single else 1.0))
        set_learning_rate(optimizer, 0.5, 0.5)


def test_a_layer_norm_over_several_dimensions_is_not_decayed() -> None:
    optimizer = build_optimizer("adamw", nn.LayerNorm((3, 4)), learning_rate=0.1, weight_decay=0.1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0]


def test_shared_and_frozen_parameters_are_counted_once_and_not_at_all() -> None:
    encoder = nn.Linear(2, 2, bias=False)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    optimizer = build_optimizer("sgd", [encoder, nn.Sequential(encoder), frozen], learning_rate=0.1, weight_decay=0.1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    with pytest.raises(ValueError, match="modules must have parameters that need a gradient, got none; unfreeze"):
        build_optimizer("sgd", frozen, learning_rate=0.1, weight_decay=0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("capturable", [False, True])
def test_the_learning_rate_is_set_in_every_group(name: str, capturable: bool) -> None:
    module = nn.Linear(2, 2)
    optimizer = build_optimizer(name, module, learning_rate=1.0, weight_decay=0.0, capturable=capturable)
    rates = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.4, 0.25)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1, 0.1])
    if capturable:  # a captured step reads the same memory
        assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
    before = copy.deepcopy(module.state_dict())
    set_learning_rate(optimizer, 0.4, 0.0)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_capturable_steps_equal_the_plain_ones(name: str) -> None:
    modules = [nn.Linear(3, 2) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    for module, capturable in zip(modules, (False, True), strict=True):
        optimizer = build_optimizer(name, module, learning_rate=0.1, weight_decay=0.1, capturable=capturable)
        for step in range(4):
            set_learning_rate(optimizer, 0.1, 1 / (step + 1))
            optimizer.zero_grad()
            module(torch.eye(3)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(modules[0].weight, modules[1].weight)


def test_a_lars_step_never_waits_for_the_device() -> None:
    with FakeTensorMode():
        module = nn.Linear(3, 2)
        optimizer = build_optimizer("lars", module, learning_rate=0.1, weight_decay=0.1, capturable=True)
        module(torch.randn(4, 3)).sum().backward()
        set_learning_rate(optimizer, 0.1, 0.5)
        optimizer.step()


@pytest.mark.parametrize(("rule", "expected"), [("linear", 0.0375), ("sqrt", 0.3 * 8**-0.5), ("none", 0.3)])
def test_the_learning_rate_scales_by_its_rule(rule: str, expected: float) -> None:
    assert scaled_learning_rate(0.3, 32, rule) == pytest.approx(expected)
    assert scaled_learning_rate(0.3, 256, rule) == 0.3
    assert scaled_learning_rate(0.3, 64, rule, reference_batch=64) == 0.3


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_the_schedule_rises_to_one_at_the_warm_up_and_falls_to_its_end(final: float) -> None:
    at = [warmup_cosine(step, total_steps=100, warmup_steps=10, final=final) for step in range(121)]
    assert at[0] == pytest.approx(1 / 11)
    assert at[10] == 1
    assert at[55] == pytest.approx((1 + final) / 2)
    assert at[100] == at[120] == final
    assert at[:11] == sorted(set(at[:11]))
    assert at[10:101] == sorted(set(at[10:101]), reverse=True)


def test_the_schedule_needs_no_warm_up_and_can_be_all_warm_up() -> None:
    assert warmup_cosine(0, total_steps=4, warmup_steps=0) == 1
    assert warmup_cosine(0, total_steps=1, warmup_steps=0) == 1
    assert [warmup_cosine(s, total_steps=3, warmup_steps=3) for s in range(4)] == [0.25, 0.5, 0.75, 0.0]


MODULE = nn.Linear(2, 2)
OPTIMIZER: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.0}
SCHEDULE = {"total_steps": 10, "warmup_steps": 2}
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "optimizer": (lambda: build_optimizer("adamv", MODULE, **OPTIMIZER), "optimizer must be one of .* did you mean 'adamw'"),
    "rate": (lambda: build_optimizer("sgd", MODULE, **OPTIMIZER | {"learning_rate": 0.0}), "learning_rate must be a finite number > 0, got 0.0"),
    "nan": (lambda: build_optimizer("sgd", MODULE, **OPTIMIZER | {"learning_rate": float("nan")}), "got nan"),
    "decay": (lambda: build_optimizer("sgd", MODULE, **OPTIMIZER | {"weight_decay": -1.0}), "weight_decay must be >= 0, got -1.0; 0 switches"),
    "momentum": (lambda: build_optimizer("sgd", MODULE, **OPTIMIZER, momentum=1.0), "momentum must be a finite number < 1, got 1.0"),
    "betas": (lambda: build_optimizer("adamw", MODULE, **OPTIMIZER, betas=(0.9, 1.0)), "betas must be a finite number < 1, got 1.0"),
    "trust": (lambda: LARS(MODULE.parameters(), 0.1, trust=0.0), "trust must be a finite number > 0, got 0.0; 0.001"),
    "lars rate": (lambda: LARS(MODULE.parameters(), -0.1), "lr must be >= 0, got -0.1"),
    "rule": (lambda: scaled_learning_rate(0.1, 32, "square"), "rule must be one of 'linear', 'sqrt', 'none', got 'square'"),
    "batch": (lambda: scaled_learning_rate(0.1, 0), "batch_size must be a whole number >= 1, got 0; count the images"),
    "base": (lambda: scaled_learning_rate(-0.1, 32), "base must be a finite number > 0, got -0.1"),
    "step": (lambda: warmup_cosine(-1, **SCHEDULE), "step must be a whole number >= 0, got -1"),
    "warm-up": (lambda: warmup_cosine(0, total_steps=5, warmup_steps=6), "warmup_steps must be <= total_steps = 5, got 6; train longer"),
    "total": (lambda: warmup_cosine(0, total_steps=0, warmup_steps=0), "total_steps must be a whole number >= 1, got 0"),
    "final": (lambda: warmup_cosine(0, **SCHEDULE, final=-0.1), "final must be >= 0, got -0.1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
