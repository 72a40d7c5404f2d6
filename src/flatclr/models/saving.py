"""Encoders as files: `encoder.safetensors` (weights) beside `encoder.json` (how to build it, and what it is).

Nothing in either file is executed when it is opened.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from flatclr.checks import require_one_of
from flatclr.files import parse_json, replace_files, warn_unchecked
from flatclr.models.encoders import WEIGHT_SOURCES, Encoder, EncoderSpec, build_encoder
from flatclr.models.network import Normalisation, normalisation_of, unwrapped
from flatclr.models.weights import fit_of, parse_safetensors

FORMAT = "flatclr-encoder"
FORMAT_VERSION = 1
CHECKSUM = "document_sha256"
FOLDER_DOCUMENT, FOLDER_WEIGHTS = "config.json", "model.safetensors"  # names of the same two in a hub folder


def save_encoder(
    folder: str | Path,
    encoder: nn.Module,
    *,
    description: Mapping[str, Any],
    normalisation: Normalisation | None = None,
) -> Path:
    """Write `encoder.safetensors` and `encoder.json` into `folder`.

    Both files are complete on the disk before either takes its name, so that a full disk or a kill leaves the pair
    that was there. Wrappers of DistributedDataParallel and torch.compile are taken off.

    Args:
        folder: where to; it is made.
        encoder: from `build_encoder`, or any module; what was not built by name loads with `into=` only.
        description: whatever should travel along, as JSON: data, objective, accuracies.
        normalisation: of the images; the encoder's own `.normalisation` unless given.

    Returns:
        The path of the weights.

    >>> import tempfile
    >>> encoder = flatclr.models.build_encoder("cnn", channels=1, image_size=28)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_encoder(folder, encoder, description={"data": "mine"})
    ...     load_encoder(folder).description
    {'data': 'mine'}
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
        text = json.dumps(with_checksum(document), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"description and encoder options must be plain JSON, got {error}; "
            "convert to str, float, int, bool, None, list or dict."
        ) from error
    return weights, text.encode()


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A description with a checksum of all its other fields."""
    plain = json.loads(json.dumps(document, allow_nan=False))  # as it will be read: keys are text
    return {**plain, CHECKSUM: _digest(plain)}


def _digest(document: Mapping[str, Any]) -> str:
    content = {field: value for field, value in document.items() if field != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_encoder(path: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """A saved encoder, its checksum verified.

    Args:
        path: a run directory, a folder (also one of `export_folder`), the `.safetensors` or the `.json` file.
        into: a module of the same architecture, for an encoder that was not built by name.

    Returns:
        The encoder in evaluation mode on the CPU. `.description` is what was saved with it, `.normalisation` what its
        images need (None: nothing), `.spec` how it was built. The random state is left as it was.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     built = flatclr.models.build_encoder("mlp", channels=1, image_size=8, width=4)
    ...     _ = flatclr.models.save_encoder(folder, built, description={"data": "mine"})
    ...     encoder = flatclr.load_encoder(folder)
    >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.description["data"]
    (torch.Size([2, 4]), 'mine')
    """
    module, checked = read_encoder(Path(path), into)
    if not checked:
        warn_unchecked(_document_path(Path(path)).parent)
    return module


def read_encoder(path: Path, into: nn.Module | None = None) -> tuple[nn.Module, bool]:
    """As `load_encoder`, and whether there was a checksum to look for damage by."""
    document_path = _document_path(path)
    in_hub_folder = document_path.name == FOLDER_DOCUMENT
    weights_path = (
        document_path.with_name(FOLDER_WEIGHTS) if in_hub_folder else document_path.with_suffix(".safetensors")
    )
    document = _read_document(document_path)
    tensors = _read_verified(weights_path, document["sha256"])
    with torch.random.fork_rng(devices=()):
        module = into if into is not None else _rebuilt(document["encoder"], document_path)
    fit = fit_of(tensors, module)
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
    return module.eval(), CHECKSUM in document


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
        if hasattr(value, "full_tensor"):  # which all processes would have to call
            raise ValueError(
                f"an encoder must be whole to be saved, got {name!r} sharded over processes (FSDP2); load the full "
                "state of get_model_state_dict into a plain copy, and save that."
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
        document = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(path.read_bytes())
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
        got = repr(document[field])[:80] if field in document else "none"
        if field not in document or not isinstance(document[field], kinds):
            raise ValueError(f"{path} must have a valid field {field!r}, got {got}; copy it again.")
    found = document["normalisation"]
    if found is not None and not all(_are_numbers(found.get(field)) for field in ("mean", "std")):
        raise ValueError(f"{path} must have a normalisation with mean and std, got {found!r}; copy it again.")
    _require_untouched(document, path)
    return document


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(part) in (int, float) for part in value)


def _require_untouched(document: dict[str, Any], path: Path) -> None:
    if CHECKSUM in document and document[CHECKSUM] != _digest(document):
        raise ValueError(
            f"{path} must be as it was saved, got one that does not match its checksum; copy it again, or, if you "
            f"changed it yourself, remove its field {CHECKSUM!r}."
        )


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
    return parse_safetensors(data, path)


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
