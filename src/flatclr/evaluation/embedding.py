"""`embed`: the features of images or sentences, with their names, prepared as in training."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from flatclr.checks import checked_device, require_count
from flatclr.data.opening import dataset_from, in_single_sentences
from flatclr.data.progress import Progress
from flatclr.data.sources import FileImages, ImageSource, ItemImages, Sentences
from flatclr.evaluation.features import OUTPUT, compute_features
from flatclr.evaluation.layers import find_layers
from flatclr.evaluation.opening import is_by_name, open_named, open_subject
from flatclr.evaluation.request import taking
from flatclr.evaluation.splits import IMAGES, SENTENCES, AdaptedSource, kind_of, labels_of, sources_of
from flatclr.evaluation.subjects import Subject
from flatclr.extras import needed
from flatclr.files import replace_files, require_place
from flatclr.models.network import Normalisation

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".npz", ".parquet")


@dataclass(frozen=True)
class Embeddings:
    """Features of images or sentences, a row each.

    Args:
        features: float32 [N, d].
        names: of images: paths of files below the folder that was named, else numbers; sentences are their own names,
            cut at 500 characters.
        labels: names of their classes; None where there are none.
        encoder: what made the features, in words.
        data: the name of the data.
        sources, rows: where the images or sentences themselves are, and which of them the features are of.

    >>> found = Embeddings(np.eye(2, dtype=np.float32), ("a.jpg", "b.jpg"), None, "run", "photos")
    >>> found.to_frame().columns.tolist()
    ['name', 'f0', 'f1']
    """

    features: NDArray[np.float32]
    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    encoder: str
    data: str
    sources: tuple[ImageSource, ...] = field(default=(), repr=False, compare=False)
    rows: tuple[int, ...] = field(default=(), repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.features)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.features, dtype=dtype, copy=True if copy is None else copy)

    @property
    def kind(self) -> str:
        """What the features are of: images or sentences."""
        return kind_of(self.sources[0]) if self.sources else IMAGES

    def picture(self, number: int) -> Image.Image:
        """The image of a row, as it is stored.

        Args:
            number: of the row.

        Returns:
            A PIL image; of an array at the size it was embedded at.
        """
        if self.kind == SENTENCES:
            raise ValueError(f"a picture must be of images, got sentences ({self.data}); they are in .names.")
        place = self.rows[number]
        for source in self.sources:
            if place < len(source):
                return _stored(source, place)
            place -= len(source)
        raise IndexError(f"number must be below {len(self)}, got {number}; pass a row.")

    def to_frame(self) -> pd.DataFrame:
        """A table: name, label where there are labels, and a column per feature."""
        import pandas as pd

        told = {"name": self.names} | ({} if self.labels is None else {"label": self.labels})
        features = pd.DataFrame(self.features, columns=[f"f{i}" for i in range(self.features.shape[1])])
        return pd.concat([pd.DataFrame(told), features], axis=1)

    def save(self, path: str | Path) -> Path:
        """Write .npz (arrays features, names, labels) or .parquet (a table); whole or not at all.

        Args:
            path: where to; its ending says what.

        Returns:
            The path.
        """
        target, stream = require_target(path), io.BytesIO()
        if target.suffix == ".parquet":
            self.to_frame().to_parquet(stream, index=False)
        else:
            arrays = {"features": self.features, "names": np.array(self.names)}
            if self.labels is not None:
                arrays["labels"] = np.array(self.labels)
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_files({target: stream.getvalue()})
        return target


def require_target(path: str | Path) -> Path:
    """Refuse a file that embeddings cannot be written to, before they are computed."""
    target = require_place(path)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"out must end in {' or '.join(SUFFIXES)}, got {str(path)!r}; name such a file.")
    if target.is_dir():
        raise ValueError(f"out must be a file, got the folder {target}; name a file in it.")
    if target.suffix == ".parquet":
        needed("pyarrow", by=target.name)
    return target


@dataclass(frozen=True)
class EmbedRequest:
    """The arguments of `embed`, which says what each means."""

    run_or_encoder: Any
    data: Any = None
    _: KW_ONLY
    image_size: int | None = None
    labels: str | None = None
    layer: str | None = None
    data_dir: str | Path | None = None
    architecture: str | None = None
    prefix: str = ""
    into: nn.Module | None = None
    normalisation: Normalisation | None = None
    device: str | torch.device = "auto"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None:
            require_count("image_size", self.image_size, advice="pass the side in pixels, or leave it out.")


@taking(EmbedRequest)
def embed(request: EmbedRequest) -> Embeddings:
    """Features of images, sized and normalised as the encoder's training did, or of sentences, read as it read them.

    Args:
        run_or_encoder: as for `evaluate`: a run, an encoder's folder or file, "timm:NAME", a module or a callable.
        data: as for `flatclr.train`: a path or name, a `Dataset`, images as an array or tensor (uint8, or float in
            [0, 1]), a torch Dataset, a sequence of images; None: what the run was trained on. All images of a folder
            are taken, those of train/ first, then those of test/. For an encoder of sentences: a `.txt` file, whose
            sentences are told apart as in training, a `.csv` file with the column text and, where there are labels,
            label, a list of sentences, or (sentences, labels).
        image_size: the side that images are brought to. Files are brought to that of the encoder; arrays must have it
            unless this says otherwise.
        labels: whether sub-folders are classes, as for `flatclr train`; None: as in the run, for its own data.
        layer: the submodule whose output is taken instead of the encoder's.
        data_dir: where named datasets are looked for.
        architecture, prefix, into, normalisation: of weights from elsewhere, as for `evaluate`.
        device: where to compute; "auto" is CUDA where there is one.
        progress: called with (what, done, total).

    Returns:
        `Embeddings`, with `.features`, `.names`, `.labels`, `.to_frame()` and `.save(path)`.

    Raises:
        ValueError: arrays of another size than the encoder's, floats beyond [0, 1], or what `evaluate` refuses.

    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=8, width=4)
    >>> flatclr.embed(encoder, torch.rand(5, 8, 8)).features.shape
    (5, 4)
    """
    subject, parts, name = _opened(request)
    device = checked_device(request.device)
    with subject.on(device):
        wanted = OUTPUT if request.layer is None else find_layers(subject, parts[0], request.layer, device)[0]
        rows = [_rows(subject, part, wanted, device, request.progress) for part in parts]
    return Embeddings(
        torch.cat(rows)[_readable(parts)].cpu().numpy(),
        tuple(_only(_names(parts), parts)),
        None if (labels := _labels(parts)) is None else tuple(_only(labels, parts)),
        subject.name,
        name,
        tuple(parts),
        tuple(_readable(parts)),
    )


def _rows(subject: Subject, source: ImageSource, layer: str, device: torch.device, progress: Progress | None) -> Tensor:
    prepare = subject.plain()
    return compute_features(subject.module, source, prepare, layers=(layer,), device=device, progress=progress)[layer]


def _opened(request: EmbedRequest) -> tuple[Subject, list[ImageSource], str]:
    """The encoder, the parts of the data as it takes them, and the name of the data."""
    by_name = is_by_name(request.run_or_encoder, request.architecture)
    if by_name:
        parts, name = _sources(request, request.data, request.data_dir, request.image_size)
        subject = open_named(
            request.run_or_encoder,
            channels=parts[0].channels,
            image_size=parts[0].image_size,
            architecture=request.architecture,
            prefix=request.prefix,
            normalisation=request.normalisation,
        )
    else:
        subject = open_subject(
            request.run_or_encoder, into=request.into, normalisation=request.normalisation, sentences=True
        )
        of_run = request.data is None
        labels = subject.labels if of_run and request.labels is None else request.labels
        parts, name = _sources(
            replace(request, labels=labels),
            subject.data if of_run else request.data,
            request.data_dir or subject.data_dir,
            None,
            subject.reads,
            subject.channels,
        )
    return subject, [fitted(part, subject, request.image_size) for part in parts], name


def _sources(
    request: EmbedRequest,
    data: Any,
    data_dir: str | Path | None,
    image_size: int | None,
    reads: str | None = IMAGES,
    words: int | None = None,
) -> tuple[list[ImageSource], str]:
    if data is None:
        raise ValueError("data must be named for an encoder without a run, got none; pass --data (data= from Python).")
    dataset = dataset_from(
        in_single_sentences(data) if reads == SENTENCES else data,
        data_dir=data_dir,
        image_size=image_size,
        labels=request.labels or "auto",
        test_fraction=0,
        progress=request.progress,
    )
    return sources_of(dataset, reads, words), dataset.name


def fitted(source: ImageSource, subject: Subject, image_size: int | None) -> ImageSource:
    """Images as the encoder takes them; arrays of another size are refused unless one is asked for."""
    if isinstance(source, Sentences):
        return source
    size = image_size or subject.image_size or source.image_size
    channels = subject.channels or source.channels
    if isinstance(source, FileImages):
        return source.sized(size, channels)
    if source.image_size != size and image_size is None and not isinstance(source, ItemImages):
        raise ValueError(
            f"{source.name} must have images of {size} pixels for this encoder, got {source.image_size}; pass "
            f"--image-size {size} (image_size={size}) to resize them."
        )
    if (source.image_size, source.channels) == (size, channels):
        return source
    return AdaptedSource(source, channels, size)


def _stored(source: ImageSource, number: int) -> Image.Image:
    if isinstance(source, FileImages):
        with source.files[number].open() as stream, Image.open(stream) as image:
            image.load()
            return image.copy()
    return picture_of(source.batch(torch.tensor([number]))[0].numpy())


def picture_of(pixels_CSS: NDArray[np.uint8]) -> Image.Image:
    """An array as a picture, of one channel or of three."""
    return Image.fromarray(pixels_CSS[0] if len(pixels_CSS) == 1 else pixels_CSS.transpose(1, 2, 0).copy())


def _readable(parts: Sequence[ImageSource]) -> list[int]:
    """Numbers of the images that could be read; others have a neighbour's features, which are not theirs."""
    kept, first = [], 0
    for part in parts:
        damaged = part.damaged if isinstance(part, FileImages) else frozenset()
        kept += [first + i for i in range(len(part)) if i not in damaged]
        first += len(part)
    return kept


