"""From a config to the network of a run: encoders and projection heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatclr.data.sources import AnySource, PairedArrays
from flatclr.evaluation.features import frozen
from flatclr.models.encoders import TEXT_ENCODER, build_encoder
from flatclr.models.heads import build_head
from flatclr.models.network import Network, TwoTowers, device_of, features_of
from flatclr.training.config import OWN, TrainConfig
from flatclr.training.supervised import class_labels


def build_network(config: TrainConfig, data: AnySource, encoder: nn.Module | None) -> nn.Module:
    """A network for images, around the user's own encoder if one is given; two of them for paired data."""
    if isinstance(data, PairedArrays):
        if encoder is not None:
            raise ValueError(
                f"an encoder of your own must be for images, got {type(encoder).__name__} for paired data; "
                "use the objectives in a loop of your own."
            )
        return _build_towers(config, data)
    if config.towers is not None:
        raise ValueError(f"towers must be left out for images, got {config.towers!r}; only paired data has two sides.")
    if encoder is None and config.encoder == OWN:
        raise ValueError("the run trained an encoder of your own, got none; resume with flatclr.train(encoder=...).")
    if encoder is None:
        encoder = _built(config, channels=data.channels, size=data.image_size, small=data.channels == 1)
    sizes = {group.size or data.image_size for _, groups in config.view_plan for group in groups}
    for size in sorted(sizes - {data.image_size}):
        _require_takes(encoder, torch.zeros(2, data.channels, size, size))
    example = torch.zeros(2, data.channels, data.image_size, data.image_size)
    labels = class_labels(config, data)
    if labels is not None:  # the head is the classifier
        config = config.changed(head_layers=1, embedding=int(labels.max()) + 1)
    return build_tower(config, encoder, example)


def _build_towers(config: TrainConfig, data: PairedArrays) -> TwoTowers:
    """A tower for each side, or one for both."""
    sides = [data.x] if config.towers == "shared" else [data.x, data.y]
    if len(sides) == 1 and data.x.shape != data.y.shape:
        raise ValueError(
            f"towers must be 'separate' where sides differ in shape, got 'shared' for {list(data.x.shape[1:])} and "
            f"{list(data.y.shape[1:])}; leave it out."
        )
    towers = [build_tower(config, _side_encoder(config, side, data.tokens), side[:2]) for side in sides]
    return TwoTowers(towers[0], towers[-1])


def _require_takes(encoder: nn.Module, views: Tensor) -> None:
    """Views of another size than the images, before any work starts: not every encoder takes both."""
    try:
        with frozen(encoder):
            encoder(views.to(device_of(encoder)))
    except (ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(
            f"view_size must be one that the encoder takes beside the images' own, got {views.shape[-1]} ({error}); "
            "leave it out, or use a convolutional encoder."
        ) from error


def build_tower(config: TrainConfig, encoder: nn.Module, example: Tensor) -> Network:
    """An encoder with a new projection head."""
    norm = str(config.encoder_options.get("norm", "batch"))
    head = build_head(
        features_of(encoder, example),
        d_hidden=config.head_width,
        d_out=config.embedding,
        layers=config.head_layers,
        norm=norm,
    )
    return Network(encoder, head)


def _side_encoder(config: TrainConfig, side: Tensor, tokens: bool) -> nn.Module:
    if config.encoder != "auto" and (config.encoder == TEXT_ENCODER) != tokens:
        kind = "sentences" if tokens else "numbers"
        raise ValueError(
            f"encoder must be {TEXT_ENCODER!r} for sentences and no other data, got {config.encoder!r} for {kind}; "
            "leave it out."
        )
    if tokens:
        return build_encoder(TEXT_ENCODER, channels=side.shape[1], image_size=1, **config.encoder_options)
    if side.dim() == 4:
        return _built(config, channels=side.shape[1], size=max(side.shape[2:]), small=side.shape[1] == 1)
    name = "mlp" if config.encoder == "auto" else config.encoder
    return build_encoder(name, channels=side.shape[1], image_size=1, **config.encoder_options)


def _built(config: TrainConfig, *, channels: int, size: int, small: bool) -> nn.Module:
    name = config.encoder
    if name == "auto":
        name = "cnn" if small and size <= 32 else "resnet18"
    return build_encoder(name, channels=channels, image_size=size, **config.encoder_options)
