"""What a run starts from where it is not random weights: a run, an encoder's files, another package's model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from flatclr.data.sources import AnySource, ImageSource, PairedArrays, ReadyViews
from flatclr.evaluation.opening import is_by_name, open_named, open_subject
from flatclr.models.encoders import PACKAGES, STEM_OF_KERNEL, Encoder, EncoderSpec
from flatclr.models.network import Normalisation
from flatclr.training.config import OWN, TrainConfig


@dataclass(frozen=True)
class Start:
    """An encoder with weights, and what its images need.

    Args:
        encoder: to be trained further.
        normalisation: that its weights know; None where they do not say.
        note: what a person should know of it.
    """

    encoder: nn.Module
    normalisation: Normalisation | None
    note: str = ""


def image_size_of_start(config: TrainConfig) -> int | None:
    """The size that a run's or an encoder file's own images had; None where there is none."""
    if config.init is None or is_by_name(config.init):
        return None
    return open_subject(config.init).image_size


def open_start(config: TrainConfig, source: AnySource) -> Start | None:
    """The weights that `config.init` names, for these images; None where it names none.

    Raises:
        ValueError: they do not fit the data or the other settings.
    """
    if config.init is None:
        return None
    if isinstance(source, PairedArrays):
        raise ValueError(f"init must be None for paired data, got {config.init!r}; its encoders start at random.")
    if isinstance(source, ReadyViews):
        raise ValueError(f"init must be None for your own views, got {config.init!r}; pass encoder=, and its views.")
    if config.encoder == OWN:
        raise ValueError(f"init must be None for an encoder of your own, got {config.init!r}; load its weights first.")
    if is_by_name(config.init):
        return _from_elsewhere(config, config.init, source)
    return _from_files(config, config.init, source)


def _from_elsewhere(config: TrainConfig, init: str, source: ImageSource) -> Start:
    is_package = init.partition(":")[0] in PACKAGES
    if is_package:
        _require_encoder(config, init)
    elif config.encoder == "auto":
        raise ValueError(f"encoder must be named for the state dict {init!r}, got 'auto'; pass --encoder resnet18.")
    architecture = None if is_package else config.encoder
    subject = open_named(init, channels=source.channels, image_size=source.image_size, architecture=architecture)
    if is_package:
        return Start(subject.bare, subject.normalisation)
    note = f"{init} does not say how its images were normalised; --set 'views={{mean: [...], std: [...]}}' does"
    return Start(subject.bare, None, f"{subject.report}; {note}.")


def _from_files(config: TrainConfig, init: str, source: ImageSource) -> Start:
    subject = open_subject(init)
    encoder = subject.bare
    if not isinstance(encoder, Encoder):
        raise ValueError(f"init must name an encoder that was built by name, got {init!r}; pass encoder= from Python.")
    _require_encoder(config, encoder.spec.name)
    if encoder.spec.channels != source.channels:
        raise ValueError(
            f"init must name an encoder for images of {source.channels} channels, got {init!r} for "
            f"{encoder.spec.channels}; take another, or other data."
        )
    encoder.spec = _at_size(encoder, source.image_size)
    return Start(encoder.train().requires_grad_(True), subject.normalisation)


def _at_size(encoder: Encoder, image_size: int) -> EncoderSpec:
    """How the same network is built for images of another size: a stem that was chosen by size is named."""
    options = dict(encoder.spec.options)
    if "stem" in options and isinstance(first := getattr(encoder, "conv1", None), nn.Conv2d):
        options["stem"] = STEM_OF_KERNEL[tuple(first.kernel_size)]
    return replace(encoder.spec, image_size=image_size, options=options)


def _require_encoder(config: TrainConfig, name: str) -> None:
    if config.encoder not in ("auto", name):
        raise ValueError(f"encoder must be that of init, {name!r}, got {config.encoder!r}; leave it out.")
    if config.encoder_options:
        raise ValueError(f"encoder_options must be left to init, got {dict(config.encoder_options)}; leave them out.")


def absolute_start(init: str | None) -> str | None:
    """What names the same weights in every folder."""
    if init is None or not Path(init).expanduser().exists():
        return init
    return str(Path(init).expanduser().absolute())
