"""From a config to the parts of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatclr.checks import checked_device
from flatclr.data.sources import Dataset, FileImages, ImageSource, PairedArrays
from flatclr.data.views import ViewConfig, views_for
from flatclr.evaluation.features import frozen
from flatclr.models.encoders import build_encoder
from flatclr.models.heads import build_head
from flatclr.models.network import Network, TwoTowers, device_of, features_of
from flatclr.objectives import OBJECTIVES, EssControl, Objective
from flatclr.runs import new_directory
from flatclr.training.config import OWN, TrainConfig


def build_objective(config: TrainConfig, *, paired: bool = False, own: Objective | None = None) -> Objective:
    """The user's own, or the one a config names: with ESS control unless a temperature is given or it has none."""
    if own is not None:
        _require_agreement(own, config, paired=paired)
        return own
    if config.objective == OWN:
        raise ValueError(
            "objective must be passed where it is one of your own, got none; call flatclr.train(..., objective=...)."
        )
    kind = OBJECTIVES[config.objective]
    options: dict[str, Any] = {"gather": True, **config.objective_options}
    if "temperature" in options:
        raise ValueError(
            f"temperature must be a setting of its own, got it in objective_options; use --temperature "
            f"{options['temperature']}."
        )
    if config.pairing is not None:
        options["pairing"] = config.pairing
    elif paired:
        options.setdefault("pairing", "cross")
    if config.negatives_per_anchor is not None:
        options["negatives_per_anchor"] = config.negatives_per_anchor
    traits = kind.traits_with(**options)
    if config.temperature is not None:
        if traits.temperature is None:
            raise ValueError(f"temperature must be None for {config.objective}, got {config.temperature}; it has none.")
        options["temperature"] = config.temperature
    elif config.ess_targets and traits.temperature is not None and traits.accepts_control:
        options["temperature"] = _control(traits.temperature, config.ess_targets[0][1])
    return kind(**options)


def _require_agreement(own: Objective, config: TrainConfig, *, paired: bool) -> None:
    """Nothing that a config says of the objective may be passed over because it came from Python."""
    unused = [name for name in ("objective_options", "negatives_per_anchor") if getattr(config, name)]
    if unused:
        raise ValueError(
            f"{unused[0]} must be left to your own objective, got {getattr(config, unused[0])!r}; pass it to that."
        )
    has, wanted = own.options.get("pairing", "two_view"), config.pairing
    if wanted is not None and has != wanted:
        raise ValueError(f"objective must have pairing={wanted!r} as the config, got {has!r}; make it with that.")
    if paired and has not in ("cross", "one_way"):
        raise ValueError(f"objective must have pairing='cross' for paired data, got {has!r}; make it with that.")


def _control(temperature: float, target: float) -> EssControl:
    """It begins at the objective's own temperature, and keeps within a factor of ten of it."""
    return EssControl(target, initial=1 / temperature, minimum=0.1 / temperature, maximum=10 / temperature)


def scheduled_target(targets: Sequence[tuple[float, float]], epoch: float) -> float:
    """
    >>> scheduled_target([(0, 0.5), (10, 0.3)], 5.0)
    0.4
    """
    epochs, values = zip(*targets, strict=True)
    return float(np.interp(epoch, epochs, values))


def build_network(config: TrainConfig, data: ImageSource | PairedArrays, encoder: nn.Module | None) -> nn.Module:
    """A network for images, around the user's own encoder if one is given; two of them for paired data."""
    if isinstance(data, PairedArrays):
        if encoder is not None:
            raise ValueError(
                f"an encoder of your own must be for images, got {type(encoder).__name__} for paired data; "
                "use the objectives in a loop of your own."
            )
        if config.view_size is not None:
            raise ValueError(f"view_size must be None for paired data, got {config.view_size}; it has no views.")
        return TwoTowers(*(build_tower(config, _side_encoder(config, side), side[:2]) for side in (data.x, data.y)))
    if encoder is None and config.encoder == OWN:
        raise ValueError("the run trained an encoder of your own, got none; resume with flatclr.train(encoder=...).")
    if encoder is None:
        encoder = _built(config, channels=data.channels, size=data.image_size, small=data.channels == 1)
    if config.view_size is not None:
        _require_takes(encoder, torch.zeros(2, data.channels, config.view_size, config.view_size))
    return build_tower(config, encoder, torch.zeros(2, data.channels, data.image_size, data.image_size))


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


def _side_encoder(config: TrainConfig, side: Tensor) -> nn.Module:
    if side.dim() == 4:
        return _built(config, channels=side.shape[1], size=side.shape[2], small=side.shape[1] == 1)
    name = "mlp" if config.encoder == "auto" else config.encoder
    return build_encoder(name, channels=side.shape[1], image_size=1, **config.encoder_options)


def _built(config: TrainConfig, *, channels: int, size: int, small: bool) -> nn.Module:
    name = config.encoder
    if name == "auto":
        name = "cnn" if small and size <= 32 else "resnet18"
    return build_encoder(name, channels=channels, image_size=size, **config.encoder_options)


def trainable(source: ImageSource | PairedArrays, config: TrainConfig) -> ImageSource | PairedArrays:
    """Image files decoded into memory where they fit; the sides of paired data become images or rows."""
    if isinstance(source, PairedArrays):
        return PairedArrays(_images_or_rows(source.x), _images_or_rows(source.y), name=source.name)
    if isinstance(source, FileImages):
        if config.workers is not None:
            source.use_workers(config.workers)
        return source.resident(int(config.resident_gib * 2**30)) or source
    return source


def _images_or_rows(side: Tensor) -> Tensor:
    is_image = side.dim() == 4 and side.shape[1] in (1, 3) and side.shape[2] == side.shape[3]
    return side if is_image else side.flatten(1)


def build_views(config: TrainConfig, source: ImageSource) -> ViewConfig:
    base = views_for(source.channels)
    unknown = set(config.views) - set(ViewConfig.__dataclass_fields__)
    if unknown:
        raise ValueError(
            f"views must name fields of ViewConfig, got {sorted(unknown)}; see flatclr.data.views.ViewConfig."
        )
    return ViewConfig(**{name: getattr(base, name) for name in ViewConfig.__dataclass_fields__} | dict(config.views))


def find_device(name: str) -> torch.device:
    """The device of this process: under torchrun each has a GPU of its own."""
    device = checked_device(name)
    if device.type != "cuda":
        return device
    if name in ("auto", "cuda"):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def output_path(config: TrainConfig, data: Dataset) -> Path:
    """Where the run goes; without a name from the user, a directory of its own is made."""
    if config.out is not None:
        return Path(config.out)
    return new_directory(Path("runs") / f"{Path(data.name).stem}-{config.objective}-{config.seed}")
