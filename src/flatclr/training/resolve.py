"""What a run made of settings that were left to it, for people and for config.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from flatclr.data.decoding import available_cores
from flatclr.data.opening import DATASETS
from flatclr.data.sources import FileImages, ImageSource, PairedArrays, ReadyViews
from flatclr.data.sources.files import MOST_WORKERS
from flatclr.evaluation.features import frozen
from flatclr.models.cost import multiply_adds, parameters
from flatclr.models.encoders import WEIGHT_SOURCES, Encoder
from flatclr.objectives import Objective
from flatclr.training.build import Parts
from flatclr.training.config import VIEW_SIZES, takes_ess_target
from flatclr.training.progress import duration
from flatclr.training.stepping import why_not_captured

OF_START = ("encoder", "encoder_options", "views")  # what weights that a run starts from decide


def chosen_settings(parts: Parts, path: Path, *, own_data: bool) -> dict[str, Any]:
    """The settings that were left open, with the values the run gave them.

    Args:
        parts: what was built.
        path: the run directory.
        own_data: whether the data came from Python, which no setting can name.
    """
    config, data = parts.config, parts.data
    found: dict[str, Any] = {
        "out": str(path),
        "device": parts.device.type,
        "checkpoint_every": parts.schedule.steps_per_epoch,
        "eval_samples": parts.validation.samples,
        "head_width": _head_width(parts),
        "graph": parts.device.type == "cuda" and why_not_captured(parts) is None,
    }
    objectives = [part for part in parts.train_step.objective.modules() if isinstance(part, Objective)]
    if all(objective.traits.uses_negatives for objective in objectives):
        found["pairing"] = parts.train_step.objective.options.get("pairing", "two_view")
    if not own_data:
        found["data"] = DATASETS[0]
    encoder = next(iter(parts.train_step.bare_network.encoders.values()))
    if isinstance(encoder, Encoder) and not isinstance(data.source, PairedArrays):
        found["encoder"] = encoder.spec.name
    if not isinstance(data.source, PairedArrays):
        found["image_size"] = data.source.image_size
        if not isinstance(data.source, ReadyViews) and all(getattr(config, name) is None for name in VIEW_SIZES):
            found["view_size"] = data.source.image_size
        if data.dataset.notes:  # of a folder, whose sub-folders may be classes
            found["labels"] = "none" if data.source.labels is None else "folders"
    if isinstance(data.original, FileImages):
        found["workers"] = min(MOST_WORKERS, available_cores())
    left_open = {name: value for name, value in found.items() if getattr(config, name) in (None, "auto")}
    if config.ess_target is not None and not takes_ess_target(config):
        left_open["ess_target"] = None  # a default that the objective has no use for
    return left_open | (_of_start(parts) if config.init is not None else {})


def _of_start(parts: Parts) -> dict[str, Any]:
    """What building the network again takes without the weights it started from."""
    (encoder,) = parts.train_step.bare_network.encoders.values()
    assert isinstance(encoder, Encoder)
    options = {name: value for name, value in encoder.spec.options.items() if name not in WEIGHT_SOURCES}
    own, views = parts.normalisation, dict(parts.config.views)
    if own is not None:
        views |= {"mean": list(own.mean), "std": list(own.std)}
    return dict(zip(OF_START, (encoder.spec.name, options, views), strict=True))


def summary_of(parts: Parts, seconds: float | None = None) -> str:
    """Data, encoder, batch, steps and device in one line, with how long it will take where that is known."""
    source, config = parts.data.source, parts.config
    if isinstance(source, PairedArrays):
        data = f"{len(source):,} pairs"
    elif isinstance(source, ReadyViews):
        data = f"{len(source):,} samples of {source.views_per_sample} views at {source.image_size} px"
    else:
        data = f"{len(source):,} images at {source.image_size} px"
    held_out = "" if parts.data.dataset.test is None else f", {len(parts.data.dataset.test):,} more held out"
    notes = "".join(f" ({note})" for note in parts.data.dataset.notes)
    steps, size = parts.schedule.steps_per_epoch, millions(parameters(parts.train_step.bare_network))
    return (
        f"{data}{notes}{held_out}, {encoder_name(parts)} ({size} parameters), "
        f"batch {config.batch_size}, {steps:,} {'step' if steps == 1 else 'steps'} an epoch, "
        f"{parts.schedule.total_steps:,} in all, {_device_name(parts)}"
        f"{'' if seconds is None else f': about {duration(seconds)}'}"
    )


def facts_of(parts: Parts) -> dict[str, Any]:
    """What the run made of its settings and data, for environment.json: sizes, parameters, steps and cost."""
    train_step, dataset, source = parts.train_step, parts.data.dataset, parts.data.source
    network, objective = train_step.bare_network, train_step.objective
    facts = {
        "data": dataset.name,
        "samples": len(source),
        "test_samples": None if dataset.test is None else len(dataset.test),
        "eval_samples": parts.validation.samples,
        "encoder": encoder_name(parts),
        "parameters": parameters(network),
        "encoder_parameters": sum(parameters(encoder) for encoder in network.encoders.values()),
        "views_per_sample": train_step.inputs.views_per_sample,
        "pairing": objective.options.get("pairing", objective.traits.pairing),
        "learning_rate": parts.schedule.base_rate,
        "steps_per_epoch": parts.schedule.steps_per_epoch,
        "total_steps": parts.schedule.total_steps,
        "processes": parts.ranks.size,
        "device": _device_name(parts),
    }
    if isinstance(source, PairedArrays):
        return facts
    facts |= {"image_size": source.image_size, "channels": source.channels}
    return facts if isinstance(source, ReadyViews) else facts | _of_images(parts, source)


def _of_images(parts: Parts, source: ImageSource) -> dict[str, Any]:
    (encoder,) = parts.train_step.bare_network.encoders.values()
    devices = [] if parts.device.type == "cpu" else [parts.device]
    with frozen(encoder), torch.random.fork_rng(devices):
        image = torch.zeros(1, source.channels, source.image_size, source.image_size)
        cost = multiply_adds(encoder, image)
    labels = "none" if source.labels is None else "of the data"
    return {"classes": len(source.classes), "labels": labels, "multiply_adds": cost}


def encoder_name(parts: Parts) -> str:
    """As it is typed after --encoder; of a module of one's own, its class."""
    encoders = parts.train_step.bare_network.encoders.values()
    names = [e.spec.name if isinstance(e, Encoder) else type(e).__name__ for e in encoders]
    return " and ".join(names)


def _device_name(parts: Parts) -> str:
    name = "CPU" if parts.device.type == "cpu" else str(parts.device)
    return name if parts.ranks.size == 1 else f"{parts.ranks.size} processes on {name}"


def _head_width(parts: Parts) -> int | None:
    """Of the hidden layers, where there are some; both sides of paired data may have their own."""
    network = parts.train_step.bare_network
    if not hasattr(network, "head"):
        return None
    return int(network.last_layer.in_features)


def millions(count: int) -> str:
    """
    >>> millions(11_173_962), millions(93_000)
    ('11.2 M', '0.09 M')
    """
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e6:.2f} M"
