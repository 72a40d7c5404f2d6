"""Which layers of a network are looked at."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from flatclr.checks import require_one_of
from flatclr.data.sources import ImageSource
from flatclr.evaluation.features import OUTPUT, forward, frozen, rows_of, watched
from flatclr.evaluation.subjects import Subject
from flatclr.models.network import Network

ALL = "all"
_WRAPPERS = re.compile(r"^((encoder|model|head)\.)+")


def is_output(layer: str | None) -> bool:
    """Whether the encoder's output is meant, not a layer inside it or its head."""
    return layer in (None, OUTPUT)


def find_layers(subject: Subject, source: ImageSource, layer: str | None, device: torch.device) -> tuple[str, ...]:
    """Names of the layers that `layer` means: the output, one submodule, or with "all" every part by depth."""
    if layer is None or is_output(layer):
        return (OUTPUT,)
    named = None if layer == ALL else _inside(subject.module, layer)
    if named is not None:
        return (named,)
    images = subject.plain()(source.batch(torch.arange(min(2, len(source)))).to(device))
    known = layers_by_depth(subject.module, images)
    if layer != ALL:
        require_one_of("layer", layer, [*known, ALL])
    if not known:
        raise ValueError(f"layer 'all' must find submodules, got {subject.name} without any; pass an nn.Module.")
    return known


def _inside(module: nn.Module, layer: str) -> str | None:
    """The name under which the module has this layer; of a whole network, `encoder.` may be left out."""
    names = {name for name, _ in module.named_modules() if name}
    if layer not in names and isinstance(module, Network) and f"encoder.{layer}" in names:
        return f"encoder.{layer}"
    return layer if layer in names else None


def layers_by_depth(module: nn.Module, images: Tensor) -> tuple[str, ...]:
    """The top-level parts of encoder and head in order of use, without those that only repeat the one before."""
    names = [name for name, _ in module.named_modules() if name and "." not in _WRAPPERS.sub("", name)]
    with frozen(module), watched(module, names) as seen:
        forward(module, images, "the data")
    kept: dict[str, Tensor] = {}
    for name, value in seen.items():
        if isinstance(value, Tensor) and value.dim() >= 2:
            rows = rows_of(value, name)
            before = next(reversed(kept.values()), None)
            if before is None or before.shape != rows.shape or not torch.allclose(before, rows, atol=1e-6):
                kept[name] = rows
    return tuple(kept)
