"""`evaluate`: open what is named, run the protocols, keep what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatclr.checks import checked_device, require_count, require_one_of
from flatclr.data.digits import DIGITS, digits
from flatclr.data.named import Progress
from flatclr.data.opening import open_dataset
from flatclr.data.sources import Dataset, ImageSource
from flatclr.evaluation.features import (
    OUTPUT,
    FeatureCache,
    compute_features,
    layers_by_depth,
    weights_digest,
)
from flatclr.evaluation.protocols import PROTOCOLS, Bench, at_home_size, splits_of, unfit
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row, set_aside, write_results
from flatclr.evaluation.subjects import (
    AdaptedSource,
    Subject,
    WithHead,
    is_by_name,
    open_named,
    open_subject,
)
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
    into: nn.Module | None = None,
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
            left as it is, bit for bit; so are modules that a callable refers to by closure, global name, `self`,
            attribute or `functools.partial`. What else a callable changes is its own affair.
        data: what `flatclr train --data` takes, or a `Dataset`; None: what the run was trained on, else the embedded
            images, unless the encoder's description names other data.
        protocol: one of `PROTOCOLS`, several, or "all" (those that do not fit the data are listed in `skipped`).
        layer: probe this submodule instead of the output; "all": every top-level part in turn.
        transfer_data: of the protocol transfer; scikit-learn's digits unless given.
        architecture, prefix: of a state-dict file: what `build_encoder` takes, and what its keys begin with.
        into: a module of the architecture of a run or encoder file that was not built by name.
        head: the projection head, so that its layers can be probed as "head.NAME".
        normalisation: of images in [0, 1], where the encoder brings none.
        random_row: measure random weights too.
        draws: of the label subsets of semi.
        cache: folder for features; only encoders built by name are cached.
        out: folder for results.json and evaluation.png. Earlier results of other weights or settings, and of anything
            that cannot be told apart, are kept beside them under the name in `.set_aside`.
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
        into=into,
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
            transfer=lru_cache(lambda: _adapted(_open_transfer(transfer_data, data_dir), subject, train)),
            progress=progress,
        )
        benches = {TRAINED: bench}
        fresh = subject.at_random(seed) if random_row else None
        if fresh is not None:
            benches[RANDOM] = replace(bench, subject=fresh, random=True)
        reasons = {name: unfit(name, bench, probing=probing) for name in protocols}
        skipped = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
        if len(skipped) == len(protocols):
            raise ValueError(skipped[0][1])
        # what can go wrong should go wrong now, not after an hour of work
        some = torch.arange(min(2, len(train)))
        compute_features(subject.module, train, subject.plain(), layers=layers, index=some, device=target)
        if out is not None:
            _make_folder(Path(out))
        found = Evaluation(
            encoder=subject.name,
            encoder_sha256=weights_digest(subject.bare),
            rows=(),
            skipped=skipped,
            report=subject.report,
            architecture=None if subject.architecture is None else repr((subject.architecture, subject.bare)),
            normalisation=None if subject.normalisation is None else asdict(subject.normalisation),
        )
        if out is not None:
            found = replace(found, set_aside=set_aside(Path(out), found))
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
            measured_on = at_home_size(bench) if protocol.elsewhere else bench
            started = time.monotonic()
            for measured in protocol.run(looking):
                yield Row(
                    protocol=name,
                    version=protocol.version,
                    variant=measured.variant,
                    data=measured_on.data,
                    data_sha256=measured_on.data_sha256,
                    seed=bench.seed,
                    layer=layer,
                    weights=weights,
                    headline=measured.scores.headline,
                    scores=measured.scores.values,
                    chosen=measured.chosen,
                    per_class=measured.scores.per_class,
                    confusion=measured.scores.confusion,
                    correct=measured.scores.correct,
                    seconds=round(time.monotonic() - started, 3),
                )
                started = time.monotonic()


def _protocols(protocol: str | Sequence[str]) -> list[str]:
    names = [protocol] if isinstance(protocol, str) else list(dict.fromkeys(protocol))
    for name in names:
        require_one_of("protocol", name, [*PROTOCOLS, "all"])
    if not names:
        raise ValueError("protocol must name at least one, got none; pass 'knn'.")
    return list(PROTOCOLS) if "all" in names else names


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
    into: nn.Module | None = None,
) -> tuple[Subject, Dataset]:
    if is_by_name(run_or_encoder, architecture):
        dataset = _open_data(data, data_dir, image_size)
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
    subject = open_subject(run_or_encoder, head=head, normalisation=normalisation, into=into)
    dataset = _open_data(
        subject.data if data is None else data, data_dir or subject.data_dir, image_size or subject.image_size
    )
    if data is None and subject.trained_on not in (None, dataset.name):
        raise ValueError(
            f"the data must be named for an encoder trained on {subject.trained_on!r}, got {dataset.name!r} by "
            "default; pass --data (data= from Python)."
        )
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


def _open_data(
    data: str | Path | Dataset | None, data_dir: str | Path | None, image_size: int | None = None
) -> Dataset:
    if isinstance(data, Dataset):
        return data
    return digits(image_size) if data == DIGITS else open_dataset(data, data_dir=data_dir, image_size=image_size)


def _open_transfer(data: str | Path | Dataset | None, data_dir: str | Path | None) -> Dataset:
    return _open_data(DIGITS if data is None else data, data_dir)


def _adapted(dataset: Dataset, subject: Subject, like: ImageSource) -> Dataset:
    """Resized and centre-cropped to what the encoder knows."""
    train, test = splits_of(dataset)
    channels, size = subject.channels or like.channels, subject.image_size or like.image_size
    parts = [None if part is None else AdaptedSource(part, channels, size) for part in (train, test)]
    assert parts[0] is not None
    return Dataset(dataset.name, parts[0], parts[1], bank=parts[0])
