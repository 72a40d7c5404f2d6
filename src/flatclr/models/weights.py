"""Weights from elsewhere: state-dict files of other programs, and how their tensors fit a module."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from flatclr.data.unpacking import require_no_zip_bomb
from flatclr.models.encoders import STEM_OF_KERNEL, AdaptedEncoder, Encoder, ResNet, build_encoder
from flatclr.models.network import unwrapped

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")
CONTAINERS = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights in a checkpoint


@dataclass(frozen=True)
class WeightsReport:
    """How the tensors of a file fitted a module. Names are the module's, but `unexpected` ones are the file's.

    Args:
        loaded: in both.
        missing: in the module, not in the file.
        unexpected: in the file, not in the module.
        mismatched: in both, with different shapes; not loaded.

    >>> report = WeightsReport(loaded=("weight",), missing=("bias",), unexpected=(), mismatched=())
    >>> report.complete, str(report)
    (False, '1 of 2 tensors loaded, 1 missing (bias)')
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]  # in the module, not in the file
    unexpected: tuple[str, ...]  # in the file, not in the module
    mismatched: tuple[str, ...]  # in both, with different shapes; not loaded

    @property
    def complete(self) -> bool:
        """Every tensor of the module came from the file."""
        return not (self.missing or self.mismatched)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} of {len(self.loaded) + len(self.missing) + len(self.mismatched)} tensors loaded"]
        for kind in ("missing", "unexpected", "mismatched"):
            names: tuple[str, ...] = getattr(self, kind)
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                parts.append(f"{len(names)} {kind} ({', '.join(names[:3])}{more})")
        return ", ".join(parts)


def load_weights(module: nn.Module, path: str | Path, prefix: str = "", *, strict: bool = True) -> WeightsReport:
    """Copy weights of a state-dict file from elsewhere into `module`, and say what fitted.

    Args:
        module: what takes the weights; wrappers of DistributedDataParallel and torch.compile are looked through.
        path: `.safetensors`, or `.pt`, `.pth` and the like with tensors only, also inside a checkpoint's "state_dict".
        prefix: take the keys that begin with this and cut it off ("module.encoder_q."). Without it, the composition of
            "module.", "_orig_mod.", "model.", "backbone." and "encoder." under which most keys fit is cut off.
        strict: refuse a file that lacks a tensor of the module or has it in another shape, and leave the module as it
            was; False loads what fits. What else the file holds (a head, a classifier) does no harm.

    Returns:
        What was loaded, is missing, is unexpected, or has another shape.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "weights.pt"
    ...     torch.save({f"module.{name}": tensor for name, tensor in nn.Linear(2, 1).state_dict().items()}, file)
    ...     str(load_weights(nn.Linear(2, 1), file))
    '2 of 2 tensors loaded'
    """
    tensors, target = _read_state(Path(path)), _bare(module)
    cut = prefix or _best_prefix(tensors, target.state_dict(), path)
    return _load_state(target, tensors, cut, path, strict=strict)


def encoder_from_weights(
    name: str, path: str | Path, *, channels: int, image_size: int, prefix: str = ""
) -> tuple[Encoder, WeightsReport]:
    """Architecture `name` with all its weights from a state-dict file, a ResNet with the stem that the file has."""
    tensors = _read_state(Path(path))
    encoder = build_encoder(name, channels=channels, image_size=image_size)
    cut = prefix or _best_prefix(tensors, _bare(encoder).state_dict(), path)
    first = tensors.get(f"{cut}conv1.weight")
    stem = None if first is None else STEM_OF_KERNEL.get(tuple(first.shape[2:]))
    if isinstance(encoder, ResNet) and stem is not None:
        encoder = build_encoder(name, channels=channels, image_size=image_size, stem=stem)
    fit = _load_state(_bare(encoder), tensors, cut, path, strict=True)
    layers = {own.partition(".")[0] for own in encoder.state_dict()}
    deeper = [key for key in fit.unexpected if key.startswith(cut) and key[len(cut) :].partition(".")[0] in layers]
    if deeper and not isinstance(encoder, AdaptedEncoder):  # of packages' models, some versions keep more buffers
        raise ValueError(  # a resnet34 has every tensor of a resnet18
            f"{path} must hold a {name}, got {len(deeper)} tensors more in its layers (first: {deeper[0]}); "
            "pass the architecture= (--architecture) it was trained as."
        )
    return encoder, fit


