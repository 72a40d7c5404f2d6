"""The pace of a run before it begins: a few steps are tried and taken back."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch

from flatclr.capture import is_out_of_memory
from flatclr.training.build import Parts
from flatclr.training.config import OWN
from flatclr.training.progress import Pace

TRIAL_STEPS = 4  # of which the first, which sets things up, is not timed
LONG_STEP_S = 4.0  # from which the first step is measure enough
LEAST_STEPS = 25 * TRIAL_STEPS  # of a run: a trial costs it 4 % at most
FORWARD_SHARE = 1 / 3  # of a step, whose way back costs twice its way there
KINDS = 4  # of images an evaluation looks at: training and test images, and two views of a pool


def trial_pace(parts: Parts, step: int, signs: Callable[[str, int, int], None] | None = None) -> Pace | None:
    """What a step takes; everything is left as it was, bit for bit.

    None where steps cannot be tried without a trace or at little cost: of a short run, on a GPU, which tells its pace
    within seconds, on several processes, on data that is read as it goes, with modules of the user's own.

    Args:
        parts: ready for the first step.
        step: how many were taken.
        signs: called with (what, done, total).
    """
    config, train_step = parts.config, parts.train_step
    left = parts.schedule.total_steps - step
    if parts.device.type != "cpu" or parts.ranks.size > 1 or parts.loader.resident is None or left < LEAST_STEPS:
        return None
    if OWN in (config.encoder, config.objective) or config.compile:
        return None
    before, drawn, inputs = copy.deepcopy(train_step.state_dict()), torch.get_rng_state(), train_step.inputs
    try:
        return _tried(parts, step, signs)
    except (RuntimeError, MemoryError) as error:  # the step itself will say which batch fits
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        train_step.inputs = inputs
        train_step.load_state_dict(before)
        train_step.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(drawn)


def _tried(parts: Parts, step: int, signs: Callable[[str, int, int], None] | None) -> Pace:
    since, untimed = time.monotonic(), 0
    for number, (at, batch) in enumerate(parts.loader.steps(step, step + TRIAL_STEPS), 1):
        parts.schedule.apply(parts.train_step, at)
        parts.train_step(batch, at)
        elapsed_s = time.monotonic() - since
        if signs is not None:
            signs("measuring the pace", number, TRIAL_STEPS)
        if elapsed_s >= LONG_STEP_S:
            break
        if number == 1:
            since, untimed = time.monotonic(), 1
    return Pace(elapsed_s / (number - untimed), number - untimed)


def evaluation_s(parts: Parts, step_s: float) -> float:
    """About what an evaluation takes, by the pace of steps."""
    images = KINDS * min(parts.validation.samples, len(parts.data.source))
    views = parts.config.batch_size * parts.train_step.inputs.views_per_sample
    return FORWARD_SHARE * step_s * images / views
