"""Encoders for other programs: ONNX, and a folder as the Hugging Face hub keeps models."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.extras import needed
from flatclr.files import replace_files, require_place
from flatclr.models.encoders import EncoderSpec
from flatclr.models.network import NormalisedEncoder, normalisation_of, unwrapped
from flatclr.models.saving import FOLDER_DOCUMENT, FOLDER_WEIGHTS, encoder_files, is_encoder_document

LARGEST_DIFFERENCE = 1e-4
ONNX_CHECK_BATCHES = (1, 5)


def export_onnx(
    encoder: nn.Module, path: str | Path, *, channels: int | None = None, image_size: int | None = None
) -> float:
    """Write an ONNX file, and check it with onnxruntime.

    Its input `images` is float32 [N, C, S, S] in [0, 1] for any N, normalised inside; its output `features` is [N, d].
    A file whose output differs by more than 1e-4 is not written.

    Args:
        encoder: from `build_encoder` or `load_encoder`, or any module from images to features.
        path: of the file; its folder is made.
        channels: of the images, where the encoder was not built by name.
        image_size: side of the images, where the encoder was not built by name.

    Returns:
        The largest difference between its features under onnxruntime and those of PyTorch.

    >>> from tempfile import TemporaryDirectory
    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=4, width=8)
    >>> with TemporaryDirectory() as folder:
    ...     export_onnx(encoder, Path(folder) / "encoder.onnx") < 1e-4
    True
    """
    require_file_target(path)
    encoder = unwrapped(encoder)
    channels, image_size = _shape(encoder, channels, image_size)
    onnxruntime = needed("onnxruntime", by="ONNX export")
    needed("onnx", by="ONNX export")
    needed("onnxscript", by="ONNX export")
    module = NormalisedEncoder(copy.deepcopy(encoder)).cpu().float().eval()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(n, channels, image_size, image_size, generator=generator) for n in ONNX_CHECK_BATCHES]
    content = _traced(module, batches[-1])
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    largest = 0.0
    for images in batches:
        with torch.no_grad():
            wanted = module(images)
        (got,) = session.run(None, {"images": images.numpy()})
        largest = max(largest, float((torch.from_numpy(got) - wanted).abs().max()))
    if not largest <= LARGEST_DIFFERENCE:
        raise ValueError(
            f"the ONNX file must give the encoder's features within {LARGEST_DIFFERENCE:g}, got a difference of "
            f"{largest:g}; nothing was written: report the architecture."
        )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_files({target: content})
    return largest


def export_folder(
    encoder: nn.Module, folder: str | Path, *, description: Mapping[str, Any] | None = None, results: str = ""
) -> Path:
    """Write README.md (a model card), config.json and model.safetensors, as the Hugging Face hub keeps models.

    Args:
        encoder: from `build_encoder` or `load_encoder`, or any module; what was not built by name loads with `into=`.
        folder: new, empty, or of an earlier export, whose files are replaced.
        description: data, objective, ESS target and the like; the encoder's own unless given.
        results: measured accuracies as a Markdown table, such as `markdown_table` makes.

    Returns:
        The folder, which `flatclr.load_encoder` loads.

    >>> from tempfile import TemporaryDirectory
    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=4, width=8)
    >>> with TemporaryDirectory() as folder:
    ...     sorted(file.name for file in export_folder(encoder, folder).iterdir())
    ['README.md', 'config.json', 'model.safetensors']
    """
    require_export_target(folder)
    encoder = unwrapped(encoder)
    about = dict(description if description is not None else getattr(encoder, "description", None) or {})
    weights, document = encoder_files(encoder, description=about)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    card = model_card(encoder, about, results, hashlib.sha256(weights).hexdigest())
    replace_files(
        {target / FOLDER_WEIGHTS: weights, target / FOLDER_DOCUMENT: document, target / "README.md": card.encode()}
    )
    return target


def require_file_target(path: str | Path) -> None:
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"the ONNX file must have a name of its own, got the folder {path}; pass {Path(path) / 'encoder.onnx'}."
        )
    require_place(path)


def require_export_target(folder: str | Path) -> None:
    """A folder that is absent, empty or a former export, so that no README.md and config.json of others are lost.

    Hidden files do no harm: a new repository of the hub has some.
    """
    target = Path(folder)
    require_place(target)
    if target.is_dir():
        others = [entry for entry in target.iterdir() if not entry.name.startswith(".")]
        if not others or is_encoder_document(target / FOLDER_DOCUMENT):
            return
    if target.exists():
        kind = "a folder with other files" if target.is_dir() else "a file"
        raise FileExistsError(
            f"an export must go to a new or empty folder or replace a former export, got {folder}, {kind}; "
            "pass another folder."
        )


def model_card(encoder: nn.Module, about: Mapping[str, Any], results: str, sha256: str) -> str:
    """What the encoder is, was trained on and achieves, with the hub's header."""
    spec = getattr(encoder, "spec", None)
    name = spec.name if isinstance(spec, EncoderSpec) else type(encoder).__name__
    settings = {"architecture": name, **{key: value for key, value in about.items() if not isinstance(value, Mapping)}}
    measured = about.get("measured")
    lines = [
        "---",
        "library_name: flatclr",
        "tags: [contrastive-learning, self-supervised-learning, image-feature-extraction]",
        f"datasets: [{json.dumps(str(about['data']))}]" if about.get("data") else "datasets: []",
        "---",
        "",
        f"# {name}, trained without labels" + (f" on {about['data']}" if about.get("data") else ""),
        "",
        "| setting | value |",
        "| --- | --- |",
        *(f"| {key.replace('_', ' ')} | {_cell(value)} |" for key, value in settings.items() if value is not None),
        "",
        "## Measured",
        "",
        results or _measured(measured) or "Nothing was measured; run `flatclr eval` before `flatclr export`.",
        "",
        "## Use",
        "",
        "```python",
        "import flatclr",
        "",
        'encoder = flatclr.load_encoder("path/to/this/folder")',
        f"features = encoder({_use(encoder)})",
        "```",
        "",
        f"Image normalisation: {_normalisation(encoder)}. Weights: sha256 {sha256}.",
        "",
    ]
    return "\n".join(lines)


def _measured(measured: Any) -> str:
    if not isinstance(measured, Mapping) or not measured:
        return ""
    rows = [f"| {key} | {_cell(value)} |" for key, value in measured.items()]
    return "\n".join(["During training, on part of the data:", "", "| gauge | value |", "| --- | --- |", *rows])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")


def _use(encoder: nn.Module) -> str:
    return "images" if normalisation_of(encoder) is None else "encoder.normalisation(images)"


def _normalisation(encoder: nn.Module) -> str:
    found = normalisation_of(encoder)
    return "none, images in [0, 1]" if found is None else ", ".join(f"{k} {list(v)}" for k, v in asdict(found).items())


def _shape(encoder: nn.Module, channels: int | None, image_size: int | None) -> tuple[int, int]:
    spec = getattr(encoder, "spec", None)
    if isinstance(spec, EncoderSpec):
        return channels or spec.channels, image_size or spec.image_size
    if channels is None or image_size is None:
        raise ValueError(
            f"channels and image_size must be given for {type(encoder).__name__}, got {channels} and {image_size}; "
            "only encoders built by name know theirs."
        )
    return channels, image_size


def _traced(module: nn.Module, images: Tensor) -> bytes:
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own, about its own future
            program = torch.onnx.export(
                module,
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
            )
            assert program is not None
            content: bytes = program.model_proto.SerializeToString()
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    return content
