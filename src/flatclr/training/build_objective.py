"""From a config to the objective of a run."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flatclr.objectives import OBJECTIVES, EssControl, Matryoshka, Objective, Traits
from flatclr.objectives.critics import CriticObjective
from flatclr.training.config import OWN, SUPERVISED, TrainConfig, require_use_of_ess_target, takes_ess_target
from flatclr.training.supervised import CrossEntropy

LEFT_TO_OWN = {  # settings that an objective from Python brings with it, and how
    "objective_options": "pass them to that",
    "negatives_per_anchor": "pass it to that",
    "ess_per_anchor": "make that with temperature=EssControl(target, per_anchor=True)",
    "prefixes": "wrap that in Matryoshka(objective, dims)",
}


def build_objective(
    config: TrainConfig, *, paired: bool = False, own: Objective | None = None, labels: Tensor | None = None
) -> Objective:
    """The user's own, or the one a config names: with ESS control unless a temperature is given or it takes none."""
    if own is not None:
        _require_agreement(own, config, paired=paired)
        return own
    if config.objective == OWN:
        raise ValueError(
            "objective must be passed where it is one of your own, got none; call flatclr.train(..., objective=...)."
        )
    if config.temperature is None and config.ess_target not in (None, TrainConfig.ess_target):  # which is no wish
        require_use_of_ess_target(config)
    if labels is not None:
        return _supervised(config, labels)
    kind = OBJECTIVES[config.objective]
    options: dict[str, Any] = {"gather": True, **kind.traits.training_options, **config.objective_options}
    if "temperature" in options:
        raise ValueError(
            f"temperature must be a setting of its own, got it in objective_options; use --temperature "
            f"{options['temperature']}."
        )
    if config.pairing is not None:
        options["pairing"] = config.pairing
    elif paired and kind.traits.uses_negatives:
        options.setdefault("pairing", "cross")
    if config.negatives_per_anchor is not None:
        options["negatives_per_anchor"] = config.negatives_per_anchor
    has_critic = issubclass(kind, CriticObjective) and config.has_critic
    if has_critic:
        options.setdefault("critic_dim", config.embedding)
        options["temperature"] = 1.0  # its scores have a scale of their own
    traits = kind.traits_with(**options)
    _require_what_it_has(config, traits)
    if config.temperature is not None:
        if traits.temperature is None:
            raise ValueError(f"temperature must be None for {config.objective}, got {config.temperature}; it has none.")
        options["temperature"] = config.temperature
    elif config.ess_targets and traits.temperature is not None and takes_ess_target(config):
        options["temperature"] = _control(traits.temperature, config)
    objective = kind(**options)
    if config.prefixes is None:
        return objective
    return Matryoshka(objective, sorted({*config.prefixes, config.embedding}))


def _supervised(config: TrainConfig, labels: Tensor) -> CrossEntropy:
    for name in ("objective_options", "pairing", "negatives_per_anchor", "prefixes", "temperature", "momentum"):
        if given := getattr(config, name):
            raise ValueError(f"{name} must be left out for {SUPERVISED}, got {given!r}; it compares no views.")
    if config.positives != "views":
        raise ValueError(f"positives must be 'views' for {SUPERVISED}, got {config.positives!r}; leave it out.")
    _require_what_it_has(config, CrossEntropy.traits)
    return CrossEntropy(labels, gather=True)


def _require_what_it_has(config: TrainConfig, traits: Traits) -> None:
    """Nothing that a config says may be passed over because this objective has no use for it."""
    if config.queue and not traits.uses_negatives:
        raise ValueError(f"queue must be 0 for {config.objective}, got {config.queue}; it has no negatives.")
    controlled = config.temperature is None and traits.accepts_control and traits.temperature is not None
    if config.ess_per_anchor and not controlled:
        raise ValueError(
            f"ess_per_anchor must go with ESS control, got objective {config.objective} and temperature "
            f"{config.temperature}; use an objective that takes an EssControl, and no temperature."
        )


def _require_agreement(own: Objective, config: TrainConfig, *, paired: bool) -> None:
    """Nothing that a config says of the objective may be passed over because it came from Python."""
    for name, advice in LEFT_TO_OWN.items():
        if given := getattr(config, name):
            raise ValueError(f"{name} must be left to your own objective, got {given!r}; {advice}.")
    has, wanted = own.options.get("pairing", "two_view"), config.pairing
    if wanted is not None and has != wanted:
        raise ValueError(f"objective must have pairing={wanted!r} as the config, got {has!r}; make it with that.")
    if paired and has not in ("cross", "one_way") and wanted is None:
        raise ValueError(f"objective must have pairing='cross' for paired data, got {has!r}; make it with that.")


def _control(temperature: float, config: TrainConfig) -> EssControl:
    """It begins at the objective's own temperature, and keeps within a factor of ten of it."""
    return EssControl(
        config.ess_targets[0][1],
        initial=1 / temperature,
        minimum=0.1 / temperature,
        maximum=10 / temperature,
        per_anchor=config.ess_per_anchor,
    )
