"""What can be asked of a contrast, stated once: for type checkers, with defaults, and checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypedDict

import torch
from torch import Tensor

from flatclr.checks import require_count, require_number, require_one_of, require_switch
from flatclr.contrast.luck import GENERATORS
from flatclr.contrast.relation import PAIRINGS

BACKENDS = ("auto", "torch", "triton")
ROUTES = ("auto", "dense", "streamed", "strips", "fused")
SWITCHES = ("in_batch_negatives", "normalize", "gather", "check_embeddings", "shared_loss", "with_ess")


class Given(TypedDict, total=False):
    """What a call may say of its samples."""

    negative_labels: Tensor | None
    negative_ids: Tensor | None
    labels: Tensor | None
    ids: Tensor | None
    hard_negatives: Tensor | None


class SharedOptions(TypedDict, total=False):
    """What objectives and `flatclr.contrast_stats` can both be asked for."""

    pairing: str
    in_batch_negatives: bool
    negatives_per_anchor: int | None
    generator: torch.Generator | None
    normalize: bool
    gather: bool
    backend: str
    route: str
    check_embeddings: bool
    false_negative_margin: float | None


class ContrastOptions(SharedOptions, total=False):
    """The types of the options of every objective, for type checkers.

    `flatclr.contrast_stats` says what each option means, and takes them too; `graphed` is of objectives alone, and
    `flatclr.Objective` says what it means.

    >>> options: ContrastOptions = {"pairing": "cross", "gather": True}
    >>> flatclr.InfoNCE(temperature=0.1, **options).options["pairing"]
    'cross'
    """

    graphed: bool


class CallOptions(SharedOptions, Given, total=False):
    """What one call of `contrast_stats` takes."""

    negatives: Tensor | None
    shared_loss: bool
    with_ess: bool


@dataclass(frozen=True)
class Options:
    """The options of a contrast with their defaults; making one checks them.

    `flatclr.contrast_stats` says what each option means.

    >>> Options(pairing="cross").normalize
    True
    """

    pairing: str = "two_view"
    in_batch_negatives: bool = True
    negatives_per_anchor: int | None = None
    generator: torch.Generator | None = None
    normalize: bool = True
    gather: bool = False
    backend: str = "auto"
    route: str = "auto"
    check_embeddings: bool = False
    false_negative_margin: float | None = None
    shared_loss: bool = False
    with_ess: bool = False

    def __post_init__(self) -> None:
        require_one_of("pairing", self.pairing, PAIRINGS)
        require_one_of("backend", self.backend, BACKENDS)
        require_one_of("route", self.route, ROUTES)
        if self.negatives_per_anchor is not None:
            require_count("negatives_per_anchor", self.negatives_per_anchor, advice="leave it out to use all.")
        if not isinstance(self.generator, torch.Generator | None):
            raise TypeError(
                f"generator must be a torch.Generator, got {type(self.generator).__name__}; seed one and pass it."
            )
        if self.generator is not None:
            GENERATORS[id(self.generator)] = self.generator
        if self.false_negative_margin is not None:
            margin, advice = self.false_negative_margin, "0.1 is a usual choice."
            require_number("false_negative_margin", margin, above=-10, below=10, advice=advice)
            if not self.normalize:
                raise ValueError(
                    "false_negative_margin must be measured in cosines, got normalize=False; leave one of them out."
                )
        for name in SWITCHES:
            require_switch(name, getattr(self, name))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # a copy has a generator of its own


OPTION_NAMES = tuple(field.name for field in fields(Options))
GIVEN_NAMES = tuple(Given.__annotations__)


def apart(of: str, keywords: CallOptions) -> tuple[Options, dict[str, Any]]:
    """The keywords of a call, told apart into what it asks for and what it brings."""
    brings = ("negatives", *GIVEN_NAMES)
    for name in keywords:
        require_one_of(f"option of {of}", name, (*OPTION_NAMES, *brings))
    options: dict[str, Any] = {name: value for name, value in keywords.items() if name in OPTION_NAMES}
    return Options(**options), {name: value for name, value in keywords.items() if name in brings}
