"""Batch normalisation with what follows it: the kernels against float64 and against PyTorch's own operations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from flatclr.models import batch_norm
from flatclr.models.batch_norm import LEAST_EAGER, by_pytorch, for_capture, fuses, normalised
from flatclr.models.encoders import build_encoder
from flatclr.models.statistics import frozen_running_statistics
from tests.support.interpreter import interpreted

pytest.importorskip("triton")

from flatclr.models import fused_batch_norm

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
KINDS = [(False, False), (False, True), (True, False), (True, True)]
WHAT_FOLLOWS = pytest.mark.parametrize(("with_shortcut", "relu"), KINDS)
SHAPES = ((3, 3, 1, 1), (5, 7, 3, 2), (3, 64, 4, 4), (4, 130, 5, 3))
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def layer(channels: int, device: str = "cpu") -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.3).to(device)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, channels))
        norm.bias.copy_(torch.linspace(1, -1, channels))
    return norm


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values + 3.0).to(device, dtype, memory_format=torch.channels_last)


def by_float64(
    norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, upstream: Tensor, *, relu: bool
) -> dict[str, Tensor]:
    """By definition, channel by channel; gradients by autograd of these few lines."""
    leaves = [t.detach().double().requires_grad_() for t in (x, norm.weight, norm.bias)]
    x64, weight, bias = leaves
    mean = x64.mean((0, 2, 3), keepdim=True)
    variance = ((x64 - mean) ** 2).mean((0, 2, 3), keepdim=True)
    out = (x64 - mean) / (variance + norm.eps).sqrt() * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)
    if shortcut is not None:
        leaves.append(shortcut.detach().double().requires_grad_())
        out = out + leaves[-1]
    out = out.clamp_min(0) if relu else out
    names = ("of x", "of weight", "of bias", "of shortcut")
    found = dict(zip(names, torch.autograd.grad(out, leaves, upstream.double()), strict=False))
    count = x.numel() / x.shape[1]
    unbiased = variance.flatten() * count / (count - 1)
    moved = {"mean": 0.3 * mean.flatten(), "variance": 0.7 + 0.3 * unbiased}
    return {"out": out, **found, **moved}


def by_kernels(
    norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, upstream: Tensor, *, relu: bool
) -> dict[str, Tensor]:
    norm = copy.deepcopy(norm)
    leaves = [x.detach().requires_grad_(), norm.weight, norm.bias]
    if shortcut is not None:
        leaves.append(shortcut.detach().requires_grad_())
    out = fused_batch_norm.batch_norm(norm, leaves[0], leaves[3] if shortcut is not None else None, relu=relu)
    names = ("of x", "of weight", "of bias", "of shortcut")
    found = dict(zip(names, torch.autograd.grad(out, leaves, upstream), strict=False))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return {"out": out, **found, "mean": norm.running_mean, "variance": norm.running_var}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], limit: float) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        error = (found[name].double().cpu() - want.cpu()).norm() / want.norm().cpu().clamp_min(1e-6)
        assert error < limit, (name, float(error))


def check(shape: tuple[int, ...], dtype: torch.dtype, with_shortcut: bool, relu: bool, device: str = "cpu") -> None:
    x, upstream = images(shape, dtype, device), images(shape, dtype, device, seed=2) - 3
    shortcut = images(shape, dtype, device, seed=1) - 3 if with_shortcut else None
    norm = layer(shape[1], device)
    wanted = by_float64(norm, x, shortcut, upstream, relu=relu)
    assert_near(by_kernels(norm, x, shortcut, upstream, relu=relu), wanted, LIMITS[dtype])


class TestOnTheCpu:
    pytestmark = interpreted

    @WHAT_FOLLOWS
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("most_folded", [64, 0])
    def test_values_gradients_and_running_statistics_are_those_of_the_definition(
        self, shape: tuple[int, ...], with_shortcut: bool, relu: bool, most_folded: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fused_batch_norm, "MOST_FOLDED", most_folded)
        check(shape, torch.float32, with_shortcut, relu)

    @pytest.mark.parametrize("most_folded", [64, 1])
    def test_parts_of_several_tiles_are_added_up(self, most_folded: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fused_batch_norm, "MOST_FOLDED", most_folded)
        monkeypatch.setattr(fused_batch_norm, "VALUES", 64)
        monkeypatch.setattr(fused_batch_norm, "PIECES", 2)
        fused_batch_norm.grid_of.cache_clear()
        try:
            grid = fused_batch_norm.grid_of(75, 20, torch.device("cpu"))
            assert grid.parts > 1
            assert grid.rows_each > grid.options["UNROLL"] * grid.options["SUB"]
            assert (grid.parts - 1) * grid.rows_each < 75 <= grid.parts * grid.rows_each
            check((5, 20, 5, 3), torch.float32, True, True)
        finally:
            fused_batch_norm.grid_of.cache_clear()

    def test_half_precision_is_rounded_once(self) -> None:
        """Not before the shortcut is added: the error is that of the exact result in half precision."""
        for with_shortcut, relu in KINDS:
            x, upstream = (images((5, 7, 3, 2), torch.float16, seed=seed) for seed in (0, 2))
            shortcut = images((5, 7, 3, 2), torch.float16, seed=1) - 3 if with_shortcut else None
            wanted = by_float64(layer(7), x, shortcut, upstream, relu=relu)
            found = by_kernels(layer(7), x, shortcut, upstream, relu=relu)
            for name in ("out", "of x"):
                once = (wanted[name].half().double() - wanted[name]).norm()
                assert (found[name].double() - wanted[name]).norm() < 1.2 * once, name
            assert_near(found, wanted, LIMITS[torch.float16])

    def test_saved_tensors_may_come_back_in_another_order(self) -> None:
        x, upstream, shortcut = (images((3, 5, 4, 2), seed=seed) - 3 for seed in range(3))
        wanted = by_float64(layer(5), x, shortcut, upstream, relu=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t):
            found = by_kernels(layer(5), x, shortcut, upstream, relu=True)
        assert_near(found, wanted, 1e-5)

    @pytest.mark.parametrize("far", [10.0, 1000.0])
    @pytest.mark.parametrize("first", [1, 40])
    def test_a_first_row_far_from_the_others_costs_little_precision(
        self, far: float, first: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In several parts: it is one of them alone that starts far away."""
        monkeypatch.setattr(fused_batch_norm, "VALUES", 64)
        monkeypatch.setattr(fused_batch_norm, "PIECES", 2)
        monkeypatch.setattr(fused_batch_norm, "PROCESSORS_INTERPRETED", 8)
        fused_batch_norm.grid_of.cache_clear()
        x, upstream = (images((2000, 2, 1, 1), seed=seed) - 3 for seed in (0, 2))
        x[:first] += far
        try:
            found = by_kernels(layer(2), x, None, upstream, relu=False)
        finally:
            fused_batch_norm.grid_of.cache_clear()
        assert_near(found, by_float64(layer(2), x, None, upstream, relu=False), 2e-5)

    @given(offset=st.floats(-1e3, 1e3), scale=st.floats(1e-2, 1e2))
    def test_a_large_mean_costs_no_precision(self, offset: float, scale: float) -> None:
        x = (images((4, 3, 2, 2)) * scale + offset).contiguous(memory_format=torch.channels_last)
        norm = layer(3)
        out = fused_batch_norm.batch_norm(norm, x, None, relu=False)
        x64 = x.double()
        variance, mean = torch.var_mean(x64, (0, 2, 3), correction=0, keepdim=True)
        wanted = (x64 - mean) / (variance + norm.eps).sqrt()
        wanted = wanted * norm.weight.double().view(1, -1, 1, 1) + norm.bias.double().view(1, -1, 1, 1)
        room = 1e-5 + 4 * torch.finfo(torch.float32).eps * abs(offset) / scale
        assert (out.double() - wanted).abs().max() < 10 * room

    def test_a_value_that_is_no_number_stays_visible(self) -> None:
        x = images((2, 2, 2, 2))
        x[0, 0, 0, 0] = torch.nan
        out = fused_batch_norm.batch_norm(layer(2), x, None, relu=True)
        assert out[:, 0].isnan().all()
        assert out[:, 1].isfinite().all()

    def test_a_gradient_in_another_order_is_taken(self) -> None:
        x = images((3, 4, 2, 2))
        upstream = torch.randn(3, 4, 2, 2)
        wanted = by_float64(layer(4), x, None, upstream, relu=True)
        assert_near(by_kernels(layer(4), x, None, upstream, relu=True), wanted, 1e-5)

    def test_held_statistics_stay_and_batches_are_counted(self) -> None:
        norm, x = layer(3), images((2, 3, 2, 2))
        with frozen_running_statistics(norm):
            fused_batch_norm.batch_norm(norm, x, None, relu=True)
        assert norm.running_mean is not None
        assert norm.num_batches_tracked is not None
        assert norm.running_mean.eq(0).all()
        assert int(norm.num_batches_tracked) == 0
        fused_batch_norm.batch_norm(norm, x, None, relu=True)
        assert norm.running_mean.ne(0).all()
        assert int(norm.num_batches_tracked) == 1

    def test_second_derivatives_are_refused(self) -> None:
        x = images((2, 3, 2, 2)).requires_grad_()
        out = fused_batch_norm.batch_norm(layer(3), x, None, relu=True)
        with pytest.raises(RuntimeError, match="create_graph=True; call the network inside"):
            torch.autograd.grad(out.sum(), x, create_graph=True)

    @pytest.mark.parametrize("name", ["resnet18", "resnet50"])
    def test_a_network_has_the_outputs_and_gradients_that_pytorch_gives_it(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batch_norm, "_kernels_run", lambda device: True)
        calls: list[bool] = []
        fused = fused_batch_norm.batch_norm
        monkeypatch.setattr(
            fused_batch_norm, "batch_norm", lambda *a, **k: (calls.append(k["relu"]), fused(*a, **k))[1]
        )
        encoder = build_encoder(name, channels=3, image_size=16, width=4).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        other = copy.deepcopy(encoder)
        x = images((8, 3, 16, 16))
        exact = outcome(copy.deepcopy(encoder).double(), x.double())
        assert not calls  # kernels have no float64
        with for_capture():
            found = outcome(encoder, x)
        norms = [name for name, module in encoder.named_modules() if isinstance(module, nn.BatchNorm2d)]
        assert len(calls) == len(norms)
        assert calls.count(False) == sum("downsample" in name for name in norms)
        with by_pytorch():
            plain = outcome(other, x)
        assert len(calls) == len(norms)
        assert error(found, exact) < 4 * error(plain, exact) + 1e-4
        for name in ("out", *(name for name, _ in encoder.named_buffers())):
            assert (found[name] - exact[name]).norm() < 1e-2 * exact[name].norm() + 1e-5, name


