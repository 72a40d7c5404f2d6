"""What to evaluate, on what and how: the arguments of `flatclr.evaluate` and of `flatclr eval`, stated once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from flatclr.checks import require_count, require_one_of, require_seed
from flatclr.data.named import Progress
from flatclr.evaluation.finetune import OWN, RECIPES
from flatclr.evaluation.layers import is_output
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.evaluation.results import Row
from flatclr.models.network import Normalisation

ALLOWED = "auto"  # the protocols that the data allows; on other data only where that is named
OnRow = Callable[[Row], None]
P = ParamSpec("P")
Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class EvaluationRequest:
    """The arguments of `evaluate`, which says what each means; a field's default is the argument's."""

    run_or_encoder: Any
    data: Any = None
    protocol: str | Sequence[str] = "knn"
    _: KW_ONLY
    layer: str | None = None
    transfer_data: Any = None
    data_dir: str | Path | None = None
    image_size: int | None = None
    architecture: str | None = None
    prefix: str = ""
    into: nn.Module | None = None
    head: nn.Module | None = None
    normalisation: Normalisation | None = None
    random_row: bool = True
    draws: int = 5
    recipe: str = OWN
    seed: int = 0
    device: str | torch.device = "auto"
    cache: str | Path | None = None
    out: str | Path | None = None
    progress: Progress | None = None
    on_row: OnRow | None = None

    def __post_init__(self) -> None:
        for name in self._named_protocols():
            require_one_of("protocol", name, [*PROTOCOLS, ALLOWED, "all"])
        if not self.protocols:
            raise ValueError("protocol must name at least one, got none; pass 'knn'.")
        require_count("draws", self.draws, advice="5 is the default.")
        require_one_of("recipe", self.recipe, RECIPES)
        require_seed("seed", self.seed)
        if self.image_size is not None:
            require_count("image_size", self.image_size, advice="pass the side in pixels, or leave it out.")
        if self.run_or_encoder == "":
            raise ValueError("an encoder must be named, got ''; pass a run directory, a file or timm:NAME.")

    @property
    def protocols(self) -> list[str]:
        """Names of the protocols, each once, in the order asked for."""
        names = self._named_protocols()
        if "all" in names:
            return list(PROTOCOLS)
        if self.is_explicit:
            return names
        return [name for name in PROTOCOLS if not PROTOCOLS[name].elsewhere or self.transfer_data is not None]

    @property
    def is_explicit(self) -> bool:
        """Whether protocols are named, not left to the data."""
        return ALLOWED not in self._named_protocols()

    @property
    def probing(self) -> bool:
        """Whether layers are looked at, not the encoder's output."""
        return not is_output(self.layer)

    def _named_protocols(self) -> list[str]:
        return [self.protocol] if isinstance(self.protocol, str) else list(dict.fromkeys(self.protocol))


def taking(
    make: Callable[P, Request],
) -> Callable[[Callable[[Request], Result]], Callable[P, Result]]:
    """Let a function of one request be called with the request's fields as arguments.

    >>> @taking(complex)
    ... def squared(number): return abs(number) ** 2
    >>> squared(3, imag=4)
    25.0
    """

    def spread(function: Callable[[Request], Result]) -> Callable[P, Result]:
        signature = inspect.signature(make)

        @functools.wraps(function)
        def called(*arguments: P.args, **options: P.kwargs) -> Result:
            try:
                signature.bind(*arguments, **options)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(make(*arguments, **options))

        returned = inspect.signature(function).return_annotation
        called.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return called

    return spread
