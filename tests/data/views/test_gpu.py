"""Views on a CUDA device: those of the CPU, without waiting, and inside a CUDA graph."""

import pytest
import torch
from torch import Tensor

from flatclr.data.views import ViewConfig, ViewParameters, apply_views, draw_views, gathered_views
from tests.support.cuda import captured, leave_nans_in_free_memory, needs_cuda
from tests.support.views import EVERYTHING, OPERATIONS, drawn, photo, unit

pytestmark = needs_cuda


@pytest.mark.parametrize("name", OPERATIONS)
def test_cuda_gives_the_views_of_the_cpu(name: str) -> None:
    operation, parameters, _ = OPERATIONS[name]
    images = unit(photo()).float()
    got = operation(images.cuda(), parameters.cuda())
    torch.testing.assert_close(got.cpu(), operation(images, parameters), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_drawing_and_applying_do_not_wait_for_the_device() -> None:
    images = photo(16, height=32, width=32).cuda()
    generator = torch.Generator().manual_seed(0)

    def step() -> Tensor:
        p = draw_views(EVERYTHING, 32, height=32, width=32, generator=generator, device="cuda")
        return apply_views(images, p.rows(slice(16, 32)), EVERYTHING)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_views_replay_inside_a_cuda_graph_with_new_parameters() -> None:
    images = photo(16, height=32, width=32).cuda()
    static = drawn(EVERYTHING, 16).to("cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        apply_views(images, static, EVERYTHING)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = apply_views(images, static, EVERYTHING)
    for seed in (1, 2):
        fresh = drawn(EVERYTHING, 16, seed=seed).to("cuda")
        static.values_NP.copy_(fresh.values_NP)
        graph.replay()
        torch.testing.assert_close(out, apply_views(images, fresh, EVERYTHING), atol=1e-5, rtol=0)


VIEWS = ViewConfig(hue=0.5, blur_probability=0.5, solarize_probability=0.3)


def view_parameters(images: Tensor, rows: int, seed: int = 0) -> ViewParameters:
    height, width = images.shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    return draw_views(VIEWS, rows, height=height, width=width, generator=generator, device="cuda")


def assert_same_views(got: Tensor, want: Tensor) -> None:
    """Within rounding, but for the few pixels it takes across the threshold of solarize."""
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.shape == want.shape
    assert ((got - want).abs() > 1e-4).double().mean() < 1e-4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("stored", "size"), [(32, 32), (28, 40), (64, 24), (96, 96)])
def test_fused_views_are_those_of_the_torch_path(channels: int, stored: int, size: int) -> None:
    images = torch.randint(256, (20, channels, stored, stored), dtype=torch.uint8, device="cuda")
    index = torch.tensor([3, 19, 0, 7, 7], device="cuda")
    parameters = view_parameters(images, 10)
    for stored_images in (images, images.float() / 255):
        want = gathered_views(stored_images, index, parameters, VIEWS, size=size, backend="torch")
        leave_nans_in_free_memory()
        got = gathered_views(stored_images, index, parameters, VIEWS, size=size, backend="triton")
        assert_same_views(got, want)
        half = gathered_views(
            stored_images, index, parameters, VIEWS, size=size, dtype=torch.bfloat16, backend="triton"
        )
        assert torch.equal(half, got.bfloat16())


def test_fused_views_replay_inside_a_cuda_graph_with_new_images_and_parameters() -> None:
    images = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index, static = torch.arange(8, device="cuda"), view_parameters(images, 16)
    graph, out = captured(lambda: gathered_views(images, index, static, VIEWS, backend="triton"))
    for seed in (1, 2):
        index.copy_(torch.randperm(50)[:8])
        static.values_NP.copy_(view_parameters(images, 16, seed).values_NP)
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, gathered_views(images, index, static, VIEWS, backend="auto"))
        assert_same_views(replayed, gathered_views(images, index, static, VIEWS, backend="torch"))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_fused_views_do_not_wait_for_the_device() -> None:
    images = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index, parameters = torch.arange(8, device="cuda"), view_parameters(images, 16)
    gathered_views(images, index, parameters, VIEWS, backend="triton")
    torch.cuda.set_sync_debug_mode("error")
    try:
        gathered_views(images, index, parameters, VIEWS, backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")
