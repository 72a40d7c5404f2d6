"""What to do when a batch does not fit: find, by trying, a micro-batch that does."""

from __future__ import annotations

from dataclasses import replace

import torch

from flatclr.capture import is_out_of_memory
from flatclr.data.loading import Batch
from flatclr.training.step import TrainStep


def micro_batch_that_fits(train_step: TrainStep, batch: Batch, step: int) -> int | None:
    """The largest halving of the batch whose forward and backward pass fits; the parameters are not updated."""
    at_once = (train_step.micro_batch or len(batch[0])) // 2
    while at_once >= 1:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            smaller = replace(train_step, micro_batch=at_once)
            index = None if smaller.samples_of is None else smaller.samples_of(step)
            smaller.backward(smaller.inputs.draw(batch, step), len(batch[0]), index)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            at_once //= 2
        else:
            return at_once
        finally:
            train_step.optimizer.zero_grad(set_to_none=True)
    return None
