"""Settings of a fit are checked when they are made; what is trained stays on one device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from flatclr.mi import tasks
from flatclr.mi.autoregressive import MixtureNetwork
from flatclr.mi.classifier import Classifier
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.critics import make_critic
from flatclr.mi.density import Conditional
from flatclr.mi.fit import FitSettings
from flatclr.mi.methods import VARIATIONAL

BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1}, "steps must be a whole number >= 0, got -1"),
    ({"steps": "x"}, "steps must be a whole number >= 0, got 'x'"),
    ({"steps": 1.5}, "steps must be a whole number >= 0, got 1.5"),
    ({"hidden": -1}, "hidden must be a whole number >= 1"),
    ({"check_every": 0}, "check_every must be a whole number >= 1"),
    ({"patience": -1}, "patience must be a finite number > -1"),
    ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
    ({"learning_rate": float("nan")}, "learning_rate must be a finite number > 0"),
    ({"weight_decay": -1.0}, "weight_decay must be a finite number"),
    ({"device": "tpu9"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'tpu9'"),
    ({"device": "cuda:99"}, "device must be one of the . CUDA devices here, got 'cuda:99'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        FitSettings(**settings)


X, Y = torch.randn(2, 64, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(64) % 2


def learner_of(name: str) -> tuple[Any, Tensor, Tensor]:
    """What an estimate trains by this name, and rows for it."""
    if name in VARIATIONAL:
        copula = fit_gaussian(*tasks.gaussian_pairs(2).sample(100, seed=0))
        critic = make_critic("joint", 2, 2, hidden=8, copula=copula)
        return VARIATIONAL[name](critic, 2, 2, 8), X, Y
    if name == "classifier":
        return Classifier(X, LABELS, 2, 8), X, LABELS
    return (Conditional(X, Y, 8), X, Y) if name == "club" else (MixtureNetwork(2, 2, 8), torch.cat([X, Y], 1), Y)


@pytest.mark.parametrize("name", [*sorted(set(VARIATIONAL) - {"flatnce"}), "classifier", "club", "doe"])
def test_losses_and_checks_make_no_tensor_on_another_device(name: str) -> None:
    learner, x, y = learner_of(name)
    learner.to("meta")  # whose tensors have no values and mix with no others
    x, y = x.to("meta"), y.to("meta")

    learner.loss(x, y).backward()

    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):  # only the last step needs a value
        learner.validate(x, y)
