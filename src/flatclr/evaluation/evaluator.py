"""`evaluate`: open what is named, run the protocols, keep what they found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from flatclr.checks import checked_device
from flatclr.data.digits import DIGITS, digits
from flatclr.data.opening import are_sentences, dataset_from
from flatclr.data.progress import Progress
from flatclr.data.sources import Dataset
from flatclr.evaluation.bench import Bench
from flatclr.evaluation.features import FeatureCache, compute_features, weights_digest
from flatclr.evaluation.finetune import OWN
from flatclr.evaluation.layers import find_layers
from flatclr.evaluation.opening import head_of, is_by_name, open_named, open_subject
from flatclr.evaluation.pairs import evaluate_pairs, is_paired
from flatclr.evaluation.protocols import PROTOCOLS, Measured, unfit
from flatclr.evaluation.request import EvaluationRequest, taking
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row, set_aside, write_results
from flatclr.evaluation.splits import Splits
from flatclr.evaluation.subjects import Subject


@taking(EvaluationRequest)
def evaluate(request: EvaluationRequest) -> Evaluation:
    """How good an encoder is, with 95 % intervals, beside the same architecture with random weights.

    Args:
        run_or_encoder: a run directory, of a run that goes on or was stopped with its newest checkpoint; an encoder's
            folder or file; "timm:NAME", "torchvision:NAME"; a state-dict file with `architecture`; any `nn.Module`; any
            callable from images [N, C, S, S] to features [N, d]. A module is left as it is, bit for bit; so are modules
            that a callable refers to by closure, global name, `self`, attribute or `functools.partial`. What else a
            callable changes is its own affair.
        data: what `flatclr train --data` takes, or what `flatclr.data.dataset_from` does: a `Dataset`, (images, labels)
            as arrays, a torch Dataset; None: what the run was trained on, else the embedded images, unless the
            encoder's description names other data. For an encoder of sentences, or a run on text: a `.csv` file with
            the columns text and label, `train.csv,test.csv`, or (sentences, labels).
        protocol: one of `PROTOCOLS`, several, "auto" or "all". Both run those that fit the data, and list the others in
            `skipped`; "auto" has transfer only with `transfer_data`. A run on pairs has retrieval and mi, of
            halves of labelled images knn and linear too. Labelled sentences have knn, linear and retrieval.
        layer: probe this submodule instead of the output; "all": every top-level part in turn. Layers of a run are
            those of its whole network, "encoder.NAME" and "head.NAME", as long as it has a checkpoint.
        transfer_data: of the protocol transfer; scikit-learn's digits unless given.
        data_dir: where named datasets are looked for; where the run found its own unless given.
        image_size: side of the square images; that of the encoder, else of the data, unless given.
        architecture: of a state-dict file: what `build_encoder` takes.
        prefix: what the keys of a state-dict file begin with, if not one of the usual prefixes.
        into: a module of the architecture of a run or encoder file that was not built by name.
        head: a projection head, so that its layers can be probed as "head.NAME"; that of the run unless given.
        normalisation: of images in [0, 1], where the encoder brings none.
        random_row: measure random weights too.
        draws: how many label subsets semi draws.
        recipe: how finetune, semi and transfer train: "own", or "paper", that of FlatNCE (Chen et al. 2021): Adam
            without a penalty, 100 epochs, transfer data resized bicubically.
        seed: of splits, draws and random weights.
        device: where to measure; "auto" is CUDA where there is one. The module goes back to where it was.
        cache: folder for features; only encoders built by name are cached.
        out: folder for results.json and evaluation.png. Earlier results of other weights or settings, and of anything
            that cannot be told apart, are kept beside them under the name in `.set_aside`.
        progress: called with (what, done, total).
        on_row: called with every row as it is ready.

    Returns:
        An `Evaluation`: `.rows` of every protocol, layer and set of weights; `evaluation["knn"]` is the trained row of
        a protocol, `.best` of a row its headline score with its interval.

    >>> from flatclr.data.sources import Dataset, ResidentImages
    >>> images, labels = torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 2
    >>> images[labels == 1, :, :4] = 255
    >>> parts = (ResidentImages(images, labels, name=name) for name in ("train", "test"))
    >>> found = flatclr.evaluate(torch.nn.Flatten(), Dataset("halves", *parts), "knn", device="cpu")
    >>> found["knn"].best.value
    1.0
    """
    if is_paired(request.run_or_encoder) and not are_sentences(request.data):
        return evaluate_pairs(request)
    device = checked_device(request.device)
    subject, data = _opened(request)
    with subject.on(device):
        benches = _benches(request, subject, data, device)
        fitting, skipped = _fitting(request, benches[TRAINED])
        _try_out(benches[TRAINED])
        found = _begun(request, subject, skipped)
        for name in fitting:
            for row in _rows(name, benches):
                found = replace(found, rows=(*found.rows, row))
                if request.on_row is not None:
                    request.on_row(row)
            if request.out is not None:  # what goes wrong later takes nothing away
                write_results(Path(request.out), found)
    return found


def _opened(request: EvaluationRequest) -> tuple[Subject, Splits]:
    """The encoder and the data; some encoders are built for the data, others come with theirs."""
    if is_by_name(request.run_or_encoder, request.architecture):
        data = Splits.of(_open_data(request.data, request.data_dir, request.image_size))
        subject = open_named(
            request.run_or_encoder,
            channels=data.train.channels,
            image_size=data.train.image_size,
            architecture=request.architecture,
            prefix=request.prefix,
            normalisation=request.normalisation,
        )
        return subject, data
    subject = open_subject(
        request.run_or_encoder,
        head=_head(request),
        normalisation=request.normalisation,
        into=request.into,
        sentences=True,
    )
    data = Splits.of(_data_of(subject, request), subject.reads, subject.channels)
    _require_fit(subject, data)
    return subject, data


def _head(request: EvaluationRequest) -> torch.nn.Module | None:
    if not request.probing:  # the output is the encoder's
        return None
    return head_of(request.run_or_encoder) if request.head is None else request.head


def _data_of(subject: Subject, request: EvaluationRequest) -> Dataset:
    """What the request names, else what the subject was trained on."""
    is_named = request.data is None or isinstance(request.data, str | Path)  # arrays are brought to size when told
    dataset = _open_data(
        subject.data if request.data is None else request.data,
        request.data_dir or subject.data_dir,
        request.image_size or (subject.image_size if is_named else None),
        subject.labels if request.data is None else None,
    )
    if request.data is None and subject.trained_on not in (None, dataset.name):
        raise ValueError(
            f"the data must be named for an encoder trained on {subject.trained_on!r}, got {dataset.name!r} by "
            "default; pass --data (data= from Python)."
        )
    return dataset


def _open_data(
    data: Any, data_dir: str | Path | None, image_size: int | None = None, labels: str | None = None
) -> Dataset:
    if isinstance(data, str) and data == DIGITS:
        return digits(image_size)
    return dataset_from(data, data_dir=data_dir, image_size=image_size, labels=labels or "auto")


def _require_fit(subject: Subject, data: Splits) -> None:
    for source in data.parts:
        if subject.channels is not None and source.channels != subject.channels:
            raise ValueError(
                f"{source.name} must have {subject.channels} channels for this encoder, got {source.channels}; "
                "convert the images, or evaluate on its own data with this as transfer_data."
            )
        if subject.image_size is not None and source.image_size != subject.image_size:
            raise ValueError(
                f"{source.name} must have images of {subject.image_size} pixels for this encoder, got "
                f"{source.image_size}; pass image_size={subject.image_size} where the data is opened."
            )


def _benches(request: EvaluationRequest, subject: Subject, data: Splits, device: torch.device) -> dict[str, Bench]:
    """The trained weights and, where they can be drawn, random ones."""
    layers = find_layers(subject, data.train, request.layer, device)

    @lru_cache
    def transfer() -> Splits:
        named = DIGITS if request.transfer_data is None else request.transfer_data
        like = data.train
        return Splits.of(_open_data(named, request.data_dir)).adapted(
            subject.channels or like.channels,
            subject.image_size or like.image_size,
            "bilinear" if request.recipe == OWN else "bicubic",
        )

    trained = Bench(
        subject=subject,
        data=data,
        layers=layers,
        layer=layers[0],
        device=device,
        cache=FeatureCache(None if request.cache is None else Path(request.cache)),
        seed=request.seed,
        draws=request.draws,
        transfer=transfer,
        progress=request.progress,
        recipe=request.recipe,
    )
    fresh = subject.at_random(request.seed) if request.random_row else None
    return {TRAINED: trained} | ({} if fresh is None else {RANDOM: replace(trained, subject=fresh, random=True)})


def _fitting(request: EvaluationRequest, bench: Bench) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """(protocols that can be run, the others with a reason each); an error where none can."""
    reasons = {name: unfit(name, bench, probing=request.probing) for name in request.protocols}
    skipped = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
    if len(skipped) == len(reasons):
        raise ValueError(skipped[0][1])
    return [name for name, reason in reasons.items() if reason is None], skipped


def _try_out(bench: Bench) -> None:
    """Two images: what can go wrong should go wrong now, not after an hour of work."""
    train, subject = bench.data.train, bench.subject
    some = torch.arange(min(2, len(train)))
    compute_features(subject.module, train, subject.plain(), layers=bench.layers, index=some, device=bench.device)


def _begun(request: EvaluationRequest, subject: Subject, skipped: tuple[tuple[str, str], ...]) -> Evaluation:
    """An evaluation without rows yet, and a folder in which they have their place."""
    architecture = None if subject.architecture is None else repr((subject.architecture, subject.bare))
    found = Evaluation(
        encoder=subject.name,
        encoder_sha256=weights_digest(subject.whole or subject.bare),
        rows=(),
        skipped=skipped,
        report=subject.report,
        architecture=architecture if subject.whole is None else repr(subject.whole),
        normalisation=None if subject.normalisation is None else asdict(subject.normalisation),
    )
    if request.out is None:
        return found
    _make_folder(Path(request.out))
    return replace(found, set_aside=set_aside(Path(request.out), found))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"out must be a folder that can be made, got {folder} ({error.strerror}); pass another."
        ) from error


def _rows(name: str, benches: Mapping[str, Bench]) -> Iterator[Row]:
    """Of one protocol: every set of weights, every layer, every variant."""
    protocol = PROTOCOLS[name]
    for weights, bench in benches.items():
        for layer in bench.layers[:1] if protocol.trains else bench.layers:
            looking = replace(bench, layer=layer, progress=_naming(bench.progress, f"{name}, {weights} weights"))
            data = looking.elsewhere().data if protocol.elsewhere else looking.data
            started = time.monotonic()
            for measured in protocol.run(looking):
                yield _row(name, weights, looking, data, measured, seconds=time.monotonic() - started)
                started = time.monotonic()


def _naming(progress: Progress | None, protocol: str) -> Progress | None:
    """Progress that says which protocol it is of."""
    if progress is None:
        return None
    return lambda what, done, total: progress(f"{protocol}: {what}", done, total)


def _row(name: str, weights: str, bench: Bench, data: Splits, measured: Measured, *, seconds: float) -> Row:
    return Row(
        protocol=name,
        version=PROTOCOLS[name].version,
        variant=measured.variant,
        data=data.name,
        data_sha256=data.sha256,
        seed=bench.seed,
        layer=bench.layer,
        weights=weights,
        headline=measured.scores.headline,
        scores=measured.scores.values,
        chosen=measured.chosen,
        per_class=measured.scores.per_class,
        confusion=measured.scores.confusion,
        correct=measured.scores.correct,
        seconds=round(seconds, 3),
    )
