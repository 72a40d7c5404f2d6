"""The rivals' benchmark leaves out what does not run, says why, and compares what does with float64."""

from pathlib import Path

import pytest
import torch

from benchmarks import loss_rivals

CPU = torch.device("cpu")


def test_what_does_not_run_here_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: torch.device) -> loss_rivals.Loss:
        raise ModuleNotFoundError("No module named 'memeff'\nat all")

    monkeypatch.setitem(loss_rivals.WAYS, "memeff", missing)
    losses, problems = loss_rivals.usable(CPU)
    assert {"plain", "flatclr"} <= set(losses)
    assert problems["memeff"] == "ModuleNotFoundError: No module named 'memeff'"
    assert set(losses) | set(problems) == set(loss_rivals.WAYS)


def test_a_row_has_times_and_errors_of_every_way_and_the_reason_of_one_that_fails() -> None:
    def refuses(z_a: torch.Tensor, z_b: torch.Tensor) -> torch.Tensor:
        raise ValueError("d must be 256")

    losses = {"plain": loss_rivals.plain, "flatclr": loss_rivals.flatclr_loss(CPU), "other": refuses}
    row = loss_rivals.measure(losses, 24, 16, CPU, rounds=2)
    assert row["other ms"] == "ValueError: d must be 256"
    assert row["flatclr loss error"] < 1e-5
    assert row["flatclr gradient error"] < 5e-3  # bfloat16
    assert row["plain gradient error"] < 2e-2
    assert row["flatclr ms"] > 0
    assert "| 24 | 16 |" in loss_rivals.table([row], list(losses), "ms")


def test_clip_loss_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "open_clip"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('torchvision')")
    (package / "loss.py").write_text(
        "class ClipLoss:\n"
        "    def __init__(self, cache_labels): pass\n"
        "    def __call__(self, a, b, scale): return (scale * a @ b.T).float().mean()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loss = loss_rivals.open_clip_loss(CPU)(*loss_rivals.embeddings(4, 8, CPU))
    assert loss.isfinite()
