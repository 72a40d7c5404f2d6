"""Losses of other libraries under the names they have here: every row of the table in docs/integrations.md."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import flatclr

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
LABELS = torch.arange(16) % 4

Loss = Callable[[Tensor, Tensor], Tensor]


def lightly(name: str, **options: Any) -> Loss:
    """A loss of lightly by its file: `lightly.loss` as a package imports torchvision."""
    files = {"NTXentLoss": "ntx_ent_loss", "DCLLoss": "dcl_loss", "DCLWLoss": "dcl_loss", "MACLLoss": "macl_loss"}
    files |= {"BarlowTwinsLoss": "barlow_twins_loss", "VICRegLoss": "vicreg_loss"}
    made: Loss = getattr(importlib.import_module(f"lightly.loss.{files[name]}"), name)(**options)
    return made


def metric_learning(name: str, **options: Any) -> Any:
    return getattr(importlib.import_module("pytorch_metric_learning.losses"), name)(**options)


def both_views(loss: Callable[..., Tensor], labels: Tensor) -> Loss:
    """A loss of all rows and their labels, on two views."""
    return lambda z_a, z_b: loss(torch.cat([z_a, z_b]), labels.repeat(2))


def self_supervised(**options: Any) -> Any:
    return metric_learning("SelfSupervisedLoss", loss=metric_learning("NTXentLoss", temperature=0.3), **options)


SWAPS: dict[str, tuple[Callable[[], Loss], Callable[[], Loss]]] = {
    "lightly NTXentLoss(0.3)": (lambda: lightly("NTXentLoss", temperature=0.3), lambda: flatclr.InfoNCE(0.3)),
    "lightly DCLLoss(0.3)": (lambda: lightly("DCLLoss", temperature=0.3), lambda: flatclr.DCL(0.3)),
    "lightly DCLWLoss(0.3)": (lambda: lightly("DCLWLoss", temperature=0.3), lambda: flatclr.DCLW(0.3)),
    "lightly MACLLoss(0.1)": (lambda: lightly("MACLLoss"), lambda: flatclr.MACL(0.1)),
    "lightly BarlowTwinsLoss()": (lambda: lightly("BarlowTwinsLoss"), lambda: flatclr.BarlowTwins()),
    "lightly VICRegLoss()": (lambda: lightly("VICRegLoss"), lambda: flatclr.VICReg(variance=12.5)),
    "pytorch-metric-learning NTXentLoss(0.3)": (
        lambda: both_views(metric_learning("NTXentLoss", temperature=0.3), torch.arange(16)),
        lambda: flatclr.InfoNCE(0.3),
    ),
    "pytorch-metric-learning SelfSupervisedLoss(NTXentLoss(0.3))": (self_supervised, lambda: flatclr.InfoNCE(0.3)),
    "pytorch-metric-learning SelfSupervisedLoss(NTXentLoss(0.3), symmetric=False)": (
        lambda: self_supervised(symmetric=False),
        lambda: flatclr.InfoNCE(0.3, pairing="one_way"),
    ),
    "pytorch-metric-learning SupConLoss(0.3)": (
        lambda: both_views(metric_learning("SupConLoss", temperature=0.3), LABELS),
        lambda: lambda z_a, z_b: flatclr.SupCon(0.3)(z_a, z_b, labels=LABELS),
    ),
    "pytorch-metric-learning VICRegLoss()": (
        lambda: lambda z_a, z_b: metric_learning("VICRegLoss")(z_a, ref_emb=z_b),
        lambda: flatclr.VICReg(variance=12.5),
    ),
}


VALUE_ALONE = {"lightly DCLWLoss(0.3)"}  # no gradient passes through its weights there


@pytest.fixture
def _files_of_lightly() -> Iterator[None]:
    """Its packages without what they import when they are opened."""
    spec = importlib.util.find_spec("lightly")
    if spec is None or spec.origin is None:
        pytest.skip("lightly is not installed: pip install --no-deps lightly")
    root, before = Path(spec.origin).parent, set(sys.modules)
    for name in ("lightly", "lightly.loss", "lightly.models", "lightly.models.modules", "lightly.models.utils"):
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    for name in ("modules", "utils"):
        setattr(sys.modules["lightly.models"], name, sys.modules[f"lightly.models.{name}"])
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "lightly":
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the libraries warn of their own affairs
@pytest.mark.parametrize("name", SWAPS)
def test_a_swapped_loss_has_the_same_value_and_gradient(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("lightly"):
        request.getfixturevalue("_files_of_lightly")
    else:
        pytest.importorskip("pytorch_metric_learning", reason="pip install pytorch-metric-learning")
    theirs, mine = (make() for make in SWAPS[name])
    z = torch.randn(2, 16, 8, requires_grad=True)
    values = [loss(*z) for loss in (theirs, mine)]
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-5)
    if name in VALUE_ALONE:
        return
    gradients = [torch.autograd.grad(value, z)[0] for value in values]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


def test_the_page_lists_the_swaps_that_are_verified_and_no_others() -> None:
    rows = re.findall(r"^\| (lightly|pytorch-metric-learning) \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {f"{library} {loss}" for library, loss in rows} == set(SWAPS)


def test_the_gradient_of_dcl_is_flatnces() -> None:
    z = torch.randn(2, 16, 8, dtype=torch.float64, requires_grad=True)
    gradients = [torch.autograd.grad(loss(*z), z)[0] for loss in (flatclr.DCL(0.3), flatclr.FlatNCE(0.3))]
    torch.testing.assert_close(*gradients)
