"""From what a user names to a subject: a run, an encoder's files, another package's model, a module or a callable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from flatclr.checkpoint import has_checkpoints
from flatclr.evaluation.callables import FunctionEncoder
from flatclr.evaluation.sentences import BothSides, both_sides, reads_sentences
from flatclr.evaluation.splits import IMAGES, SENTENCES
from flatclr.evaluation.subjects import Subject
from flatclr.models.encoders import PACKAGES, Encoder, EncoderSpec, build_encoder
from flatclr.models.network import Network, Normalisation, TwoTowers, normalisation_of, unwrapped
from flatclr.models.saving import FOLDER_WEIGHTS, load_encoder
from flatclr.models.trained import load_checkpointed_encoder, load_head, load_network, paired_run, unfinished
from flatclr.models.weights import encoder_from_weights
from flatclr.runs import CHECKPOINTS, CONFIG, SIDES, RunDirectory

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
STATE_DICTS = (".pt", ".pth", ".bin", ".ckpt", ".tar")


def open_subject(
    subject: Any,
    *,
    head: nn.Module | None = None,
    normalisation: Normalisation | None = None,
    into: nn.Module | None = None,
    sentences: bool = False,
) -> Subject:
    """A run directory or an encoder's folder or file (`into` a module of its architecture), a module or a callable.

    One that reads sentences is refused unless `sentences` is true.
    """
    if isinstance(subject, str | Path):
        opened = _from_path(Path(subject), into)
    elif isinstance(subject, nn.Module):
        opened = _from_module(_encoder_of(unwrapped(subject)))
    elif callable(subject):
        opened = Subject(FunctionEncoder(subject), getattr(subject, "__name__", "callable"))
    else:
        raise TypeError(
            f"an encoder must be a path, 'timm:NAME', a module or a callable, got {type(subject).__name__}; pass one."
        )
    if opened.reads == SENTENCES and not sentences:
        raise ValueError(
            f"an encoder must take images here, got {opened.name}, which reads sentences; flatclr embed and flatclr "
            "eval take it."
        )
    opened = opened.with_head(head)
    return opened if normalisation is None else replace(opened, normalisation=normalisation)


def reads_text(subject: Any, architecture: str | None = None) -> bool:
    """Whether an encoder reads sentences."""
    return not is_by_name(subject, architecture) and open_subject(subject, sentences=True).reads == SENTENCES


def head_of(subject: Any) -> nn.Module | None:
    """The projection head that goes with it: a network's own, or that of a run's last checkpoint; None without one."""
    if isinstance(subject, nn.Module):
        network = unwrapped(subject)
        return network.head if isinstance(network, Network) else None
    is_run = isinstance(subject, str | Path) and (Path(subject) / CONFIG).is_file()
    return load_head(subject) if is_run and not paired_run(Path(subject)) else None


def open_named(
    subject: str | Path,
    *,
    channels: int,
    image_size: int,
    architecture: str | None = None,
    prefix: str = "",
    normalisation: Normalisation | None = None,
) -> Subject:
    """An encoder built for the data: by the name of a package with its published weights, or from a state-dict file."""
    if str(subject).partition(":")[0] in PACKAGES:
        encoder = build_encoder(str(subject), channels=channels, image_size=image_size, **_published(str(subject)))
        report = "weights as published"
    else:
        encoder, fit = encoder_from_weights(
            _required_architecture(subject, architecture),
            subject,
            channels=channels,
            image_size=image_size,
            prefix=prefix,
        )
        report = str(fit)
    encoder.normalisation = normalisation or _package_normalisation(encoder)
    return replace(_from_module(encoder), name=str(subject), report=report)


def is_by_name(subject: Any, architecture: str | None = None) -> bool:
    """Whether it takes the data's channels and size to build: "timm:NAME", "torchvision:NAME", or a state dict."""
    if not isinstance(subject, str | Path):
        return False
    return str(subject).partition(":")[0] in PACKAGES or architecture is not None or _is_state_dict(Path(subject))


def finished_run(path: Path) -> RunDirectory | None:
    """The run there, which must have ended with one encoder; None where there is no run."""
    if not (path / CONFIG).is_file():
        return None
    x, y = SIDES
    if (path / x).is_dir():
        raise ValueError(
            f"{path} must hold one encoder, got a run on pairs with one for each side; pass {path / x} or {y}."
        )
    if not (path / "encoder.json").is_file():
        raise FileNotFoundError(
            f"{path} must hold a finished run, got no encoder.json; finish it with flatclr train --resume {path}."
        )
    return RunDirectory.open(path)


