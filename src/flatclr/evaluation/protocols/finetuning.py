"""Protocols that train the whole network with labels: all of them, or a few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from flatclr.evaluation.bench import Bench
from flatclr.evaluation.finetune import RECIPES, Recipe, class_balanced, finetune, shortage
from flatclr.evaluation.protocols.base import Measured, Protocol, scored

LABEL_SHARES = (0.01, 0.1)


def measure_finetune(bench: Bench, variant: str = "") -> Iterator[Measured]:
    """Fine-tuning on all training images."""
    recipe, images = RECIPES[bench.recipe], len(bench.data.train)
    logits_NC = _finetuned(bench, recipe, None, bench.seed, "fine-tuning")
    chosen = {**_stated(recipe), "steps": recipe.steps(images)}
    yield Measured(scored(bench, logits_NC), bench.variant(variant), chosen)


def measure_semi(bench: Bench) -> Iterator[Measured]:
    """Fine-tuning on a small share of the labels, drawn several times."""
    recipe = RECIPES[bench.recipe]
    for share in LABEL_SHARES:
        drawn = [
            class_balanced(bench.data.labels, share, classes=bench.classes, seed=bench.seed + draw)
            for draw in range(bench.draws)
        ]
        logits = [_of_draw(bench, recipe, share, draw, chosen) for draw, chosen in enumerate(drawn)]
        labels = len(drawn[0])
        yield Measured(
            scored(bench, *logits),
            bench.variant(f"{share:.0%} of the labels"),
            {**_stated(recipe), "labels": labels, "draws": bench.draws, "steps": recipe.steps(labels)},
        )


def _of_draw(bench: Bench, recipe: Recipe, share: float, draw: int, chosen: Tensor) -> Tensor:
    # from scratch: every draw has an initialisation of its own
    anew = bench.subject.at_random(bench.seed + draw) if bench.random else None
    start = bench if anew is None else replace(bench, subject=anew)
    if (told := bench.progress) is not None:  # of all draws, so that what is left of the protocol can be told
        start = replace(start, progress=lambda what, done, total: told(what, draw * total + done, bench.draws * total))
    return _finetuned(start, recipe, chosen, bench.seed + draw, f"{share:.0%} of the labels")


def _finetuned(bench: Bench, recipe: Recipe, chosen: Tensor | None, seed: int, what: str) -> Tensor:
    return finetune(
        bench.subject,
        bench.data.train,
        bench.data.labels,
        bench.test,
        classes=bench.classes,
        chosen=chosen,
        recipe=recipe,
        device=bench.device,
        seed=seed,
        progress=bench.progress,
        what=what,
    )


def _stated(recipe: Recipe) -> dict[str, Any]:
    names = ("optimizer", "learning_rate", "weight_decay", "batch_size")
    return {name: getattr(recipe, name) for name in names}


def _too_few_to_draw(bench: Bench) -> str | None:
    short = (shortage(bench.data.labels, share, bench.data.train.classes) for share in LABEL_SHARES)
    return next((reason for reason in short if reason is not None), None)


FINETUNE = Protocol(3, measure_finetune, trains=True, needs_images=True)
SEMI = Protocol(3, measure_semi, one_class=True, trains=True, needs_images=True, too_few=_too_few_to_draw)
