"""A loss on a GPU asks the host nothing: what would wait for the device is not called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flatclr

WAITING = ("_local_scalar_dense", "nonzero", "lift_fresh", "masked_select", "_unique2", "repeat_interleave.Tensor")


class Recorded(TorchDispatchMode):
    """Operations that read a number from the device, or bring one there from pageable memory."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(name in str(function) for name in WAITING):
            self.waiting.append(str(function))
        return function(*args, **(kwargs or {}))


def views_of(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator, requires_grad=True) for _ in range(count)]


OBJECTIVES: dict[str, Callable[..., flatclr.Objective]] = {
    "infonce": lambda **options: flatclr.InfoNCE(0.1, **options),
    "flatnce under control": lambda **options: flatclr.FlatNCE(flatclr.EssControl(0.5), **options),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("pairing", ["views", "cross", "one_way", "within"])
@pytest.mark.parametrize("route", ["dense", "streamed"])
@pytest.mark.parametrize("views", [2, 3, 8])
def test_a_step_of_several_views_waits_for_nothing(name: str, pairing: str, route: str, views: int) -> None:
    objective, embeddings = OBJECTIVES[name](pairing=pairing, route=route), views_of(views)
    objective(*embeddings)  # what is made once is made
    with Recorded() as recorded:
        objective(*embeddings).backward()
    assert recorded.waiting == []
