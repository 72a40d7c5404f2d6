"""Transfer: what the encoder is worth on data that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator

from flatclr.evaluation.bench import Bench
from flatclr.evaluation.features import OUTPUT
from flatclr.evaluation.finetune import OWN
from flatclr.evaluation.protocols.base import Measured, Protocol
from flatclr.evaluation.protocols.finetuning import measure_finetune
from flatclr.evaluation.protocols.frozen import measure_linear, measure_linear_by_adam


def measure_transfer(bench: Bench) -> Iterator[Measured]:
    """The linear probe on other data and, of the output of a network with weights, fine-tuning."""
    away = bench.elsewhere()
    yield from (measure_linear if bench.recipe == OWN else measure_linear_by_adam)(away, "linear")
    if bench.subject.trainable and bench.layer == OUTPUT:
        yield from measure_finetune(away, "finetune")


TRANSFER = Protocol(3, measure_transfer, needs_labels=False, elsewhere=True, needs_images=True)
