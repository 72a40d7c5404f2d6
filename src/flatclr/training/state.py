"""Everything that resuming needs, out of the parts of a run and back into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from flatclr.data.sources import is_comparable
from flatclr.models.encoders import EncoderSpec
from flatclr.models.statistics import mixes_samples
from flatclr.training.build import Parts


class Start(NamedTuple):
    """Where a run begins or goes on."""

    step: int = 0
    owes_evaluation: bool = False  # the one that was due at that step did not come to its end


FIRST = Start()
IN_ANOTHER_ORDER = (
    "weights agree to rounding only with those of a run without a break: at its first step DistributedDataParallel "
    "adds up the gradients of {} processes in another order than later."
)


def state_of(parts: Parts, step: int, *, owes_evaluation: bool = False) -> dict[str, Any]:
    """What a checkpoint holds: the state of the step, of random numbers, and which data it belongs to."""
    state = {
        "train_step": parts.train_step.state_dict(),
        "step": step,
        "owes_evaluation": owes_evaluation,
        "data": parts.data.fingerprint,
        "processes": parts.ranks.size,
        "encoders": [_described(parts, encoder) for encoder in parts.train_step.bare_network.encoders.values()],
        "cpu_random_state": torch.get_rng_state(),
    }
    if parts.device.type == "cuda":
        state["cuda_random_state"] = torch.cuda.get_rng_state(parts.device)
    return state


def _described(parts: Parts, encoder: nn.Module) -> dict[str, Any]:
    """How an encoder is built and its images are normalised, so that a run can be evaluated before its end."""
    spec, own = getattr(encoder, "spec", None), parts.normalisation
    return {
        "spec": {**asdict(spec), "options": dict(spec.options)} if isinstance(spec, EncoderSpec) else None,
        "normalisation": None if own is None else [list(own.mean), list(own.std)],
        "data": parts.data.dataset.name,
    }


def restore(parts: Parts, state: Mapping[str, Any], place: Path) -> list[str]:
    """Put the state back; returns what could not be checked, and what is no longer the same bit for bit.

    Args:
        parts: as they were built from the settings of the run.
        state: what a checkpoint held.
        place: where that came from, for messages.

    Raises:
        ValueError: where the data are not those the run began with, or the state is of another network.
    """
    said = _data_unchecked(parts, str(state["data"])) if "data" in state else []
    try:
        parts.train_step.load_state_dict(state["train_step"])
        torch.set_rng_state(state["cpu_random_state"].cpu())
        if "cuda_random_state" in state and parts.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_random_state"].cpu(), parts.device)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ValueError(f"{place} must hold the state of this run, got another ({reason}); restore it.") from error
    return said + _other_processes(parts, state.get("processes"))


def _other_processes(parts: Parts, then: Any) -> list[str]:
    """What another number of processes changes: not the batches, but the order of sums."""
    now, batch_size = parts.ranks.size, parts.config.batch_size
    if then in (None, now):
        return [] if now <= 2 else [IN_ANOTHER_ORDER.format(now)]
    said = (
        f"the run goes on on {now} processes instead of {then}: the global batch and its order stay the same, but sums "
        "are taken in another order, so weights agree to rounding only"
    )
    if parts.device.type == "cpu" and mixes_samples(parts.train_step.network):
        said += (
            f"; batch normalisation goes by the share of each process, {batch_size // now} samples instead of "
            f"{batch_size // int(then)}, so they will differ by more than that"
        )
    return [f"{said}."]


def _data_unchecked(parts: Parts, then: str) -> list[str]:
    now = parts.data.fingerprint
    if then == now:
        return []
    if not is_comparable(then, now):
        return ["the data could not be compared with those the run began with: an earlier version went by file times."]
    raise ValueError(
        f"the data must be those the run began with, got others from {parts.data.dataset.name}; restore them or "
        "start a new run."
    )
