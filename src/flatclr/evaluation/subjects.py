"""What is evaluated: an encoder from a run, a file, another package or the caller, and how its images are prepared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.data.arrays import image_tensor
from flatclr.data.sources import ImageSource
from flatclr.data.views import LUMA, ViewConfig, apply_views, draw_views, no_augmentation, views_for
from flatclr.models.encoders import PACKAGES, Encoder, EncoderSpec, Normalisation, build_encoder
from flatclr.models.saving import FOLDER_WEIGHTS, encoder_from_weights, load_encoder, unwrapped
from flatclr.runs import CONFIG, SIDES, RunDirectory

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
STATE_DICTS = (".pt", ".pth", ".bin", ".ckpt", ".tar")


@dataclass(frozen=True)
class Subject:
    """An encoder and what a protocol must know of it; `channels` and `image_size` are None where anything goes."""

    module: nn.Module
    name: str
    normalisation: Normalisation | None = None
    channels: int | None = None
    image_size: int | None = None
    views: Mapping[str, Any] | None = None  # what its training changed in the default views
    beta: float | None = None  # inverse temperature it was trained with, where it was fixed
    data: str | None = None  # what it was trained on
    data_dir: str | None = None  # where its training looked for named data
    trained_on: str | None = None  # the name of the data in its description
    report: str = ""  # how weights from elsewhere fitted
    architecture: Any = None  # None: too little is known of it to keep its features on disk

    @property
    def bare(self) -> nn.Module:
        """Without a head."""
        return self.module.encoder if isinstance(self.module, WithHead) else self.module

    @property
    def trainable(self) -> bool:
        return any(True for _ in self.module.parameters())

    def plain(self) -> Callable[[Tensor], Tensor]:
        """Images as the encoder takes them, without augmentation."""
        config = no_augmentation(mean=self._mean, std=self._std)
        return lambda images: view_of(images, config, torch.Generator())

    def augmented(self, channels: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Views as in its training, or the default ones."""
        config = replace(views_for(channels), mean=self._mean, std=self._std)
        config = replace(config, **{k: v for k, v in (self.views or {}).items() if k not in ("mean", "std")})
        return lambda images: view_of(images, config, generator)

    def at_random(self, seed: int) -> Subject | None:
        """The same architecture with random weights; None where the module does not say how it is initialised."""
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the devices too
            module = untrained(self.module)
        return None if module is None else replace(self, module=module, report="")

    @property
    def _mean(self) -> tuple[float, ...] | None:
        return None if self.normalisation is None else self.normalisation.mean

    @property
    def _std(self) -> tuple[float, ...] | None:
        return None if self.normalisation is None else self.normalisation.std


def view_of(images: Tensor, config: ViewConfig, generator: torch.Generator) -> Tensor:
    """One view of every image, at the images' size."""
    height, width = images.shape[-2:]
    drawn = draw_views(config, len(images), height=height, width=width, generator=generator, device=images.device)
    return apply_views(images, drawn, config)


class WithHead(nn.Module):
    """Encoder and projection head; layers are named `encoder.NAME` and `head.NAME`."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.head(self.encoder(images))
        return embeddings


class FunctionEncoder(nn.Module):
    """Any callable that takes images [N, C, S, S] and returns features [N, d]."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        # a tuple, not children: their weights are neither this encoder's to train nor to move
        self.held = tuple(part for part in _parts(function) if isinstance(part, nn.Module))

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


def _parts(function: Any) -> list[Any]:
    """What a callable refers to: closure, globals, `self`, its attributes, arguments of functools.partial."""
    if isinstance(function, partial):
        return [*_parts(function.func), *function.args, *function.keywords.values()]
    variables = (
        inspect.getclosurevars(function) if inspect.isroutine(function) and not inspect.isbuiltin(function) else None
    )
    named = [] if variables is None else [*variables.nonlocals.values(), *variables.globals.values()]
    return [*named, getattr(function, "__self__", None), *getattr(function, "__dict__", {}).values()]


def untrained(module: nn.Module) -> nn.Module | None:
    """A copy with weights drawn anew, or None where some part has parameters but no `reset_parameters`."""
    if isinstance(module, WithHead):
        encoder, head = untrained(module.encoder), untrained(module.head)
        return None if encoder is None or head is None else WithHead(encoder, head)
    spec = getattr(module, "spec", None)
    if isinstance(spec, EncoderSpec):
        fresh = build_encoder(spec.name, channels=spec.channels, image_size=spec.image_size, **spec.options)
        return fresh.to(next(module.parameters()).device)
    own_device = next((weight.device for weight in module.parameters()), None)
    fresh_copy = copy.deepcopy(module).cpu()  # drawn there, whatever the device
    own = [part for part in fresh_copy.modules() if next(part.parameters(recurse=False), None) is not None]
    if not own or not all(callable(getattr(part, "reset_parameters", None)) for part in own):
        return None
    for part in fresh_copy.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    return fresh_copy.to(own_device)


