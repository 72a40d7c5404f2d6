"""Everything that resuming needs, out of the parts of a run and back into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flatclr.training.build import Parts


def state_of(parts: Parts, step: int) -> dict[str, Any]:
    """What a checkpoint holds: the state of the step, of random numbers, and which data it belongs to."""
    state = {
        "train_step": parts.train_step.state_dict(),
        "step": step,
        "data": parts.data.fingerprint,
        "cpu_random_state": torch.get_rng_state(),
    }
    if parts.device.type == "cuda":
        state["cuda_random_state"] = torch.cuda.get_rng_state(parts.device)
    return state


def restore(parts: Parts, state: Mapping[str, Any]) -> int:
    """Put the state back; returns the step it was taken after.

    Raises:
        ValueError: where the data are not those the run began with.
    """
    if state["data"] != parts.data.fingerprint:
        raise ValueError(
            f"the data must be those the run began with, got others from {parts.data.dataset.name}; restore them or "
            "start a new run."
        )
    parts.train_step.load_state_dict(state["train_step"])
    torch.set_rng_state(state["cpu_random_state"].cpu())
    if "cuda_random_state" in state and parts.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_random_state"].cpu(), parts.device)
    return int(state["step"])
