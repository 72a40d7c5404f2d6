"""Calls that PyTorch would answer in its own words: transforms, layouts, other half types, scales out of range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr
from flatclr.diagnostics import alignment, effective_rank

Z = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
OBJECTIVES: dict[str, Callable[[], flatclr.Objective]] = {
    "infonce": flatclr.InfoNCE,
    "flatnce": lambda: flatclr.FlatNCE(temperature=flatclr.EssControl()),
    "align_uniform": flatclr.AlignUniform,
    "drawn": lambda: flatclr.InfoNCE(negatives_per_anchor=3, generator=torch.Generator().manual_seed(1)),
    "streamed": lambda: flatclr.InfoNCE(route="streamed"),
    "holder 0": lambda: flatclr.HolderFlatNCE(gamma=0.0),
    "rpc": flatclr.RPC,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # jvp's own
@pytest.mark.parametrize("name", OBJECTIVES)
def test_transforms_of_functions_are_refused_in_our_words(name: str) -> None:
    objective = OBJECTIVES[name]()
    transforms: list[Callable[[], Any]] = [
        lambda: torch.func.grad(lambda z: objective(z, Z))(Z),
        lambda: torch.vmap(lambda z: objective(z, Z))(torch.stack([Z, Z])),
        lambda: torch.func.jvp(lambda z: objective(z, Z), (Z,), (Z,)),
    ]
    for transform in transforms:
        with pytest.raises(
            RuntimeError, match=r"must be called outside torch\.func and vmap, got a call inside one; use"
        ):
            transform()


def test_gauges_refuse_transforms_too() -> None:
    both = torch.stack([Z, Z])
    for gauge in (lambda: torch.vmap(alignment)(both, both), lambda: torch.vmap(effective_rank)(both)):
        with pytest.raises(RuntimeError, match=r"must be called outside torch\.func and vmap"):
            gauge()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("types", [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)])
def test_half_embeddings_under_autocast_to_the_other_half_type_give_the_same_loss(
    name: str, types: tuple[torch.dtype, torch.dtype]
) -> None:
    own, cast = types

    def loss_and_gradient() -> tuple[Tensor, ...]:
        z, stacked = Z.to(own).requires_grad_(), torch.stack([Z, Z.flip(0)]).to(own).requires_grad_()
        losses = OBJECTIVES[name]()(z, Z.flip(0).to(own)), OBJECTIVES[name]()(stacked)
        sum(losses).backward()
        assert z.grad is not None
        assert stacked.grad is not None
        return *(loss.detach() for loss in losses), z.grad, stacked.grad

    plain = loss_and_gradient()
    with torch.autocast("cpu", dtype=cast):
        under_autocast = loss_and_gradient()
    torch.testing.assert_close(under_autocast, plain)


@pytest.mark.parametrize("given", ["z_a", "negatives", "hard_negatives", "labels"])
def test_sparse_tensors_are_refused(given: str) -> None:
    dense = {"z_a": Z, "negatives": Z, "hard_negatives": torch.ones(8, 2, 4), "labels": torch.arange(8)}[given]
    views = (dense.to_sparse(), Z) if given == "z_a" else (Z, Z)
    more = {} if given == "z_a" else {given: dense.to_sparse()}
    for objective in (flatclr.InfoNCE(), flatclr.Matryoshka(flatclr.InfoNCE(), dims=(2, 4))):
        with pytest.raises(
            TypeError, match=rf"{given} must be a dense tensor, got torch.sparse_coo; call .to_dense\(\)"
        ):
            objective(*views, **more)


def test_tensors_without_values_are_refused() -> None:
    labels, objective = torch.arange(8), flatclr.InfoNCE()
    for views in ((Z.to("meta"), Z.to("meta")), (torch.stack([Z, Z]).to("meta"),)):
        with pytest.raises(TypeError, match="z_a must have values, got a tensor on the meta device"):
            objective(*views)
    for name in ("labels", "ids"):
        with pytest.raises(TypeError, match=f"{name} must have values, got a tensor on the meta device"):
            objective(Z, Z, **{name: labels.to("meta")})
    for index in (labels.to_sparse(), labels.to("meta")):
        with pytest.raises(ValueError, match="index must be a dense tensor with values"):
            flatclr.SogCLR()(Z, Z, index=index)


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e300])
@pytest.mark.parametrize("learn", [False, True])
def test_a_temperature_whose_inverse_floats_cannot_hold_is_refused(temperature: float, learn: bool) -> None:
    with pytest.raises(ValueError, match="temperature must be"):
        flatclr.InfoNCE(temperature, learn_temperature=learn)


@pytest.mark.parametrize("beta", [1e39, torch.tensor(math.inf), torch.tensor([1.0] * 15 + [math.inf])])
def test_an_inverse_temperature_that_floats_cannot_hold_is_refused(beta: float | Tensor) -> None:
    with pytest.raises(ValueError, match="inverse_temperature must be"):
        flatclr.contrast_stats(Z, Z, inverse_temperature=beta)


@pytest.mark.parametrize("gamma", [math.inf, -math.inf, 0.0, 2.0])
def test_a_nan_of_the_queue_shows_in_the_papers_constant(gamma: float) -> None:
    queue = Z.clone()
    queue[2] = math.nan
    objective = flatclr.HolderFlatNCE(gamma=gamma, value="paper")
    assert objective(Z, Z.flip(0)).item() == 1
    assert objective(Z, Z.flip(0), negatives=queue).isnan()
