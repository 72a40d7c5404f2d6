"""Projection heads: what stands between the features a user takes away and the embeddings that are contrasted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flatclr.checks import require_count, require_one_of
from flatclr.models.encoders import NORMS, norm_layer


def build_head(
    d_in: int, *, d_hidden: int | None = None, d_out: int = 128, layers: int = 2, norm: str = "batch"
) -> nn.Sequential:
    """SimCLR's projection head (Chen et al. 2020): linear layers with normalisation and ReLU between them.

    Args:
        d_in, d_out: width of the features and of the embeddings.
        d_hidden: width in between, `d_in` unless given; without use where `layers` is 1.
        layers: 1 (linear), 2 or 3.
        norm: "batch", "group" or "none", after every layer but the last.

    Returns:
        From features [N, d_in] to embeddings [N, d_out].

    >>> list(dict(build_head(512).named_children()))
    ['linear1', 'norm1', 'relu1', 'linear2']
    """
    require_count("d_in", d_in, advice="pass encoder.features.")
    require_count("d_out", d_out, advice="128 is a good start.")
    require_count("layers", layers, at_most=3, advice="1 is a linear head, 2 is SimCLR's.")
    require_one_of("norm", norm, NORMS)
    if d_hidden is not None:
        require_count("d_hidden", d_hidden, advice="leave it out for the width of the features.")
    width, parts = d_in, OrderedDict[str, nn.Module]()
    for layer in range(1, layers):
        hidden = d_hidden or d_in
        parts[f"linear{layer}"] = nn.Linear(width, hidden, bias=norm == "none")
        parts[f"norm{layer}"] = norm_layer(norm, hidden, spatial=False)
        parts[f"relu{layer}"] = nn.ReLU()
        width = hidden
    parts[f"linear{layers}"] = nn.Linear(width, d_out)
    return nn.Sequential(parts)


def head_from_state(state: Mapping[str, Tensor]) -> nn.Sequential:
    """The head of `build_head` that a state dict was taken from, with its weights, in evaluation mode.

    Args:
        state: what `state_dict()` of such a head returned. Its names and shapes say how the head was built.

    Returns:
        A head on the CPU. The random state is left as it was.

    >>> head = build_head(8, d_hidden=16, d_out=4, layers=3, norm="group").eval()
    >>> x = torch.randn(2, 8)
    >>> torch.equal(head_from_state(head.state_dict())(x), head(x))
    True
    """
    layers = sum(name.startswith("linear") and name.endswith(".weight") for name in state)
    if not layers:
        raise ValueError(f"a head's state must have linear layers, got {sorted(state)[:3]}; pass that of build_head.")
    first, last = state["linear1.weight"], state[f"linear{layers}.weight"]
    with torch.random.fork_rng(devices=()):  # the first weights are drawn, and replaced
        head = build_head(
            first.shape[1], d_hidden=first.shape[0], d_out=last.shape[0], layers=layers, norm=_norm_of(state)
        )
    head.load_state_dict(state)
    return head.eval()


def _norm_of(state: Mapping[str, Tensor]) -> str:
    if "norm1.running_mean" in state:
        return "batch"
    return "group" if "norm1.weight" in state else "none"
