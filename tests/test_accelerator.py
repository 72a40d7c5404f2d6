"""Triton is optional: what is said and done where it is missing or does not run."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from flatclr import accelerator
from flatclr.accelerator import triton_runs, with_triton
from flatclr.data import ViewConfig, draw_views, gathered_views

CPU = torch.device("cpu")


def test_a_launch_is_tried_once_per_device_and_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_triton", lambda: True)
    tried = []

    def first(device: torch.device) -> None:
        tried.append(("first", device))

    def second(device: torch.device) -> None:
        tried.append(("second", device))

    assert all(
        triton_runs(device, launch)
        for _ in range(2)
        for device in (CPU, torch.device("meta"))
        for launch in (first, second)
    )
    assert len(tried) == len(set(tried)) == 4


def test_where_a_launch_fails_a_warning_gives_the_first_line_of_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_triton", lambda: True)

    def no_compiler(device: torch.device) -> None:
        raise RuntimeError("\nno C compiler\nand more")

    with pytest.warns(
        UserWarning, match=r"^Triton does not run on cpu \(no C compiler\); PyTorch's operations are used\.$"
    ):
        assert not triton_runs(CPU, no_compiler)
    assert not triton_runs(CPU, no_compiler)  # a second warning would be an error


def test_without_triton_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(accelerator, "has_triton", lambda: False)
    assert not triton_runs(CPU, refuse)


def test_kernels_asked_for_by_name_say_that_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in [name for name in sys.modules if name.startswith("flatclr.data.views.")]:
        if name.endswith("fused") or ".kernels" in name:
            monkeypatch.delitem(sys.modules, name)
    images = torch.zeros(2, 1, 4, 4)
    drawn = draw_views(ViewConfig(), 2, height=4, width=4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        ValueError, match=r"must find the package triton, got none installed; install it, or use backend='torch'"
    ):
        gathered_views(images, None, drawn, ViewConfig(), backend="triton")


def test_another_missing_module_is_not_taken_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'flatclr\.no_such'"):
        with_triton("flatclr.no_such")
    assert with_triton("flatclr.accelerator") is importlib.import_module("flatclr.accelerator")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device the kernel is compiled: see test_gpu.py")
def test_the_trial_of_the_views_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from flatclr.data.views import fused, gathered

    launched = []
    monkeypatch.setattr(
        fused, "fused_views", lambda *args, of=fused.fused_views, **options: launched.append(of(*args, **options))
    )
    gathered._try_launch(CPU)
    assert [views.tolist() for views in launched] == [[[[[0.0]]]]]


def test_processes_take_turns_on_a_gpu_without_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert [accelerator.takes_turns(device) for device in ("cpu", "cuda", "cuda:1")] == [False, True, True]
    assert accelerator.takes_turns("auto") == torch.cuda.is_available()
    (tmp_path / "control").touch()
    assert not accelerator.takes_turns("cuda")
