"""One gradient, four names: where FlatNCE, DCL, MACL and SogCLR meet, and how ESS and KL are related."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import flatclr
from flatclr.objectives.sogclr import negatives_kl
from tests.support.harness import PAIRINGS

seeds = st.integers(0, 2**32 - 1)
problems = st.fixed_dictionaries(
    {
        "seed": seeds,
        "samples": st.integers(3, 9),
        "views": st.integers(2, 4),
        "pairing": st.sampled_from(PAIRINGS),
        "queue": st.sampled_from([0, 4]),
        "labels": st.booleans(),
        "route": st.sampled_from(["dense", "streamed"]),
        "beta": st.floats(0.5, 30.0),
    }
)


def views_and_said(problem: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(problem["seed"])
    shape = problem["views"], problem["samples"], 4
    views = torch.randn(shape, generator=generator, dtype=torch.float64)
    said = {}
    if problem["queue"]:
        said["negatives"] = torch.randn(problem["queue"], 4, generator=generator, dtype=torch.float64)
    if problem["labels"] and problem["samples"] > 3:
        said["labels"] = torch.arange(problem["samples"]) % 3
        if problem["queue"]:
            said["negative_labels"] = torch.full((problem["queue"],), 7)
    return views.requires_grad_(), said


def loss_and_gradient(kind: Any, problem: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    views, said = views_and_said(problem)
    objective = kind(1 / problem["beta"], pairing=problem["pairing"], route=problem["route"], **options)
    loss = objective(views, **said)
    return loss.detach(), torch.autograd.grad(loss, views)[0]


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@settings(max_examples=15)
@given(problem=problems)
def test_the_gradient_of_dcl_is_that_of_flat_nce(problem: dict[str, Any]) -> None:
    close(loss_and_gradient(flatclr.DCL, problem)[1], loss_and_gradient(flatclr.FlatNCE, problem)[1])


@settings(max_examples=15)
@given(problem=problems)
def test_the_gradient_of_macl_without_alpha_is_that_of_flat_nce(problem: dict[str, Any]) -> None:
    close(loss_and_gradient(flatclr.MACL, problem, alpha=0.0)[1], loss_and_gradient(flatclr.FlatNCE, problem)[1])


@settings(max_examples=15)
@given(problem=problems)
def test_the_gradient_of_sogclr_without_memory_is_that_of_flat_nce_over_beta(problem: dict[str, Any]) -> None:
    ours = loss_and_gradient(flatclr.SogCLR, problem, gamma=1.0)[1]
    close(problem["beta"] * ours, loss_and_gradient(flatclr.FlatNCE, problem)[1])


@settings(max_examples=15)
@given(problem=problems)
def test_at_the_first_visit_any_gamma_gives_that_gradient(problem: dict[str, Any]) -> None:
    views, said = views_and_said(problem)
    objective = flatclr.SogCLR(1 / problem["beta"], gamma=0.3, pairing=problem["pairing"]).double()
    loss = objective(views, **said, index=torch.arange(problem["samples"]))
    ours = torch.autograd.grad(loss, views)[0]
    close(problem["beta"] * ours, loss_and_gradient(flatclr.FlatNCE, problem)[1])


@given(seed=seeds, beta=st.floats(0.5, 30.0), samples=st.integers(2, 9))
def test_the_values_are_functions_of_the_gap_that_differ(seed: int, beta: float, samples: int) -> None:
    """softplus(gap), 1, gap, softplus(gap) / sigmoid(gap), and (l - p) / beta."""
    problem = {"seed": seed, "samples": samples, "views": 2, "pairing": "two_view", "queue": 0, "labels": False}
    problem |= {"route": "dense", "beta": beta}
    gap = flatclr.contrast_stats(views_and_said(problem)[0].detach(), inverse_temperature=beta).gap
    softplus = torch.nn.functional.softplus(gap)
    close(loss_and_gradient(flatclr.FlatNCE, problem)[0], softplus.mean())
    close(loss_and_gradient(flatclr.FlatNCE, problem, value="paper")[0], torch.ones_like(gap).mean())
    close(loss_and_gradient(flatclr.DCL, problem)[0], gap.mean())
    close(loss_and_gradient(flatclr.MACL, problem, alpha=0.0)[0], (softplus / gap.sigmoid()).mean())
    close(loss_and_gradient(flatclr.SogCLR, problem, gamma=1.0)[0], gap.mean() / beta)


def test_only_dcl_and_sogclr_report_what_their_gradient_descends() -> None:
    """A step along the gradient lowers the value by the gradient's square; of the others only the gap moves so."""
    problem = {"seed": 3, "samples": 8, "views": 2, "pairing": "two_view", "queue": 0, "labels": False}
    problem |= {"route": "dense", "beta": 5.0}
    views, _ = views_and_said(problem)
    step = 1e-6
    for kind, options, descends in (
        (flatclr.DCL, {}, True),
        (flatclr.SogCLR, {"gamma": 1.0}, True),
        (flatclr.MACL, {"alpha": 0.0}, False),
        (flatclr.FlatNCE, {}, False),
    ):
        objective = kind(0.2, **options)
        loss = objective(views)
        (gradient,) = torch.autograd.grad(loss, views)
        fall = (loss - objective(views.detach() - step * gradient)).item() / step
        assert (fall == pytest.approx(gradient.square().sum().item(), rel=1e-3)) is descends, kind


scores = st.lists(st.floats(-20, 20), min_size=2, max_size=30)


def ess_and_kl(values: list[float]) -> tuple[float, float]:
    row = torch.tensor([[0.0, *values]], dtype=torch.float64)
    stats = flatclr.stats_from_scores(row)
    mean_score = (row[0, 1:].softmax(0) * row[0, 1:]).sum().unsqueeze(0)
    return stats.ess.item(), negatives_kl(stats, mean_score).item()


@given(values=scores)
def test_ess_is_at_most_the_exponential_of_minus_kl(values: list[float]) -> None:
    """Both measure the weights: -log ESS is the Renyi divergence of order 2 to equal weights, KL that of order 1."""
    ess, kl = ess_and_kl(values)
    weights = torch.tensor(values, dtype=torch.float64).softmax(0)
    assert kl == pytest.approx(math.log(len(values)) + torch.xlogy(weights, weights).sum().item(), abs=1e-9)
    assert -math.log(ess) == pytest.approx(math.log(len(values) * weights.square().sum().item()), abs=1e-9)
    assert ess <= math.exp(-kl) * (1 + 1e-9)


@given(share=st.integers(1, 12), out_of=st.integers(12, 40))
def test_ess_is_the_exponential_of_minus_kl_where_some_count_alike_and_others_not(share: int, out_of: int) -> None:
    ess, kl = ess_and_kl([0.0] * share + [-80.0] * (out_of - share))
    assert ess == pytest.approx(share / out_of)
    assert kl == pytest.approx(math.log(out_of / share), abs=1e-9)


@given(seed=seeds)
def test_both_fall_as_the_temperature_falls(seed: int) -> None:
    cosines = torch.rand(30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(2).sub(1)
    measured = [ess_and_kl((beta * cosines).tolist()) for beta in (0.5, 1.0, 3.0, 10.0, 30.0)]
    ess, kl = zip(*measured, strict=True)
    assert list(ess) == sorted(ess, reverse=True)
    assert list(kl) == sorted(kl)
