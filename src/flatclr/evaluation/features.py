"""Features of a frozen encoder: computed once, kept on disk under what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from flatclr.checks import unusable_rows
from flatclr.data.named import Progress
from flatclr.data.sources import ImageSource
from flatclr.files import replace_files

FEATURES_VERSION = 2  # of how they are computed; part of the key
IMAGES_AT_ONCE = 512
PIXELS_AT_ONCE = IMAGES_AT_ONCE * 32 * 32
OUTPUT = "output"
Prepare = Callable[[Tensor], Tensor]  # uint8 images -> what the encoder takes


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, also of modules that a callable holds; every submodule's mode is put back."""
    wholes = (module, *getattr(module, "held", ()))
    modes = [(part, part.training) for whole in wholes for part in whole.modules()]
    for whole in wholes:
        whole.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


@dataclass(frozen=True)
class FeatureCache:
    """A folder of feature files; None keeps nothing. A file that is not what its name says is computed again."""

    folder: Path | None

    def get(self, key_of: Callable[[], str], compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        if self.folder is None:
            return compute()
        key = key_of()
        path = self.folder / f"{key}.safetensors"
        found = _read(path, key)
        if found is not None:
            return found
        features = {name: tensor.cpu().contiguous() for name, tensor in compute().items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        stamp = {"key": key, "sha256": _digest(features)}
        replace_files({path: safetensors.torch.save(features, stamp)})
        return features


def _read(path: Path, key: str) -> dict[str, Tensor] | None:
    try:
        with safe_open(path, framework="pt") as file:
            stamp = file.metadata() or {}
            features = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError, ValueError):
        return None
    return features if stamp.get("key") == key and stamp.get("sha256") == _digest(features) else None


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_digest(module: nn.Module) -> str:
    """Of everything in its state: weights and statistics of normalisation layers."""
    return _digest({name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)})


def feature_key(module: nn.Module, architecture: Any, fingerprint: str, preparation: Any, layers: Sequence[str]) -> str:
    """Changes with the weights, the architecture and its parts, the data, how images are prepared, and the layers."""
    parts = (
        FEATURES_VERSION,
        weights_digest(module),
        repr(architecture),
        repr(module),  # what was changed in it after it was built
        fingerprint,
        repr(preparation),
        tuple(layers),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def compute_features(
    module: nn.Module,
    source: ImageSource,
    prepare: Prepare,
    *,
    layers: Sequence[str] = (OUTPUT,),
    index: Tensor | None = None,
    device: torch.device,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """float32 [N, d] for every layer, on `device`, all finite; positions of maps and tokens [N, T, d] are averaged.

    Maps are [N, d, S, S] or, where only the first two of the last three sides agree, [N, S, S, d].

    Args:
        layers: names of submodules, or "output" for what the module returns.
        index: of the images; all of them unless given.
    """
    index = torch.arange(len(source)) if index is None else index
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}
    with frozen(module), watched(module, layers) as seen:
        for part, start in _parts(index, images_at_once(source.image_size, device)):
            images = prepare(source.batch(part).to(device))
            seen.clear()
            seen[OUTPUT] = forward(module, images, source.name)
            for name in layers:
                if name not in seen:
                    raise ValueError(f"layer must be used by the encoder, got {name!r}, which is not; see --layer all.")
                kept[name].append(rows_of(seen[name], name))
            if progress is not None:
                progress(f"encoding {source.name}", start + len(part), len(index))
    features = {name: torch.cat(parts) for name, parts in kept.items()}
    for name, rows in features.items():
        problem = unusable_rows(f"features of {source.name} at layer {name!r}", rows, directions=False)
        if problem is not None:
            raise ValueError(problem)
    return features


def images_at_once(size: int, device: torch.device) -> int:
    """On a CPU so few large ones that not many seconds pass until the next."""
    return IMAGES_AT_ONCE if device.type != "cpu" else max(8, min(IMAGES_AT_ONCE, PIXELS_AT_ONCE // size**2))


def _parts(index: Tensor, at_once: int) -> Iterator[tuple[Tensor, int]]:
    return ((index[start : start + at_once], start) for start in range(0, len(index), at_once))


@contextmanager
def watched(module: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the named submodules return, filled as the module runs."""
    seen: dict[str, Any] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            # pooled at once: a later layer may work in place
            seen[name] = rows_of(output, name) if isinstance(output, Tensor) and output.dim() >= 2 else output

        return hook

    handles = [module.get_submodule(name).register_forward_hook(watch(name)) for name in layers if name != OUTPUT]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def forward(module: nn.Module, images: Tensor, data: str) -> Any:
    """What the module returns for images in its own type, or numbers of words; what goes wrong is said in one line."""
    kinds = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    try:
        return module(images.to(next(kinds, images.dtype)) if images.is_floating_point() else images)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{len(images)} images of {data} must fit into the memory of {images.device}, got too little; "
            "free some of it, or pass device='cpu'."
        ) from error
    except (RuntimeError, ValueError, TypeError) as error:
        kind = "numbers of words" if images.dim() == 2 else "images"
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"the encoder must take {kind} {list(images.shape[1:])} of {data}, got: {reason}; "
            "pass data of the size and channels it was built for, or use protocol transfer."
        ) from error


def rows_of(value: Any, name: str) -> Tensor:
    """float32 [N, d] of what a layer returned; positions are averaged."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"layer {name!r} must give a tensor [N, d, ...], got {got}; probe another one.")
    return _pooled(value.detach().float())


def _pooled(value: Tensor) -> Tensor:
    """[N, d], in memory of its own."""
    if value.dim() == 3:  # tokens [N, T, d]
        return value.mean(1)
    sides = value.shape[1:]
    if len(sides) == 3 and sides[0] == sides[1] != sides[2]:  # channels last; images are square
        return value.mean((1, 2))
    return value.flatten(2).mean(2) if value.dim() > 3 else value.clone()
