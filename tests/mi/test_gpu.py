"""Networks of an estimate train on a GPU where there is one, and read what they would have read without."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flatclr.mi import CRITICS, FitSettings, MIEstimate, estimate, tasks
from flatclr.mi.fit import fit
from flatclr.mi.methods import VARIATIONAL
from tests.support.cuda import needs_cuda

pytestmark = needs_cuda

BENT = tasks.sheared(tasks.gaussian_pairs(3))


class Spy(nn.Module):
    """Learns a mean, and notes where it was asked."""

    batch_size = 16

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))
        self.seen: set[str] = set()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen |= {x.device.type, y.device.type, self.mean.device.type}
        return (x - self.mean).square().mean()

    def validate(self, x: Tensor, y: Tensor) -> float:
        return -self.loss(x, y).item()


@pytest.mark.parametrize(("device", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_training_is_where_it_was_asked_for_and_its_result_on_the_cpu(device: str, expected: str):
    learner, rows = Spy(), torch.ones(64, 1)

    fit(learner, (rows, rows), (rows, rows), FitSettings(steps=20, device=device), torch.Generator().manual_seed(0))

    assert learner.seen == {expected}
    assert learner.mean.device.type == "cpu"


def on(device: str, method: str, *, critic: str | None = None, dim: int = 3) -> MIEstimate:
    x, y = BENT.sample(800, seed=0)
    settings = FitSettings(steps=150, hidden=32, device=device)
    return estimate(x[:, :dim], y[:, :dim], method, critic=critic, settings=settings)


@pytest.mark.parametrize("method", [*VARIATIONAL, "ba", "club", "l1out", "doe", "auto"])
def test_both_devices_read_the_same(method: str):
    here, there, again = (on(device, method) for device in ("cpu", "cuda", "cuda"))

    assert abs(here.nats - there.nats) < 0.5 * here.standard_error + 0.01
    assert here.steps == there.steps or method == "auto"
    assert there == again


@pytest.mark.parametrize("critic", sorted(set(CRITICS) - {"anchored"}))
def test_both_devices_read_the_same_by_every_critic(critic: str):
    here, there = (on(device, "infonce", critic=critic) for device in ("cpu", "cuda"))

    assert abs(here.nats - there.nats) < 0.5 * here.standard_error + 0.01


def test_heavy_tails_and_classes_train_there_too():
    rng = np.random.default_rng(0)
    tailed = tasks.student(5, 5, 2).sample(1_000, seed=0)
    label = rng.integers(0, 3, size=1_000)
    classes = rng.normal(size=(1_000, 6)) + label[:, None], label
    for x, y in (tailed, classes):
        here, there = (
            estimate(x, y, settings=FitSettings(steps=150, hidden=32, device=device)) for device in ("cpu", "cuda")
        )
        assert here.method == there.method
        assert abs(here.nats - there.nats) < 0.5 * here.standard_error + 0.01


def test_rows_on_a_gpu_are_taken():
    x, y = (torch.as_tensor(v, device="cuda") for v in BENT.sample(300, seed=0))

    assert estimate(x, y, "gaussian") == estimate(x.cpu(), y.cpu(), "gaussian")
