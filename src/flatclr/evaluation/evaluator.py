"""`evaluate`: open what is named, run the protocols, keep what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatclr.checks import checked_device, require_count, require_one_of
from flatclr.data.digits import DIGITS, digits
from flatclr.data.named import Progress
from flatclr.data.sources import Dataset, ImageSource, open_dataset
from flatclr.evaluation.features import (
    OUTPUT,
    FeatureCache,
    compute_features,
    layers_by_depth,
    weights_digest,
)
from flatclr.evaluation.protocols import PROTOCOLS, Bench, splits_of, unfit
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row, write_results
from flatclr.evaluation.subjects import Subject, WithHead, is_by_name, open_named, open_subject
from flatclr.models.encoders import Normalisation


def evaluate(
    run_or_encoder: Any,
    data: str | Path | Dataset | None = None,
    protocol: str | Sequence[str] = "knn",
    *,
    layer: str | None = None,
    transfer_data: str | Path | Dataset | None = None,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    architecture: str | None = None,
    prefix: str = "",
    head: nn.Module | None = None,
    normalisation: Normalisation | None = None,
    random_row: bool = True,
    draws: int = 5,
    seed: int = 0,
    device: str | torch.device = "auto",
    cache: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Evaluation:
    """How good an encoder is, with 95 % intervals, beside the same architecture with random weights.

    Args:
        run_or_encoder: a run directory; an encoder's folder or file; "timm:NAME", "torchvision:NAME"; a state-dict file
            with `architecture`; any `nn.Module`; any callable from images [N, C, S, S] to features [N, d]. A module is
            left as it is, bit for bit.
        data: what `flatclr train --data` takes, or a `Dataset`; None: what the run was trained on, else the embedded
            images.
        protocol: one of `PROTOCOLS`, several, or "all" (those that do not fit the data are listed in `skipped`).
        layer: probe this submodule instead of the output; "all": every top-level part in turn.
        transfer_data: of the protocol transfer; scikit-learn's digits unless given.
        architecture, prefix: of a state-dict file: what `build_encoder` takes, and what its keys begin with.
        head: the projection head, so that its layers can be probed as "head.NAME".
        normalisation: of images in [0, 1], where the encoder brings none.
        random_row: measure random weights too.
        draws: of the label subsets of semi.
        cache: folder for features; only encoders built by name are cached.
        out: folder for results.json and evaluation.png.
        progress: called with (what, done, total).    on_row: called with every row as it is ready.
    """
    protocols = _protocols(protocol)
    require_count("draws", draws, advice="5 is the default.")
    target = checked_device(device)
    probing = layer not in (None, OUTPUT)
    subject, dataset = _open(
        run_or_encoder,
        data,
        data_dir,
        image_size,
        architecture,
        prefix,
        head=head if probing else None,  # the output is the encoder's
        normalisation=normalisation,
    )
    home = next((weight.device for weight in subject.module.parameters()), target)
    subject.module.to(target)
    try:
        train, test = splits_of(dataset)
        layers = _layers(subject, train, layer, target)
        bench = Bench(
            subject=subject,
            data=dataset.name,
            train=train,
            test=test,
            layers=layers,
            layer=layers[0],
            device=target,
            cache=FeatureCache(None if cache is None else Path(cache)),
            seed=seed,
            draws=draws,
            transfer=lru_cache(lambda: _open_transfer(transfer_data, data_dir)),
            progress=progress,
            memo={},
        )
        benches = {TRAINED: bench}
        fresh = subject.at_random(seed) if random_row else None
        if fresh is not None:
            benches[RANDOM] = replace(bench, subject=fresh)
        reasons = {name: unfit(name, bench, probing=probing) for name in protocols}
        skipped = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
        if len(skipped) == len(protocols):
            raise ValueError(skipped[0][1])
        # what can go wrong should go wrong now, not after an hour of work
        some = torch.arange(min(2, len(train)))
        compute_features(subject.module, train, subject.plain(), layers=layers, index=some, device=target)
        if out is not None:
            _make_folder(Path(out))
        found = Evaluation(subject.name, weights_digest(subject.bare), (), skipped, subject.report)
        for name in (name for name in protocols if reasons[name] is None):
            for row in _rows(name, benches):
                found = replace(found, rows=(*found.rows, row))
                if on_row is not None:
                    on_row(row)
            if out is not None:  # what goes wrong later takes nothing away
                write_results(Path(out), found)
    finally:
        subject.module.to(home)
    return found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"out must be a folder that can be made, got {folder} ({error.strerror}); pass another."
        ) from error


def _rows(name: str, benches: Mapping[str, Bench]) -> Iterator[Row]:
    protocol = PROTOCOLS[name]
    for weights, bench in benches.items():
        for layer in bench.layers[:1] if protocol.trains else bench.layers:
            looking = replace(bench, layer=layer)
            started = time.monotonic()
            for measured in protocol.run(looking):
                yield Row(
                    protocol=name,
                    version=protocol.version,
                    variant=measured.variant,
                    data=bench.transfer().name if protocol.elsewhere else bench.data,
                    layer=layer,
                    weights=weights,
                    headline=measured.scores.headline,
                    scores=measured.scores.values,
                    chosen=measured.chosen,
                    per_class=measured.scores.per_class,
                    confusion=measured.scores.confusion,
                    seconds=round(time.monotonic() - started, 3),
                )
                started = time.monotonic()


def _protocols(protocol: str | Sequence[str]) -> list[str]:
    if protocol == "all":
        return list(PROTOCOLS)
    names = [protocol] if isinstance(protocol, str) else list(protocol)
    for name in names:
        require_one_of("protocol", name, [*PROTOCOLS, "all"])
    if not names:
        raise ValueError("protocol must name at least one, got none; pass 'knn'.")
    return names


def _open(
    run_or_encoder: Any,
    data: str | Path | Dataset | None,
    data_dir: str | Path | None,
    image_size: int | None,
    architecture: str | None,
    prefix: str,
    *,
    head: nn.Module | None,
    normalisation: Normalisation | None,
) -> tuple[Subject, Dataset]:
    def opened(spec: str | Path | Dataset | None, size: int | None) -> Dataset:
        return spec if isinstance(spec, Dataset) else open_dataset(spec, data_dir=data_dir, image_size=size)

    if is_by_name(run_or_encoder):
        dataset = opened(data, image_size)
        train, _ = splits_of(dataset)
        subject = open_named(
            run_or_encoder,
            channels=train.channels,
            image_size=train.image_size,
            architecture=architecture,
            prefix=prefix,
            normalisation=normalisation,
        )
        return subject, dataset
    subject = open_subject(run_or_encoder, head=head, normalisation=normalisation)
    dataset = opened(subject.data if data is None else data, image_size or subject.image_size)
    _require_fit(subject, dataset)
    return subject, dataset


def _require_fit(subject: Subject, dataset: Dataset) -> None:
    for source in splits_of(dataset):
        if source is None:
            continue
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


def _layers(subject: Subject, source: ImageSource, layer: str | None, device: torch.device) -> tuple[str, ...]:
    if layer in (None, OUTPUT):
        return (OUTPUT,)
    if layer != "all":
        inside = {name for name, _ in subject.module.named_modules() if name} | {OUTPUT}
        if layer not in inside and isinstance(subject.module, WithHead) and f"encoder.{layer}" in inside:
            return (f"encoder.{layer}",)
        if layer in inside:
            return (layer,)
    images = subject.plain()(source.batch(torch.arange(min(2, len(source)))).to(device))
    known = layers_by_depth(subject.module, images)
    if layer != "all":
        require_one_of("layer", layer, [*known, "all"])
    if not known:
        raise ValueError(f"layer 'all' must find submodules, got {subject.name} without any; pass an nn.Module.")
    return known


def _open_transfer(data: str | Path | Dataset | None, data_dir: str | Path | None) -> Dataset:
    if isinstance(data, Dataset):
        return data
    return digits() if data in (None, DIGITS) else open_dataset(data, data_dir=data_dir)
