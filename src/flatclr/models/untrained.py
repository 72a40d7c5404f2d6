"""The same architecture with random weights, to compare trained ones with."""

from __future__ import annotations

import copy

import torch
from torch import nn

from flatclr.models.encoders import EncoderSpec, build_encoder
from flatclr.models.network import Network, device_of


def untrained(module: nn.Module, seed: int) -> nn.Module | None:
    """A copy with weights drawn anew, the same for the same seed on every device.

    Args:
        module: an encoder of `build_encoder`, a `Network`, or any module whose parts have `reset_parameters`.
        seed: of the weights. The random state is left as it was.

    Returns:
        The copy on the module's device; None where some part has parameters but no `reset_parameters`.

    >>> layer = torch.nn.Linear(2, 2)
    >>> torch.equal(untrained(layer, 0).weight, untrained(layer, 0).weight)
    True
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the devices too
        return _redrawn(module)


def _redrawn(module: nn.Module) -> nn.Module | None:
    if isinstance(module, Network):
        encoder, head = _redrawn(module.encoder), _redrawn(module.head)
        return None if encoder is None or head is None else Network(encoder, head)
    spec = getattr(module, "spec", None)
    if isinstance(spec, EncoderSpec):
        fresh = build_encoder(spec.name, channels=spec.channels, image_size=spec.image_size, **spec.options)
        return fresh.to(device_of(module))
    fresh_copy = copy.deepcopy(module).cpu()  # drawn there, whatever the device
    own = [part for part in fresh_copy.modules() if next(part.parameters(recurse=False), None) is not None]
    if not own or not all(callable(getattr(part, "reset_parameters", None)) for part in own):
        return None
    for part in fresh_copy.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    return fresh_copy.to(device_of(module))
