"""Encoders as files: `encoder.safetensors` (weights) beside `encoder.json` (how to build it, and what it is).

Nothing in either file is executed when it is opened.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from flatclr.checks import require_one_of
from flatclr.files import replace_files
from flatclr.models.encoders import (
    STEM_OF_KERNEL,
    WEIGHT_SOURCES,
    AdaptedEncoder,
    Encoder,
    EncoderSpec,
    ResNet,
    build_encoder,
)
from flatclr.models.network import Normalisation, normalisation_of

FORMAT = "flatclr-encoder"
FORMAT_VERSION = 1
FOLDER_DOCUMENT, FOLDER_WEIGHTS = "config.json", "model.safetensors"  # names of the same two in a hub folder
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")
CONTAINERS = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights in a checkpoint


def save_encoder(
    folder: str | Path,
    encoder: nn.Module,
    *,
    description: Mapping[str, Any],
    normalisation: Normalisation | None = None,
) -> Path:
    """Write `encoder.safetensors` and `encoder.json` into `folder`; returns the path of the weights.

    Both files are complete on the disk before either takes its name, so that a full disk or a kill leaves the pair
    that was there. Wrappers of DistributedDataParallel and torch.compile are taken off.

    Args:
        encoder: from `build_encoder`, or any module; what was not built by name loads with `into=` only.
        description: whatever should travel along, as JSON: data, objective, accuracies.
        normalisation: of the images, unless the encoder has a `.normalisation` of its own.
    """
    weights, document = encoder_files(encoder, description=description, normalisation=normalisation)
    target = Path(folder) / "encoder.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_files({target: weights, target.with_suffix(".json"): document})
    return target


def encoder_files(
    encoder: nn.Module, *, description: Mapping[str, Any], normalisation: Normalisation | None = None
) -> tuple[bytes, bytes]:
    """Weights and description as `save_encoder` writes them."""
    encoder = unwrapped(encoder)
    spec = getattr(encoder, "spec", None)
    normalisation = normalisation or normalisation_of(encoder)
    weights = safetensors.torch.save(_tensors_of(encoder), {"format": "pt"})
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "flatclr_version": _flatclr_version(),
        "encoder": asdict(spec) if isinstance(spec, EncoderSpec) else None,
        "features": getattr(encoder, "features", None) if isinstance(encoder, Encoder) else None,
        "normalisation": None if normalisation is None else asdict(normalisation),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "description": dict(description),
    }
    try:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"description and encoder options must be plain JSON, got {error}; "
            "convert to str, float, int, bool, None, list or dict."
        ) from error
    return weights, text.encode()


def load_encoder(path: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """The saved encoder in evaluation mode on the CPU, its checksum verified.

    `.description` is what was saved with it, `.normalisation` what its images need, `.spec` how it was built. The
    random state is left as it was.

    Args:
        path: the folder (also one of `export_folder`), the `.safetensors` or the `.json` file.
        into: a module of the same architecture, for an encoder that was not built by name.
    """
    document_path = _document_path(Path(path))
    in_hub_folder = document_path.name == FOLDER_DOCUMENT
    weights_path = (
        document_path.with_name(FOLDER_WEIGHTS) if in_hub_folder else document_path.with_suffix(".safetensors")
    )
    document = _read_document(document_path)
    tensors = _read_verified(weights_path, document["sha256"])
    with torch.random.fork_rng(devices=()):
        module = into if into is not None else _rebuilt(document["encoder"], document_path)
    fit = _fit(tensors, module)
    if fit.missing or fit.unexpected or fit.mismatched:
        raise ValueError(
            f"{weights_path} must hold the weights of this {type(module).__name__}, got {fit}; "
            "build it as it was when it was saved."
        )
    precisions = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(precisions) == 1:
        module.to(precisions.pop())
    module.load_state_dict(tensors, strict=False)  # what counts was compared above, with a shorter message
    found = document["normalisation"]
    normalisation = None if found is None else Normalisation(tuple(found["mean"]), tuple(found["std"]))
    # plain attributes: `into` may be any module, which does not declare them
    object.__setattr__(module, "normalisation", normalisation)
    object.__setattr__(module, "description", document["description"])
    return module.eval()


@dataclass(frozen=True)
class WeightsReport:
    """How the tensors of a file fitted a module. Names are the module's, but `unexpected` ones are the file's."""

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
        path: `.safetensors`, or `.pt`, `.pth` and the like with tensors only, also inside a checkpoint's "state_dict".
        prefix: take the keys that begin with this and cut it off ("module.encoder_q."). Without it, the composition of
            "module.", "_orig_mod.", "model.", "backbone." and "encoder." under which most keys fit is cut off.
        strict: refuse a file that lacks a tensor of the module or has it in another shape, and leave the module as it
            was; False loads what fits. What else the file holds (a head, a classifier) does no harm.
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
    fit = _fit(inside, target)
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


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        compiled = module._modules.get("_orig_mod")  # by name: to import its type takes seconds
        if compiled is not None:
            module = compiled
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def _flatclr_version() -> str:
    # by this way round, because an import of the package itself would point up through the layers
    return str(sys.modules["flatclr"].__version__)


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    tensors = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state of an encoder must be tensors, got {type(value).__name__} for {name!r}; "
                "keep extra state out of the encoder."
            )
        # a copy of its own: the format knows neither shared memory nor strides
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors


def _document_path(path: Path) -> Path:
    if path.is_dir():
        hub = path / FOLDER_DOCUMENT
        path = path / "encoder.json"
        path = hub if hub.is_file() and not path.is_file() else path
    elif path.suffix == ".safetensors":
        if not path.is_file():
            raise FileNotFoundError(
                f"encoder must be a folder or file, got {path}, which does not exist; check the path."
            )
        path = path.with_name(FOLDER_DOCUMENT) if path.name == FOLDER_WEIGHTS else path.with_suffix(".json")
    elif path.suffix != ".json":
        raise ValueError(f"encoder must be a folder, a .safetensors or a .json file, got {path}; see save_encoder.")
    if not path.is_file():
        raise FileNotFoundError(
            f"encoder must come with its description, got no {path}; "
            "copy both files, or use load_weights for a file from elsewhere."
        )
    return path


def is_encoder_document(path: Path) -> bool:
    """Whether flatclr wrote it, in whatever version of the format."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:  # of the encoding or of the syntax
        raise ValueError(f"{path} must be JSON, got {error}; copy it again from where it was saved.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} must be written by save_encoder, got another kind of JSON; check the path.")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} must have format_version {FORMAT_VERSION}, got {version!r}; it was written by flatclr "
            f"{document.get('flatclr_version')}: install that version."
        )
    for field, kinds in _FIELDS.items():
        if not isinstance(document.get(field), kinds):
            raise ValueError(f"{path} must have a valid field {field!r}, got {document.get(field)!r}; copy it again.")
    found = document["normalisation"]
    if found is not None and not all(isinstance(found.get(field), list) for field in ("mean", "std")):
        raise ValueError(f"{path} must have a normalisation with mean and std, got {found!r}; copy it again.")
    return document


