"""Gauges of any contrastive loss inside Lightning: a callback that reads the embeddings of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from flatclr import diagnostics, distributed
from flatclr.checks import require_count, require_number
from flatclr.contrast import ContrastStats, contrast_stats
from flatclr.extras import needed
from flatclr.objectives import EssControl, Objective

needed("lightning", by="flatclr.integrations.lightning")

import lightning  # noqa: E402

SATURATED = 0.9  # of the ceiling: the batch hardly tells a good encoder from a better one
COLLAPSED = 0.99  # of the ESS: all negatives look alike
KEY = "embeddings"


class ContrastMonitor(lightning.Callback):  # type: ignore[misc]
    """Logs gauges, saturation and alarms of any contrastive loss, of this package or another's.

    Embeddings are found in one of two ways. Either `training_step` returns them, `{"loss": loss, "embeddings": (z_a,
    z_b)}`; or `loss` names the attribute of the module that is the loss, and its inputs are read. Training itself sees
    no change.

    Logged under `contrast/` are mi_nats, ceiling_nats, saturation, ess, alignment, uniformity and effective_rank, and
    beta where the module holds a `flatclr.EssControl`. Alarms are 1 or 0: alarm_saturated, the bound is above 90 % of
    its ceiling, so use a larger batch or FlatNCE; alarm_collapsed, all negatives look alike (ESS above 0.99);
    alarm_beta_clamped, a controller sits at a bound.

    Args:
        loss: name of the module's attribute, say "criterion", whose call has the embeddings as its first arguments:
            several [N, d], or one [V N, d] of V views one after the other.
        temperature: at which the loss computes; None reads that of a flatclr objective named by `loss`, else 0.1.
        every: steps between looks.
        views: how many, where the loss is given one tensor.
        gather: use the embeddings of all ranks, as losses that gather do.
        pairing: of `flatclr.contrast_stats`.

    >>> monitor = ContrastMonitor(loss="criterion", temperature=0.5)
    >>> monitor.every
    50
    >>> trainer = lightning.Trainer(callbacks=[monitor])  # doctest: +SKIP
    """

    def __init__(
        self,
        loss: str | None = None,
        *,
        temperature: float | None = None,
        every: int = 50,
        views: int = 2,
        gather: bool = False,
        pairing: str = "two_view",
    ) -> None:
        super().__init__()
        require_count("every", every, advice="50 is the default.")
        require_count("views", views, advice="2 is the default.")
        if temperature is not None:
            require_number("temperature", temperature, above=0)
        self.loss, self.temperature, self.every, self.views = loss, temperature, every, views
        self.gather, self.pairing = gather, pairing
        self._seen: tuple[Tensor, ...] | None = None
        self._remove: Callable[[], None] | None = None

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Begin to read what the loss is called with."""
        if self.loss is None:
            return
        loss = getattr(pl_module, self.loss, None)
        if not isinstance(loss, nn.Module):
            raise ValueError(
                f"loss must name an attribute of {type(pl_module).__name__} that is a module, got {self.loss!r}; name "
                'it, or return {"loss": loss, "embeddings": (z_a, z_b)} from training_step.'
            )

        def read(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if torch.is_grad_enabled():
                self._seen = tuple(z.detach() for z in inputs if isinstance(z, Tensor) and z.is_floating_point())

        self._remove = loss.register_forward_pre_hook(read).remove

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Leave the loss as it was."""
        if self._remove is not None:
            self._remove()
        self._remove = self._seen = None

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave the loss as it was."""
        self.on_fit_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the gauges of a step, every so often.

        Args:
            trainer: Lightning's.
            pl_module: that is trained.
            outputs: of its training_step.
            batch: not looked at.
            batch_idx: within the epoch.
        """
        if batch_idx % self.every:
            return
        views = self._views(outputs)
        metrics = gauges(views, 1 / self._temperature(pl_module), pairing=self.pairing, gather=self.gather)
        metrics |= _of_controls(pl_module)
        pl_module.log_dict({f"contrast/{name}": value for name, value in metrics.items()})  # type: ignore[operator]

    def _views(self, outputs: Any) -> tuple[Tensor, ...]:
        found = outputs.get(KEY) if isinstance(outputs, dict) else None
        found = self._seen if found is None else tuple(found) if isinstance(found, Sequence) else (found,)
        if not found:
            raise ValueError(
                "ContrastMonitor must find embeddings, got none; return "
                '{"loss": loss, "embeddings": (z_a, z_b)} from training_step, or pass loss="name of the loss module".'
            )
        if len(found) == 1:
            return tuple(found[0]) if found[0].dim() == 3 else found[0].chunk(self.views)
        return tuple(found)

    def _temperature(self, pl_module: nn.Module) -> float:
        loss = getattr(pl_module, self.loss, None) if self.loss else None
        if self.temperature is None and isinstance(loss, Objective):
            return 1 / float(loss.inverse_temperature)
        return 0.1 if self.temperature is None else self.temperature


def gauges(
    views: Sequence[Tensor], inverse_temperature: float, *, pairing: str = "two_view", gather: bool = False
) -> dict[str, float]:
    """What a batch of embeddings says about a run, as numbers; reading them waits for the device.

    Args:
        views: [N, d] each.
        inverse_temperature: of the loss.
        pairing: of `flatclr.contrast_stats`.
        gather: over ranks.

    Returns:
        mi_nats, ceiling_nats, saturation, ess, alignment, uniformity, effective_rank, and the alarms as 1.0 or 0.0.

    >>> found = gauges((torch.eye(4), torch.eye(4)), inverse_temperature=1.0)
    >>> round(found["mi_nats"], 4), round(found["ceiling_nats"], 4), found["alarm_saturated"]
    (0.7805, 1.9459, 0.0)
    """
    with torch.no_grad():
        stats = contrast_stats(*views, inverse_temperature=inverse_temperature, pairing=pairing, gather=gather)
        ranks = distributed.ranks_sharing_a_batch(gather)
        z_VNd = distributed.gather_views(torch.stack(tuple(views)).float(), ranks)
        found = {
            **_of_stats(stats),
            "alignment": torch.stack([diagnostics.alignment(*pair) for pair in combinations(z_VNd, 2)]).mean().item(),
            "uniformity": diagnostics.uniformity(z_VNd[0]).item(),
            "effective_rank": float(diagnostics.effective_rank(z_VNd[0])),
        }
    found["alarm_saturated"] = float(found["saturation"] > SATURATED)
    found["alarm_collapsed"] = float(found["ess"] > COLLAPSED)
    return found


def _of_stats(stats: ContrastStats) -> dict[str, float]:
    return {
        "mi_nats": stats.mi_nats.item(),
        "ceiling_nats": float(stats.ceiling_nats),
        "saturation": diagnostics.saturation(stats).item(),
        "ess": stats.mean(stats.ess).item(),
    }


def _of_controls(module: nn.Module) -> dict[str, float]:
    controls = [part for part in module.modules() if isinstance(part, EssControl)]
    if not controls:
        return {}
    betas = [float(control.inverse_temperature) for control in controls]
    return {"beta": sum(betas) / len(betas), "alarm_beta_clamped": float(any(c.clamped for c in controls))}
