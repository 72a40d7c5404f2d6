"""The picture wall of a run: what takes its encoder and its data, computed once and kept as pictures.json.

Shape suffixes: N sampled images, C channels, S pixels along a side, d features.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from flatclr.checks import checked_device
from flatclr.data.loading import seeded_generator
from flatclr.data.opening import dataset_from
from flatclr.data.progress import Progress
from flatclr.data.sources import (
    Dataset,
    ImageSource,
    PairedArrays,
    ReadyViews,
    ResidentImages,
    SkippedImagesWarning,
    TransparentImagesWarning,
)
from flatclr.evaluation.embedding import fitted, picture_of
from flatclr.evaluation.features import OUTPUT, compute_features, frozen
from flatclr.evaluation.opening import open_subject
from flatclr.evaluation.search import nearest, unit
from flatclr.evaluation.sheets import data_uri
from flatclr.evaluation.subjects import Subject
from flatclr.files import parse_json, replace_files
from flatclr.models.cost import multiply_adds
from flatclr.runs import PICTURES, RunDirectory

SAMPLED, FEWEST = 1_000, 64
QUICK_COST = 4e10  # multiply-adds of all sampled images on a CPU: a few seconds
PATIENT_COST = 20 * QUICK_COST
MAP_TILE, WALL_TILE, COLUMNS = 40, 96, 32  # pixels, pixels, tiles of a row
VIEWED, QUERIES, NEIGHBOURS, PAIRS = 6, 8, 8, 12
MOST_VIEWS, MOST_NAMED, CLUSTERS = 6, 20, 10
MOST_COMPARED = 200_000  # images among which exact copies are looked for
COPY_DIFFERENCE = 0.1  # of two images that are near-duplicates, as a share of the contrast of one
OTHERS = "others"
Floats = NDArray[np.floating]


def refresh_pictures(
    run: Path, dataset: Dataset | None = None, *, patient: bool = False, progress: Progress | None = None
) -> str:
    """Make the pictures of a run anew where those that are kept show other weights, or less than there is time for.

    Args:
        run: its folder.
        dataset: as for `write_pictures`.
        patient: as for `write_pictures`.
        progress: as for `write_pictures`.

    Returns:
        Why there are none or only older ones, in a sentence; "" where they are as they should be.
    """
    try:
        kept = parse_json((run / PICTURES).read_bytes())
        if kept["steps"] == _steps(RunDirectory.open(run)) and kept["patient"] >= patient:
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        kept = None
    try:
        with warnings.catch_warnings():
            for told in (SkippedImagesWarning, TransparentImagesWarning):  # by the run itself
                warnings.simplefilter("ignore", told)
            write_pictures(run, dataset, patient=patient, progress=progress)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:  # the page is worth having without
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"{'No pictures' if kept is None else 'These pictures are of earlier weights'}: {reason}"
    return ""


def write_pictures(
    run: Path, dataset: Dataset | None = None, *, patient: bool = False, progress: Progress | None = None
) -> Path:
    """Look at a sample of a run's images with its encoder, and keep what a page shows of it.

    Args:
        run: its folder.
        dataset: what it was trained on, where it is at hand; None: what its settings name is opened.
        patient: whether more than a few seconds may pass.
        progress: called with (what, done, total).

    Returns:
        The file.

    Raises:
        ValueError, OSError, ImportError: there are no images to show, or no encoder yet.
    """
    opened, subject = RunDirectory.open(run), open_subject(run)
    dataset = dataset or _dataset(subject)
    source, device = _images(subject, dataset), checked_device("auto")
    with subject.on(device):
        chosen = _chosen(subject, source, device, PATIENT_COST if patient else QUICK_COST)
        found = compute_features(
            subject.module, source, subject.plain(), index=chosen, device=device, progress=progress
        )[OUTPUT]
    sample = _sample(source, chosen, found.cpu().numpy())
    content = {
        "steps": _steps(opened),
        "patient": patient,
        "data": dataset.name,
        "sampled": len(chosen),
        "of": len(source),
        "views": _views(subject, sample, opened.config()),
        "neighbours": _neighbours(sample),
        "map": _map(sample, patient=patient),
        **_alike(sample),
        "copies": _copies(dataset),
    }
    content["tiles"] = {str(i): _tile(sample.images[i]) for i in sorted(_shown(content))}
    target = run / PICTURES
    replace_files({target: json.dumps(content, separators=(",", ":")).encode()})
    return target


@dataclass(frozen=True)
class _Sample:
    """Images [N, C, S, S], what the encoder makes of them as rows of length 1, and the names of their classes."""

    images: NDArray[np.uint8]
    features_Nd: Floats
    labels: tuple[str, ...] | None

    @property
    def cosine_NN(self) -> Floats:
        return self.features_Nd @ self.features_Nd.T


def _dataset(subject: Subject) -> Dataset:
    if subject.data is None:
        raise ValueError("the data must be named by the run's settings, got data that came from Python.")
    return dataset_from(subject.data, data_dir=subject.data_dir, labels=subject.labels or "auto")


def _images(subject: Subject, dataset: Dataset) -> ImageSource:
    if isinstance(dataset.train, PairedArrays | ReadyViews):
        raise ValueError(f"the data must be images, got {dataset.name}, which are pairs or views.")
    return fitted(dataset.train, subject, None)


def _steps(run: RunDirectory) -> int:
    return int(max((row.get("step", 0) for row in run.metrics()), default=0))


def _chosen(subject: Subject, source: ImageSource, device: torch.device, budget: float) -> torch.Tensor:
    """As many as a CPU looks at in the time that is given."""
    count = SAMPLED
    if device.type == "cpu":
        with frozen(subject.module):
            image = torch.zeros(1, source.channels, source.image_size, source.image_size)
            cost = multiply_adds(subject.module, image)
        count = min(SAMPLED, max(FEWEST, int(budget / max(cost, 1))))
    return torch.randperm(len(source), generator=seeded_generator(0, "pictures"))[:count].sort().values


def _sample(source: ImageSource, chosen: torch.Tensor, features: Floats) -> _Sample:
    labels = None if source.labels is None else tuple(source.classes[i] for i in source.labels[chosen].tolist())
    return _Sample(source.batch(chosen).numpy(), unit(features), labels)


def _views(subject: Subject, sample: _Sample, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Images with views as training draws them, as pixels."""
    channels, generator = sample.images.shape[1], seeded_generator(0, "pictures", "views")
    drawn = replace(subject, normalisation=None).augmented(channels, generator)
    images = torch.from_numpy(sample.images[:: max(1, len(sample.images) // VIEWED)][:VIEWED])
    count = min(MOST_VIEWS, max(4, int(config.get("views_per_image") or 2)))
    views = [(drawn(images).clamp(0, 1) * 255).byte().numpy() for _ in range(count)]
    return [
        {"image": _tile(image), "views": [_tile(view[i]) for view in views]} for i, image in enumerate(images.numpy())
    ]


def _neighbours(sample: _Sample) -> list[dict[str, Any]]:
    """Of some images those nearest to them; with labels, of images whose neighbours name their class and of others."""
    if len(sample.images) < 2:
        return []
    found = nearest(sample.features_Nd, k=NEIGHBOURS, backend="numpy")
    labels, order = sample.labels, np.random.default_rng(0).permutation(len(sample.images))
    hits = None if labels is None else [_voted(labels, row) == labels[i] for i, row in enumerate(found.index)]
    queries: Sequence[int] = order[:QUERIES].tolist()
    if hits is not None:
        half = QUERIES // 2
        queries = [int(i) for wanted in (True, False) for i in order[[hits[i] is wanted for i in order]][:half]]
    return [
        {
            "image": int(i),
            "label": None if labels is None else labels[i],
            "hit": None if hits is None else bool(hits[i]),
            "found": [
                {"image": int(j), "cosine": round(float(c), 3), "label": None if labels is None else labels[j]}
                for j, c in zip(found.index[i], found.cosine[i], strict=True)
            ],
        }
        for i in queries
    ]


def _voted(labels: Sequence[str], neighbours: NDArray[np.int64]) -> str:
    return Counter(labels[int(i)] for i in neighbours).most_common(1)[0][0]


def _alike(sample: _Sample) -> dict[str, Any]:
    """The pairs that the encoder finds most alike: near-duplicates by their pixels, and collisions, which are not."""
    cosine = np.triu(sample.cosine_NN, 1)
    top = np.argsort(-cosine, axis=None)[: 50 * PAIRS]
    pairs = [divmod(int(place), len(cosine)) for place in top]
    pairs = [(i, j) for i, j in pairs if i < j]
    near = {pair for pair in pairs if _is_copy(sample.images[pair[0]], sample.images[pair[1]])}

    def row(pair: tuple[int, int]) -> dict[str, Any]:
        i, j = pair
        labels = None if sample.labels is None else [sample.labels[i], sample.labels[j]]
        return {"images": [i, j], "cosine": round(float(cosine[i, j]), 3), "labels": labels}

    return {
        "collisions": [row(pair) for pair in pairs if pair not in near][:PAIRS],
        "duplicates": [row(pair) for pair in pairs if pair in near][:PAIRS],
    }


def _is_copy(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    a, b = one.astype(np.float32), other.astype(np.float32)
    contrast = np.abs(a - a.mean()).mean()
    return bool(np.abs(a - b).mean() <= COPY_DIFFERENCE * contrast)


def _copies(dataset: Dataset) -> dict[str, int] | None:
    """How many images of data in memory are exact copies of an earlier one, and of how many test images of those."""
    parts = [part for part in (dataset.train, dataset.test) if isinstance(part, ResidentImages)]
    if not parts or sum(map(len, parts)) > MOST_COMPARED:
        return None
    seen: set[int] = set()
    counts = list[int]()
    for part in parts:
        rows = part.images.reshape(len(part), -1).numpy()
        hashes = [hash(row.tobytes()) for row in rows]
        counts.append(sum(one in seen for one in hashes) if counts else len(hashes) - len(set(hashes)))
        seen.update(hashes)
    return {"searched": sum(map(len, parts)), "within": counts[0], "leaked": counts[1] if len(counts) > 1 else 0}


def _map(sample: _Sample, *, patient: bool) -> dict[str, Any]:
    """Every sampled image as a point of the plane, by each method that is at hand."""
    colours, names, by = _coloured(sample)
    tile = min(MAP_TILE, sample.images.shape[-1])
    return {
        "methods": {name: _rounded(found) for name, found in _projections(sample.features_Nd, patient=patient).items()},
        "colours": colours,
        "names": names,
        "by": by,
        "labels": sample.labels,
        "atlas": _atlas(sample.images, tile),
        "columns": COLUMNS,
        "tile": tile,
    }


def _projections(features_Nd: Floats, *, patient: bool) -> dict[str, Floats]:
    found = {"PCA": _principal(features_Nd, 2)}
    if len(features_Nd) < 8 or not patient:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, project in (("UMAP", _umap), ("t-SNE", _tsne)):
            try:
                found[name] = project(features_Nd)
            except ImportError:  # which is optional
                continue
    return found


def _principal(features_Nd: Floats, dimensions: int) -> Floats:
    centred = (features_Nd - features_Nd.mean(0)).astype(np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    found = centred @ directions[:dimensions].T
    return np.pad(found, ((0, 0), (0, dimensions - found.shape[1])))


def _tsne(features_Nd: Floats) -> Floats:
    manifold = importlib.import_module("sklearn.manifold")
    perplexity = min(30.0, (len(features_Nd) - 1) / 3)
    made: Floats = manifold.TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(
        _principal(features_Nd, min(50, features_Nd.shape[1]))
    )
    return made


def _umap(features_Nd: Floats) -> Floats:
    umap = importlib.import_module("umap")
    made: Floats = umap.UMAP(n_neighbors=min(15, len(features_Nd) - 1), random_state=0).fit_transform(features_Nd)
    return made


def _coloured(sample: _Sample) -> tuple[list[int], list[str], str]:
    """What each image is coloured by, as a number into names: its class, of many the most frequent; else a cluster."""
    if sample.labels is not None:
        counted = Counter(sample.labels)
        names = sorted(name for name, _ in counted.most_common(MOST_NAMED))
        names += [OTHERS] if len(counted) > MOST_NAMED else []
        place = {name: i for i, name in enumerate(names)}
        return [place.get(label, len(names) - 1) for label in sample.labels], names, "class"
    from scipy.cluster.vq import kmeans2

    clusters = min(CLUSTERS, len(sample.images))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cluster may stay empty
        _, numbers = kmeans2(sample.features_Nd.astype(np.float64), clusters, minit="++", seed=0)
    return [int(i) for i in numbers], [f"cluster {i + 1}" for i in range(clusters)], "cluster"


def _rounded(points: Floats) -> list[list[float]]:
    scaled = points / max(float(np.abs(points).max()), 1e-12)
    return [[round(float(x), 4), round(float(y), 4)] for x, y in scaled]


def _shown(content: Mapping[str, Any]) -> set[int]:
    rows = [row for query in content["neighbours"] for row in (query, *query["found"])]
    pairs = [*content["collisions"], *content["duplicates"]]
    return {row["image"] for row in rows} | {i for pair in pairs for i in pair["images"]}


def _picture(image: NDArray[np.uint8], side: int) -> Image.Image:
    picture = picture_of(image).convert("RGB")
    return picture if picture.width <= side else picture.resize((side, side), Image.Resampling.LANCZOS)


def _atlas(images: NDArray[np.uint8], tile: int) -> str:
    """All images on one sheet, row by row."""
    sheet = Image.new("RGB", (COLUMNS * tile, -(-len(images) // COLUMNS) * tile))
    for i, image in enumerate(images):
        sheet.paste(_picture(image, tile), (i % COLUMNS * tile, i // COLUMNS * tile))
    return data_uri(sheet, "webp", quality=80)


def _tile(image: NDArray[np.uint8]) -> str:
    return data_uri(_picture(image, WALL_TILE), "webp", quality=80)