_FIELDS: dict[str, Any] = {
    "encoder": dict | None,
    "normalisation": dict | None,
    "sha256": str,
    "description": dict,
}


def _read_verified(path: Path, sha256: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"encoder must have its weights, got no {path}; copy both files.")
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{path} must have sha256 {sha256[:12]}..., got {found[:12]}... ({len(data)} bytes); "
            "it is damaged or belongs to another encoder.json: copy both again."
        )
    return _parsed(data, path)


def _parsed(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} must be a safetensors file, got {error}; copy it again.") from error


def _rebuilt(encoder: dict[str, Any] | None, path: Path) -> nn.Module:
    """Build by name, and by nothing that reaches for weights, files or a hub on the word of a file."""
    if encoder is None:
        raise ValueError(
            f"{path} describes an encoder that was not built by name; pass load_encoder(path, into=module), "
            "or evaluate(path, into=module)."
        )
    for field in ("name", "channels", "image_size", "options"):
        require_one_of(f"field of {path}", field, encoder)
    name, options = str(encoder["name"]), encoder["options"]
    if not isinstance(options, dict) or WEIGHT_SOURCES & options.keys() or ":" in name.partition(":")[2] or "/" in name:
        raise ValueError(
            f"{path} must name an architecture only, got {name!r} with {options!r}; "
            "build it yourself and pass load_encoder(path, into=module)."
        )
    return build_encoder(name, channels=encoder["channels"], image_size=encoder["image_size"], **options)


def _fit(tensors: Mapping[str, Tensor], module: nn.Module) -> WeightsReport:
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
        return _parsed(path.read_bytes(), path)
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
