"""Encoders of timm and torchvision, with stand-ins for the packages."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatclr.models import build_encoder
from flatclr.models.encoders import AdaptedEncoder


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, f"{package}.models"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not there, also where it is
    with pytest.raises(
        ImportError,
        match=rf"encoder '{package}:resnet18' needs {package}, which is not installed; pip install .*, or pick",
    ):
        build_encoder(f"{package}:resnet18", channels=3, image_size=32)


class Foreign(nn.Module):
    """A model as other packages build them: `width` is not what comes out, and only multiples of 4 px go in."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(channels, 10, 4, 4)
        self.fc = nn.Linear(10, classes) if classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 4:
            raise AssertionError(f"Input height ({x.shape[-1]}) should be divisible by 4.\nAnd a second line.")
        return self.fc(self.body(x).mean((2, 3)))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand-ins with the functions that are called of timm and torchvision; returns the options they saw."""
    seen: list[dict[str, Any]] = []

    def create_model(name: str, *, in_chans: int, num_classes: int, **options: Any) -> nn.Module:
        seen.append(options)
        return Foreign(in_chans, num_classes)

    def get_model(name: str, **options: Any) -> nn.Module:
        seen.append(options)
        return Foreign(3, 1000)

    timm, torchvision, models = ModuleType("timm"), ModuleType("torchvision"), ModuleType("torchvision.models")
    timm.__dict__.update(create_model=create_model, list_models=lambda: ["foreign", "other"])
    models.__dict__.update(get_model=get_model, list_models=lambda: ["foreign", "vit_b_16"])
    torchvision.__dict__.update(models=models)
    for module in (timm, torchvision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


@pytest.mark.parametrize(
    "name", ["timm:foreign", "timm:foreign.tag_in1k", "timm:hf-hub:me/foreign", "torchvision:foreign"]
)
def test_a_foreign_model_becomes_an_encoder_without_its_classifier(name: str, packages: list[dict[str, Any]]) -> None:
    encoder = build_encoder(name, channels=3, image_size=32, pretrained=True, drop=0.1)
    assert isinstance(encoder, AdaptedEncoder)
    assert encoder.training
    assert encoder.features == 10
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert packages == [{"pretrained": True, "drop": 0.1}]
    assert encoder.spec.options == {"drop": 0.1}  # a loaded encoder has weights of its own


def test_timm_models_take_any_channels_and_torchvision_models_three(packages: list[dict[str, Any]]) -> None:
    assert build_encoder("timm:foreign", channels=1, image_size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ValueError, match="channels must be 3 for a torchvision encoder, got 1; repeat"):
        build_encoder("torchvision:foreign", channels=1, image_size=28)


def test_a_torchvision_transformer_is_built_for_the_image_size(packages: list[dict[str, Any]]) -> None:
    build_encoder("torchvision:vit_b_16", channels=3, image_size=32)
    assert packages == [{"image_size": 32}]


@pytest.mark.usefixtures("packages")
def test_foreign_models_that_do_not_fit_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"one of timm's 2 models, got 'timm:foreing'; did you mean 'timm:foreign'\?"):
        build_encoder("timm:foreing", channels=3, image_size=32)
    with pytest.raises(
        ValueError, match=r"\[N, 3, 33, 33\], got Input height \(33\) should be divisible by 4.; pass"
    ) as e:
        build_encoder("timm:foreign", channels=3, image_size=33)
    assert "\n" not in str(e.value)