def _is_state_dict(path: Path) -> bool:
    described = path.with_suffix(".json").exists() or path.name == FOLDER_WEIGHTS
    return path.suffix in STATE_DICTS or (path.suffix == ".safetensors" and not described)


def _required_architecture(path: str | Path, architecture: str | None) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"encoder must be a folder or file, got {path}, which does not exist; check the path.")
    if architecture is None:
        raise ValueError(
            f"{path} must come with its architecture, got a bare state dict; pass architecture= "
            "(--architecture resnet18), and prefix= if its keys begin with one."
        )
    return architecture


def _published(name: str) -> dict[str, Any]:
    return {"pretrained": True} if name.startswith("timm:") else {"weights": "DEFAULT"}


def _package_normalisation(encoder: Encoder) -> Normalisation | None:
    """What a package's weights were trained with; images of own architectures stay in [0, 1] unless told."""
    model = getattr(encoder, "model", None)
    if model is None:
        return None
    published = getattr(model, "pretrained_cfg", None) or {}
    if "mean" in published and "std" in published:
        return Normalisation(tuple(published["mean"]), tuple(published["std"]))
    return IMAGENET


def _encoder_of(module: nn.Module) -> nn.Module:
    if not isinstance(module, TwoTowers):
        return module.encoder if isinstance(module, Network) else module
    if (joined := both_sides(module.encoders)) is None:
        raise ValueError("an encoder must be for one kind of images, got TwoTowers; pass one of its towers.")
    return joined


def _from_module(module: nn.Module) -> Subject:
    if isinstance(module, BothSides):
        x, y = map(_from_module, (module.encoder_x, module.encoder_y))
        return replace(x, module=module, name=type(module).__name__, architecture=(x.architecture, y.architecture))
    spec = getattr(module, "spec", None)
    known = spec if isinstance(spec, EncoderSpec) else None
    text = reads_sentences(known)
    return Subject(
        module,
        type(module).__name__,
        normalisation=normalisation_of(module),
        reads=None if known is None else SENTENCES if text else IMAGES,
        channels=None if known is None else known.channels,
        image_size=None if known is None or text else known.image_size,
        architecture=known,
    )


def _from_path(path: Path, into: nn.Module | None) -> Subject:
    if not path.exists():
        raise FileNotFoundError(
            f"encoder must be a run directory, a folder, a file, 'timm:NAME' or 'torchvision:NAME', got {path}, "
            "which does not exist; check the path."
        )
    paired = paired_run(path)
    if paired and (found := _of_sides(path)) is not None:
        return found
    run, loaded = _opened_run(path, into, paired=paired)
    opened = replace(_from_module(loaded), name=str(path))
    if run is not None:
        opened = _with_settings(opened, run)
        if (step := getattr(loaded, "step", None)) is not None:
            opened = replace(opened, name=f"{run.path.name} at step {step}")
    if opened.image_size == 1:
        raise ValueError(
            f"an encoder must take images, got {path} for rows of {opened.channels} numbers; use flatclr mi for pairs."
        )
    description: Mapping[str, Any] = getattr(loaded, "description", None) or {}
    return replace(opened, trained_on=description.get("data"))


def _opened_run(path: Path, into: nn.Module | None, *, paired: bool) -> tuple[RunDirectory | None, nn.Module]:
    """The run there, if it is one, and its encoder: of the newest checkpoint where the run is not at its end."""
    if not paired and (path / CONFIG).is_file() and unfinished(path):
        return RunDirectory.open(path), load_checkpointed_encoder(path, into=into)
    return finished_run(path), load_encoder(path, into=into)


def _of_sides(path: Path) -> Subject | None:
    """Both encoders of a run on pairs of sentences, of its newest checkpoint if there is one; None for other pairs."""
    network = load_network(path) if has_checkpoints(path / CHECKPOINTS) else None
    joined = both_sides({side: load_encoder(path / side) for side in SIDES} if network is None else network.encoders)
    if joined is None:
        return None
    return replace(_with_settings(_from_module(joined), RunDirectory.open(path)), whole=network)


def _with_settings(subject: Subject, run: RunDirectory) -> Subject:
    settings = run.config()
    return replace(
        subject,
        name=run.path.name,
        views=settings.get("views"),
        data=settings.get("data"),
        data_dir=settings.get("data_dir"),
        labels=settings.get("labels"),
        beta=_last_beta(run),
    )


def _last_beta(run: RunDirectory) -> float | None:
    betas = [row["beta"] for row in run.metrics() if isinstance(row.get("beta"), float)]
    return betas[-1] if betas else None
