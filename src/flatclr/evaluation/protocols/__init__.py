"""The protocols: each fixed, documented in docs/evaluation.md, and versioned.

Nothing is selected on test data: what a protocol chooses, it chooses on training data, and says so in `chosen`.
"""

from __future__ import annotations

from flatclr.evaluation.bench import Bench
from flatclr.evaluation.protocols.base import Measured, Protocol
from flatclr.evaluation.protocols.finetuning import FINETUNE, SEMI
from flatclr.evaluation.protocols.frozen import KNN, LINEAR, RETRIEVAL, TEN_NEIGHBOURS
from flatclr.evaluation.protocols.label_free import GEOMETRY, MI
from flatclr.evaluation.protocols.transfer import TRANSFER
from flatclr.evaluation.splits import IMAGES

__all__ = ["PROTOCOLS", "TEN_NEIGHBOURS", "Measured", "Protocol", "unfit"]

PROTOCOLS: dict[str, Protocol] = {
    "knn": KNN,
    "linear": LINEAR,
    "finetune": FINETUNE,
    "semi": SEMI,
    "transfer": TRANSFER,
    "retrieval": RETRIEVAL,
    "geometry": GEOMETRY,
    "mi": MI,
}
"""The protocols by the name that `evaluate(..., protocol=)` and `flatclr eval --protocol` take."""


def unfit(name: str, bench: Bench, *, probing: bool) -> str | None:
    """Why a protocol cannot be run on this, in one line; None if it can."""
    protocol, kind = PROTOCOLS[name], bench.data.kind
    if protocol.needs_images and kind != IMAGES:
        others = ", ".join(other for other in PROTOCOLS if not PROTOCOLS[other].needs_images)
        return f"protocol {name} must be for images, got {kind} ({bench.data.name}); {kind} have {others}."
    problem = _problem_with_labels(name, bench) if protocol.needs_labels else None
    if problem is not None:
        return problem
    if protocol.elsewhere:
        return _unfit_elsewhere(bench)
    too_few = protocol.too_few(bench)
    if too_few is not None:
        return f"protocol {name} must have {too_few} of {bench.data.name}; add {kind}, or leave it out."
    if protocol.trains and probing:
        return f"protocol {name} must train the whole network, got a layer to probe; leave layer out."
    if protocol.trains and not bench.subject.trainable:
        return f"protocol {name} must have weights to train, got {bench.subject.name} without any; pass an nn.Module."
    return None


def _problem_with_labels(name: str, bench: Bench) -> str | None:
    data = bench.data
    if not data.labelled:
        lacking = f"no test {data.kind}" if data.test is None else "no labels"
        advice = "label them, or use geometry or mi." if data.kind == IMAGES else "label them."
        return (
            f"protocol {name} must have labelled training and test {data.kind}, got {lacking} in {data.name}; {advice}"
        )
    if data.several_classes and PROTOCOLS[name].one_class:
        return f"protocol {name} must have one class per image, got several in {data.name}; use linear or finetune."
    return data.problem_with_labels()


def _unfit_elsewhere(bench: Bench) -> str | None:
    try:
        away = bench.elsewhere()
    except ImportError as error:
        return str(error)
    return unfit("linear", away, probing=False)