def is_by_name(subject: Any, architecture: str | None = None) -> bool:
    """Whether it takes the data's channels and size to build: "timm:NAME", "torchvision:NAME", or a state dict."""
    if not isinstance(subject, str | Path):
        return False
    return str(subject).partition(":")[0] in PACKAGES or architecture is not None or is_state_dict(subject)


def is_state_dict(path: str | Path) -> bool:
    path = Path(path)
    described = path.with_suffix(".json").exists() or path.name == FOLDER_WEIGHTS
    return path.suffix in STATE_DICTS or (path.suffix == ".safetensors" and not described)


def open_subject(
    subject: Any,
    *,
    head: nn.Module | None = None,
    normalisation: Normalisation | None = None,
    into: nn.Module | None = None,
) -> Subject:
    """A run directory or an encoder's folder or file (`into` a module of its architecture), a module or a callable."""
    if isinstance(subject, str | Path):
        opened = _from_path(Path(subject), into)
    elif isinstance(subject, nn.Module):
        opened = _from_module(unwrapped(subject), type(unwrapped(subject)).__name__)
    elif callable(subject):
        opened = Subject(FunctionEncoder(subject), getattr(subject, "__name__", "callable"))
    else:
        raise TypeError(
            f"an encoder must be a path, 'timm:NAME', a module or a callable, got {type(subject).__name__}; pass one."
        )
    if head is not None:
        opened = replace(opened, module=WithHead(opened.module, head))
    return opened if normalisation is None else replace(opened, normalisation=normalisation)


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
        if not Path(subject).is_file():
            raise FileNotFoundError(
                f"encoder must be a folder or file, got {subject}, which does not exist; check the path."
            )
        if architecture is None:
            raise ValueError(
                f"{subject} must come with its architecture, got a bare state dict; pass architecture= "
                "(--architecture resnet18), and prefix= if its keys begin with one."
            )
        encoder, fit = encoder_from_weights(
            architecture, subject, channels=channels, image_size=image_size, prefix=prefix
        )
        report = str(fit)
    encoder.normalisation = normalisation or _package_normalisation(encoder)
    return replace(_from_module(encoder, str(subject)), report=report)


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


def _from_module(module: nn.Module, name: str) -> Subject:
    spec = getattr(module, "spec", None)
    known = spec if isinstance(spec, EncoderSpec) else None
    return Subject(
        module,
        name,
        normalisation=getattr(module, "normalisation", None),
        channels=None if known is None else known.channels,
        image_size=None if known is None else known.image_size,
        architecture=known,
    )


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


def _from_path(path: Path, into: nn.Module | None) -> Subject:
    if not path.exists():
        raise FileNotFoundError(
            f"encoder must be a run directory, a folder, a file, 'timm:NAME' or 'torchvision:NAME', got {path}, "
            "which does not exist; check the path."
        )
    run = finished_run(path)
    if run is not None:
        settings = run.config()
        loaded = load_encoder(path, into=into)
        opened = replace(
            _from_module(loaded, path.name),
            views=settings.get("views"),
            data=settings.get("data"),
            data_dir=settings.get("data_dir"),
            beta=_last_beta(run),
        )
    else:
        loaded = load_encoder(path, into=into)
        opened = _from_module(loaded, str(path))
    if opened.image_size == 1:
        raise ValueError(
            f"an encoder must take images, got {path} for rows of {opened.channels} numbers; use flatclr mi for pairs."
        )
    description: Mapping[str, Any] = getattr(loaded, "description", None) or {}
    return replace(opened, trained_on=description.get("data"))


def _last_beta(run: RunDirectory) -> float | None:
    betas = [row["beta"] for row in run.metrics() if isinstance(row.get("beta"), float)]
    return betas[-1] if betas else None


@dataclass(frozen=True)
class AdaptedSource:
    """Images brought to another size (shorter side, centre kept) and number of channels."""

    source: ImageSource
    channels: int
    image_size: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def labels(self) -> Tensor | None:
        return self.source.labels

    @property
    def targets(self) -> Tensor | None:
        return getattr(self.source, "targets", None)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: Tensor) -> Tensor:
        images = self.source.batch(index)
        if images.shape[1] == 3 and self.channels == 1:
            weights = torch.tensor(LUMA).view(3, 1, 1)
            images = (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
        elif images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        return image_tensor(images, image_size=self.image_size, name=self.name).contiguous()

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()}/{self.channels}/{self.image_size}"
