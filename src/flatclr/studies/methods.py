"""Objectives on CIFAR-10 with the one scalar that each is tuned by, and the runs of them that studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flatclr.studies.accuracies import held_out
from flatclr.studies.study import Found, Run
from flatclr.studies.training_runs import SMALL_VIEWS, rate_at, training_run
from flatclr.training.recipes import RECIPES

IMAGES = 50_000
EPOCHS, TUNING_EPOCHS = 100.0, 30.0
EVERY, CHECKPOINTS = 10, 50  # epochs between evaluations, and between checkpoints, which take a while
RECIPE = "cifar10"


@dataclass(frozen=True)
class Method:
    """An objective and its scalar.

    Args:
        name: as tables call it, before the scalar's value.
        scalar: what is tuned.
        default: its value where nothing is tuned.
        values: that are tried, the default among them.
        settings: of a training run at a value.
        gradient: how large its gradient is beside that of the others, at a value; the rate makes up for it.

    >>> INFO_NCE.arm(0.5, 32), INFO_NCE.held_out_arm(0.5, 32)
    ('InfoNCE 0.5, batch 32', 'held out: InfoNCE 0.5, batch 32')
    """

    name: str
    scalar: str
    default: float
    values: tuple[float, ...]
    settings: Callable[[float], Mapping[str, Any]]
    gradient: Callable[[float], float] = lambda _: 1.0

    def arm(self, value: float, batch: int) -> str:
        """Of runs of full length, measured on test images."""
        return f"{self.name} {value:g}, batch {batch}"

    def held_out_arm(self, value: float, batch: int) -> str:
        """Of short runs, measured on held-out training images."""
        return held_out(self.arm(value, batch))

    def run(self, value: float, batch: int, seed: int, *, quick: bool, epochs: float = EPOCHS) -> Run:
        arm, settings, gradient = self.arm(value, batch), self.settings(value), self.gradient(value)
        return shared_run(arm, seed, settings, batch=batch, epochs=epochs, quick=quick, gradient=gradient)

    def held_out_run(self, value: float, batch: int, *, quick: bool, seed: int = 0) -> Run:
        arm, settings, gradient = self.held_out_arm(value, batch), self.settings(value), self.gradient(value)
        return shared_run(
            arm, seed, settings, batch=batch, epochs=TUNING_EPOCHS, quick=quick, gradient=gradient, held_out=True
        )

    def best(self, found: Found, batch: int, values: tuple[float, ...] | None = None) -> float | None:
        """The value with the best held-out kNN, the default where it is no worse; None before all were tried."""
        scores = {
            value: found.mean(self.held_out_arm(value, batch), "knn").value
            for value in values or self.values
            if found.of(self.held_out_arm(value, batch))
        }
        if len(scores) < len(values or self.values):
            return None
        known = {value: score for value, score in scores.items() if score == score}  # a run that stopped has none
        return max(known, key=lambda value: (known[value], value == self.default), default=self.default)


def shared_run(
    arm: str,
    seed: int,
    settings: Mapping[str, Any],
    *,
    batch: int,
    epochs: float,
    quick: bool,
    gradient: float = 1.0,
    held_out: bool = False,
) -> Run:
    """ResNet-18 on CIFAR-10 with kNN along it; the same settings are the same run, whichever study plans it.

    A gradient that is so many times as large as that of the others gets a rate, and a weight decay, that undo it. Runs
    on held-out images are looked at when they end.
    """
    epoch, recipe = IMAGES // batch, RECIPES[RECIPE]()
    schedule = {"epochs": epochs, "learning_rate": rate_at(batch) / gradient, "batch_size": batch, "log_every": epoch}
    schedule |= {} if gradient == 1 else {"weight_decay": recipe.weight_decay * gradient}
    looks = round(epochs * epoch) if held_out else EVERY * epoch
    schedule |= {"eval_every": looks, "eval_start": False, "checkpoint_every": CHECKPOINTS * epoch}
    protocols = ("knn",) if held_out else ("knn", "linear")
    config = {**settings, **SMALL_VIEWS, **schedule}
    return training_run(
        arm, seed, config, quick=quick, recipe=RECIPE, protocols=protocols, held_out=held_out, shared=True
    )


def at_temperature(objective: str) -> Callable[[float], Mapping[str, Any]]:
    return lambda value: {"objective": objective, "temperature": value}


def sig_lip(value: float) -> Mapping[str, Any]:
    """Its bias, -10, has to outweigh the largest score at the start, or the first steps end all learning."""
    options = {"objective_options": {"bias": -1 / value}} if value < 0.1 else {}
    return {"objective": "siglip", "temperature": value, **options}


TEMPERATURES = (0.1, 0.2, 0.5)
TARGETS = (0.1, 0.25, 0.4)
INFO_NCE = Method("InfoNCE", "temperature", 0.5, TEMPERATURES, at_temperature("infonce"))
FLAT_NCE = Method("FlatNCE", "temperature", 0.1, TEMPERATURES, at_temperature("flatnce"))
FLAT_ESS = Method(
    "FlatNCE, ESS", "ESS target", 0.25, TARGETS, lambda value: {"objective": "flatnce", "ess_target": value}
)
# whose gradient is FlatNCE's divided by the inverse temperature
SOG_CLR = Method("SogCLR", "temperature", 0.1, TEMPERATURES, at_temperature("sogclr"), gradient=lambda value: value)
D_HEL = Method("DHEL", "temperature", 0.1, TEMPERATURES, at_temperature("dhel"))
SIG_LIP = Method("SigLIP", "temperature at the start", 0.1, TEMPERATURES, sig_lip)
VIC_REG = Method(
    "VICReg",
    "variance weight",
    25.0,
    (10.0, 25.0, 50.0),
    lambda value: {"objective": "vicreg", "objective_options": {"variance": value}},
)
PER_ANCHOR = Method(
    "FlatNCE, ESS per anchor",
    "ESS target",
    0.25,
    TARGETS,
    lambda value: {"objective": "flatnce", "ess_target": value, "ess_per_anchor": True},
)