def outcome(encoder: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Features, the gradient of every parameter, every buffer."""
    out = encoder(x)
    out.square().sum().backward()
    gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    buffers = {name: b.double() for name, b in encoder.named_buffers()}
    return {"out": out.detach(), **gradients, **buffers}


def error(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Of the gradients of all weights together, relative."""
    weights = [name for name in exact if name.endswith("weight")]
    off = sum((found[name].double() - exact[name]).square().sum() for name in weights)
    return float((off / sum(exact[name].square().sum() for name in weights)) ** 0.5)


class TestWhatFuses:
    @pytest.fixture(autouse=True)
    def _kernels(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(batch_norm, "_kernels_run", lambda device: True)
        with for_capture():
            yield

    def test_batch_normalisation_of_images_in_training(self) -> None:
        x = images((2, 3, 2, 2))
        assert fuses(layer(3), x, None)
        assert fuses(layer(3), x, x)

    @pytest.mark.parametrize(
        ("norm", "given"),
        [
            pytest.param(nn.GroupNorm(1, 3), {}, id="another normalisation"),
            pytest.param(nn.SyncBatchNorm(3), {}, id="shared over processes"),
            pytest.param(nn.BatchNorm2d(3).eval(), {}, id="evaluation"),
            pytest.param(nn.BatchNorm2d(3, affine=False), {}, id="no weight"),
            pytest.param(nn.BatchNorm2d(3, momentum=None), {}, id="plain averages"),
            pytest.param(nn.BatchNorm2d(3).double(), {}, id="weight in float64"),
            pytest.param(nn.BatchNorm2d(3), {"x": torch.ones(2, 3, 2, 2)}, id="channels first"),
            pytest.param(nn.BatchNorm2d(3), {"x": images((2, 3, 2, 2), torch.float64)}, id="values in float64"),
            pytest.param(nn.BatchNorm2d(3), {"x": images((1, 3, 1, 1))}, id="one value per channel"),
            pytest.param(nn.BatchNorm2d(5), {}, id="of other channels"),
            pytest.param(nn.BatchNorm2d(3, device="meta"), {}, id="on another device"),
            pytest.param(nn.BatchNorm2d(3), {"shortcut": torch.ones(2, 3, 2, 2)}, id="shortcut channels first"),
            pytest.param(nn.BatchNorm2d(3), {"shortcut": images((2, 3, 1, 1))}, id="shortcut of another shape"),
        ],
    )
    def test_everything_else_is_left_to_pytorch(self, norm: nn.Module, given: dict[str, Any]) -> None:
        given = {"x": images((2, 3, 2, 2)), "shortcut": None} | given
        assert not fuses(norm, given["x"], given["shortcut"])

    def test_a_layer_that_is_watched_is_called_itself(self) -> None:
        norm, seen = layer(3), []
        norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
        x = images((2, 3, 2, 2))
        assert torch.equal(normalised(norm, x), F.relu(seen[0]))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
    def test_transforms_see_pytorchs_operations(self) -> None:
        norm, x = layer(3).requires_grad_(False), images((2, 3, 2, 2))
        with frozen_running_statistics(norm):
            _, tangent = torch.func.jvp(lambda t: normalised(norm, t), (x,), (x,))
        assert tangent.isfinite().all()

    def test_inside_by_pytorch_nothing_is_fused_not_even_in_a_capture(self) -> None:
        with by_pytorch():
            assert not fuses(layer(3), images((2, 3, 2, 2)), None)
            with for_capture():
                assert not fuses(layer(3), images((2, 3, 2, 2)), None)
        assert fuses(layer(3), images((2, 3, 2, 2)), None)

    def test_a_compiled_network_is_not_compiled_again_after_a_capture(self) -> None:
        frames = CompileCounter()
        network = torch.compile(lambda x: normalised(norm, x), backend=frames)
        norm, x = layer(3), images((2, 3, 2, 2))
        network(x)
        with by_pytorch():
            network(x)
        assert frames.frame_count == 1

    def test_outside_a_capture_large_layers_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch_norm, "_way", "by size")
        assert not fuses(layer(3), images((2, 3, 2, 2)), None)
        large = torch.empty(LEAST_EAGER // 3 + 1, 3, 1, 1, dtype=torch.bfloat16, device="meta")
        assert fuses(layer(3).to("meta"), large.to(memory_format=torch.channels_last), None)


class TestOnAGpu:
    pytestmark = on_gpu

    @WHAT_FOLLOWS
    @pytest.mark.parametrize("dtype", LIMITS, ids=str)
    @pytest.mark.parametrize("shape", [*SHAPES, (64, 64, 16, 16), (33, 512, 2, 2), (1000, 64, 16, 16)])
    def test_values_gradients_and_running_statistics_are_those_of_the_definition(
        self, shape: tuple[int, ...], dtype: torch.dtype, with_shortcut: bool, relu: bool
    ) -> None:
        check(shape, dtype, with_shortcut, relu, "cuda")

    def test_repeats_bit_by_bit(self) -> None:
        x, upstream = (images((200, 64, 16, 16), torch.bfloat16, "cuda", seed=seed) for seed in (0, 1))
        first, second = (by_kernels(layer(64, "cuda"), x, x, upstream, relu=True) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)

    @pytest.mark.parametrize("name", ["resnet18", "resnet50"])
    def test_a_network_is_as_near_to_float64_as_by_pytorch(self, name: str) -> None:
        encoder = build_encoder(name, channels=3, image_size=16).to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
        other, exact = copy.deepcopy(encoder), copy.deepcopy(encoder).double()
        x = images((64, 3, 16, 16), device="cuda") - 3
        wanted = outcome(exact, x.double())
        with torch.autocast("cuda", torch.bfloat16), for_capture():
            assert fuses(encoder.bn1, encoder.conv1(x), None)
            found = outcome(encoder, x)
            with by_pytorch():
                plain = outcome(other, x)

        assert error(found, wanted) < 1.2 * error(plain, wanted) + 1e-3