def _only(values: Sequence[str], parts: Sequence[ImageSource]) -> list[str]:
    return [values[i] for i in _readable(parts)]


def _names(parts: Sequence[ImageSource]) -> list[str]:
    """Sentences; paths below the folder that all files have in common; numbers for images without a file."""
    if texts := [name for part in parts if isinstance(part, Sentences) for name in part.names]:
        return texts
    files = [getattr(part, "files", None) for part in parts]
    if any(part is None for part in files):
        return [str(number) for number in range(sum(map(len, parts)))]
    names = [file.name for part in files if part is not None for file in part]
    try:
        common = Path(*_common_parts(names))
        return [str(Path(name).relative_to(common)) for name in names]
    except (TypeError, ValueError):  # names of members of shards
        return names


def _common_parts(names: Sequence[str]) -> list[str]:
    first, last = (Path(name).parent.parts for name in (min(names), max(names)))
    same = [a == b for a, b in zip(first, last, strict=False)]
    return list(first[: same.index(False) if False in same else len(same)])


def _labels(parts: Sequence[ImageSource]) -> tuple[str, ...] | None:
    numbers = [labels_of(part) for part in parts]
    if any(found is None or found.dim() != 1 for found in numbers):
        return None
    return tuple(
        part.classes[number]
        for part, found in zip(parts, numbers, strict=True)
        if found is not None
        for number in found.tolist()
    )
