"""From a config to the objective of a run."""

from __future__ import annotations

from typing import Any

from flatclr.objectives import OBJECTIVES, EssControl, Objective
from flatclr.training.config import OWN, TrainConfig


def build_objective(config: TrainConfig, *, paired: bool = False, own: Objective | None = None) -> Objective:
    """The user's own, or the one a config names: with ESS control unless a temperature is given or it has none."""
    if own is not None:
        _require_agreement(own, config, paired=paired)
        return own
    if config.objective == OWN:
        raise ValueError(
            "objective must be passed where it is one of your own, got none; call flatclr.train(..., objective=...)."
        )
    kind = OBJECTIVES[config.objective]
    options: dict[str, Any] = {"gather": True, **config.objective_options}
    if "temperature" in options:
        raise ValueError(
            f"temperature must be a setting of its own, got it in objective_options; use --temperature "
            f"{options['temperature']}."
        )
    if config.pairing is not None:
        options["pairing"] = config.pairing
    elif paired:
        options.setdefault("pairing", "cross")
    if config.negatives_per_anchor is not None:
        options["negatives_per_anchor"] = config.negatives_per_anchor
    traits = kind.traits_with(**options)
    if config.temperature is not None:
        if traits.temperature is None:
            raise ValueError(f"temperature must be None for {config.objective}, got {config.temperature}; it has none.")
        options["temperature"] = config.temperature
    elif config.ess_targets and traits.temperature is not None and traits.accepts_control:
        options["temperature"] = _control(traits.temperature, config.ess_targets[0][1])
    return kind(**options)


def _require_agreement(own: Objective, config: TrainConfig, *, paired: bool) -> None:
    """Nothing that a config says of the objective may be passed over because it came from Python."""
    unused = [name for name in ("objective_options", "negatives_per_anchor") if getattr(config, name)]
    if unused:
        raise ValueError(
            f"{unused[0]} must be left to your own objective, got {getattr(config, unused[0])!r}; pass it to that."
        )
    has, wanted = own.options.get("pairing", "two_view"), config.pairing
    if wanted is not None and has != wanted:
        raise ValueError(f"objective must have pairing={wanted!r} as the config, got {has!r}; make it with that.")
    if paired and has not in ("cross", "one_way") and wanted is None:
        raise ValueError(f"objective must have pairing='cross' for paired data, got {has!r}; make it with that.")


def _control(temperature: float, target: float) -> EssControl:
    """It begins at the objective's own temperature, and keeps within a factor of ten of it."""
    return EssControl(target, initial=1 / temperature, minimum=0.1 / temperature, maximum=10 / temperature)