def _bare(module: nn.Module) -> nn.Module:
    """The module whose names a published file has."""
    module = unwrapped(module)
    return module.model if isinstance(module, AdaptedEncoder) else module


def _load_state(
    target: nn.Module, tensors: Mapping[str, Tensor], cut: str, path: str | Path, *, strict: bool
) -> WeightsReport:
    own = target.state_dict()
    inside = {key.removeprefix(cut): tensor for key, tensor in tensors.items() if key.startswith(cut)}
    fit = fit_of(inside, target)
    if not fit.loaded:
        raise ValueError(
            f"{path} must have keys such as {next(iter(own), None)!r} for this {type(target).__name__}, got "
            f"{next(iter(tensors), None)!r}; pass what its keys begin with as prefix=, or build its architecture."
        )
    if strict and not fit.complete:
        raise ValueError(
            f"{path} must hold every tensor of this {type(target).__name__}, got {_gaps(fit, inside, own)}; pass the "
            "architecture= and prefix= (--architecture, --prefix) it was trained as, and data of its channels."
        )
    target.load_state_dict({name: inside[name] for name in fit.loaded}, strict=False)
    outside = (key for key in tensors if not key.startswith(cut) or key.removeprefix(cut) in fit.unexpected)
    return WeightsReport(fit.loaded, fit.missing, tuple(outside), fit.mismatched)


def fit_of(tensors: Mapping[str, Tensor], module: nn.Module) -> WeightsReport:
    """Which tensors a module would take."""
    own = module.state_dict()
    shared = [name for name in own if name in tensors]
    return WeightsReport(
        loaded=tuple(name for name in shared if own[name].shape == tensors[name].shape),
        # old files lack BatchNorm's step counter, which nothing here reads
        missing=tuple(name for name in own if name not in tensors and not name.endswith("num_batches_tracked")),
        unexpected=tuple(name for name in tensors if name not in own),
        mismatched=tuple(
            f"{name} {list(tensors[name].shape)} for {list(own[name].shape)}"
            for name in shared
            if own[name].shape != tensors[name].shape
        ),
    )


def _gaps(fit: WeightsReport, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """How many tensors a file lacks or has in another shape, and the first of them in the module's order."""
    total = len(fit.loaded) + len(fit.missing) + len(fit.mismatched)
    first = next(
        name for name in own if name in fit.missing or (name in tensors and tensors[name].shape != own[name].shape)
    )
    got = f"has shape {list(tensors[first].shape)}" if first in tensors else "is missing"
    return (
        f"{len(fit.missing)} missing and {len(fit.mismatched)} of another shape, of {total} (first: {first} {got}, "
        f"expected {list(own[first].shape)})"
    )


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"weights must be a file, got {path}, which is none; check the path.")
    if path.suffix == ".safetensors":
        return parse_safetensors(path.read_bytes(), path)
    try:
        require_no_zip_bomb(path)
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must hold tensors, got {error}; save it again with torch.save.") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in many ways, and its message is a page
        raise ValueError(
            f"{path} must hold tensors only, got a file that torch.load(weights_only=True) refuses "
            f"({type(error).__name__}); save it again as torch.save(model.state_dict(), path) where it is trusted."
        ) from error
    for container in CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(container), Mapping):
            content = content[container]
    tensors = (
        {key: value for key, value in content.items() if isinstance(value, Tensor)}
        if isinstance(content, Mapping)
        else {}
    )
    if not tensors:
        raise ValueError(f"{path} must hold a state dict, got {type(content).__name__} without tensors; save one.")
    return tensors


def _best_prefix(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], path: str | Path) -> str:
    candidates = {""}
    for key in tensors:
        cut = ""
        while known := next((p for p in PREFIXES if key.startswith(p, len(cut))), None):
            cut += known
            candidates.add(cut)
    hits = {cut: sum(key.startswith(cut) and key[len(cut) :] in own for key in tensors) for cut in candidates}
    most = max(hits.values())
    best = sorted(cut for cut in candidates if hits[cut] == most)
    if most > 0 and len(best) > 1:
        raise ValueError(
            f"{path} must hold one encoder, got {len(best)} that fit, under {', '.join(map(repr, best))}; pass prefix=."
        )
    return best[0]


def parse_safetensors(data: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors of a file's content."""
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} must be a safetensors file, got {error}; copy it again.") from error
