"""The callback for Lightning, on losses of this package and of others, in real fits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatclr
from flatclr import EssControl

pytest.importorskip("lightning", reason='lightning is not installed: pip install "flatclr[lightning]"')

import lightning

from flatclr.integrations.lightning import ContrastMonitor, gauges

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the library warns of its own affairs


class ForeignLoss(nn.Module):
    """NT-Xent as other libraries write it, on one tensor of both views."""

    def forward(self, z: Tensor) -> Tensor:
        z = F.normalize(z, dim=1)
        scores = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
        n = len(z) // 2
        return F.cross_entropy(scores, torch.arange(2 * n).roll(n))


class Module(lightning.LightningModule):
    def __init__(self, criterion: nn.Module, *, returns: bool = False, stacked: bool = False) -> None:
        super().__init__()
        self.encoder, self.criterion = nn.Linear(6, 8), criterion
        self.returns, self.stacked = returns, stacked

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        z_a, z_b = (self.encoder(x) for x in batch)
        loss = self.criterion(torch.cat([z_a, z_b])) if self.stacked else self.criterion(z_a, z_b)
        return {"loss": loss, "embeddings": (z_a, z_b)} if self.returns else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(module: Module, callback: ContrastMonitor, root: Path, **options: Any) -> dict[str, float]:
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    data = torch.utils.data.TensorDataset(x, x + 0.1 * torch.randn(64, 6))
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=root,
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=16, drop_last=True))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize(
    ("module", "callback"),
    [
        (lambda: Module(flatclr.FlatNCE(0.5)), lambda: ContrastMonitor(loss="criterion", every=1)),
        (lambda: Module(ForeignLoss(), stacked=True), lambda: ContrastMonitor("criterion", temperature=0.5, every=1)),
        (lambda: Module(flatclr.InfoNCE(0.5), returns=True), lambda: ContrastMonitor(temperature=0.5, every=1)),
    ],
    ids=["flatclr", "foreign", "returned"],
)
def test_gauges_and_alarms_of_a_fit_are_logged(module: Any, callback: Any, tmp_path: Path) -> None:
    model = module()
    metrics = fit(model, callback(), tmp_path)
    assert metrics["contrast/ceiling_nats"] == pytest.approx(math.log(31))
    assert 0 < metrics["contrast/saturation"] < 1
    assert metrics["contrast/mi_nats"] == pytest.approx(metrics["contrast/saturation"] * math.log(31), rel=1e-4)
    assert metrics["contrast/alarm_collapsed"] == 0
    assert not model.criterion._forward_pre_hooks


def test_the_gauges_are_those_of_the_same_embeddings_here() -> None:
    z = torch.randn(2, 16, 4)
    found = gauges(z.unbind(), 10.0)
    stats = flatclr.contrast_stats(*z, inverse_temperature=10.0)
    assert found["ess"] == pytest.approx(stats.ess.mean().item())
    assert found["saturation"] == pytest.approx(flatclr.diagnostics.saturation(stats).item())


def test_alarms_ring_for_a_point_and_for_an_easy_batch() -> None:
    assert gauges([torch.ones(8, 4)] * 2, 10.0)["alarm_collapsed"] == 1
    assert gauges([torch.eye(8)] * 2, 20.0)["alarm_saturated"] == 1
    assert gauges(torch.randn(2, 32, 8).unbind(), 10.0)["alarm_saturated"] == 0


def test_a_controller_steps_once_per_update_and_its_beta_is_logged(tmp_path: Path) -> None:
    control = EssControl(0.9, initial=5.0)
    callback = ContrastMonitor(loss="criterion", every=1)
    metrics = fit(Module(flatclr.FlatNCE(control)), callback, tmp_path, accumulate_grad_batches=2)
    assert control.inverse_temperature.item() == pytest.approx(5 * 0.99**4, rel=1e-3)  # 2 epochs of 4 batches
    assert metrics["contrast/beta"] == pytest.approx(control.inverse_temperature.item())


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="loss must name an attribute of Module that is a module, got 'loss_fn'"):
        fit(Module(flatclr.InfoNCE(0.5)), ContrastMonitor("loss_fn"), tmp_path)
    with pytest.raises(ValueError, match="ContrastMonitor must find embeddings, got none"):
        fit(Module(flatclr.InfoNCE(0.5)), ContrastMonitor(), tmp_path)
