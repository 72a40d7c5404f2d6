"""Evaluation of networks for paired data: does each side find the other, how much do they share, what does one know?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.checks import checked_device
from flatclr.contrast.numerics import unit_rows
from flatclr.data.halves import halved
from flatclr.data.opening import dataset_from
from flatclr.data.sources import PairedArrays
from flatclr.evaluation.features import OUTPUT, frozen, weights_digest
from flatclr.evaluation.intervals import bootstrap, jackknife, mean_of
from flatclr.evaluation.knn import knn_votes, neighbours_for
from flatclr.evaluation.linear import fit_probe
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.protocols import Measured
from flatclr.evaluation.request import EvaluationRequest
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row, set_aside, write_results
from flatclr.evaluation.scores import Scores, is_unbalanced, score_predictions, selection_score
from flatclr.models.network import TwoTowers, device_of
from flatclr.models.trained import load_network, paired_run
from flatclr.models.untrained import untrained
from flatclr.runs import RunDirectory

VERSION = 1
PROTOCOLS_OF_PAIRS = ("retrieval", "mi")
PROTOCOLS_OF_SIDES = ("knn", "linear")  # of pairs with labels: halves of images
RANKS = (1, 5, 10)
FEWEST_PAIRS = 8
ROWS_AT_ONCE = 512
DEFAULT_BETA = 10.0


def is_paired(subject: Any) -> bool:
    """Whether it is a network for pairs, or the run of one."""
    return isinstance(subject, TwoTowers) or (isinstance(subject, str | Path) and paired_run(Path(subject)))


def evaluate_pairs(request: EvaluationRequest) -> Evaluation:
    """As `evaluate`, for a network or run on pairs: retrieval in both directions, and mutual information.

    Of halves of labelled images, neighbours and a linear probe from either side too.
    """
    if request.probing:
        raise ValueError(
            f"layer must be left out for a network on pairs, got {request.layer!r}; its outputs are what is measured."
        )
    device = checked_device(request.device)
    network, settings = _opened(request)
    data = _data_of(request, settings)
    possible = (*PROTOCOLS_OF_PAIRS, *(PROTOCOLS_OF_SIDES if data.bank is not None else ()))
    asked = request.protocols if request.is_explicit else list(possible)
    reason = "must be for images, got paired data; it has retrieval and mi"
    if data.bank is not None:
        reason = f"must be for whole images, got their halves; these have {', '.join(possible)}"
    skipped = tuple((p, f"protocol {p} {reason}.") for p in asked if p not in possible)
    if len(skipped) == len(asked):
        raise ValueError(skipped[0][1])
    subject = request.run_or_encoder
    found = Evaluation(
        encoder=type(subject).__name__ if isinstance(subject, TwoTowers) else Path(subject).name,
        encoder_sha256=weights_digest(network),
        rows=(),
        skipped=skipped,
        architecture=repr(network),
    )
    if request.out is not None:
        found = replace(found, set_aside=set_aside(Path(request.out), found))
    weights = {TRAINED: network}
    if request.random_row and (fresh := untrained(network, request.seed)) is not None:
        assert isinstance(fresh, TwoTowers)
        weights[RANDOM] = fresh
    for kind, towers in weights.items():
        for row in _rows(request, towers, data, kind, _beta(settings), device, asked):
            found = replace(found, rows=(*found.rows, row))
            if request.on_row is not None:
                request.on_row(row)
    if request.out is not None:
        write_results(Path(request.out), found)
    return found


def _opened(request: EvaluationRequest) -> tuple[TwoTowers, RunDirectory | None]:
    if isinstance(request.run_or_encoder, TwoTowers):
        return request.run_or_encoder, None
    network = load_network(request.run_or_encoder)
    assert isinstance(network, TwoTowers)
    return network, RunDirectory.open(Path(request.run_or_encoder))


@dataclass(frozen=True)
class _PairedData:
    """What is asked: `held_out` of training, where some are, and `bank`, which classifiers of one side learn from."""

    name: str
    held_out: PairedArrays
    bank: PairedArrays | None


def _data_of(request: EvaluationRequest, run: RunDirectory | None) -> _PairedData:
    """The pairs that training did not see, where there are some."""
    given: Any = request.data
    settings = {} if run is None else run.config()
    if given is None:
        given = settings.get("data")
    halves = settings.get("halves")
    if given is None and halves is None:
        raise ValueError("data must be named for a network without a run, got none; pass --data (data= from Python).")
    dataset = dataset_from(
        given,
        data_dir=request.data_dir or settings.get("data_dir"),
        image_size=settings.get("image_size"),
        labels=settings.get("labels", "auto") if request.data is None else "auto",
    )
    if halves is not None and not isinstance(dataset.train, PairedArrays):
        dataset = halved(dataset, halves)
    train, test = dataset.train, dataset.test
    held_out = test if test is not None else train
    if not isinstance(held_out, PairedArrays):
        raise ValueError(f"the data must be pairs, got images ({dataset.name}); pass x.npy,y.npy, or text.")
    if len(held_out) < FEWEST_PAIRS:
        raise ValueError(
            f"{dataset.name} must have at least {FEWEST_PAIRS} held-out pairs, got {len(held_out)}; add more."
        )
    assert isinstance(train, PairedArrays)
    labelled = train.labels is not None and held_out.labels is not None and held_out is not train
    return _PairedData(dataset.name, held_out, train if labelled else None)


def _rows(
    request: EvaluationRequest,
    network: TwoTowers,
    data: _PairedData,
    weights: str,
    beta: float,
    device: torch.device,
    asked: list[str],
) -> Iterator[Row]:
    started = time.monotonic()
    for protocol, of in _measured(request, network, data, beta, device, asked):
        yield Row(
            protocol=protocol,
            version=VERSION,
            variant=of.variant,
            data=data.name,
            data_sha256=data.held_out.fingerprint(),
            seed=request.seed,
            layer=OUTPUT,
            weights=weights,
            headline=of.scores.headline,
            scores=of.scores.values,
            chosen=of.chosen,
            seconds=round(time.monotonic() - started, 3),
        )
        started = time.monotonic()


def _measured(
    request: EvaluationRequest,
    network: TwoTowers,
    data: _PairedData,
    beta: float,
    device: torch.device,
    asked: list[str],
) -> Iterator[tuple[str, Measured]]:
    if {*asked} & {*PROTOCOLS_OF_PAIRS}:
        z_x, z_y = map(unit_rows, _outputs(request, network, network, data.held_out, device))
    if "retrieval" in asked:
        yield "retrieval", _retrieval(z_x, z_y, "x to y", request.seed)
        yield "retrieval", _retrieval(z_y, z_x, "y to x", request.seed)
    if "mi" in asked:
        yield "mi", _information(z_x, z_y, beta, request)
    if data.bank is not None and {*asked} & {*PROTOCOLS_OF_SIDES}:
        encoders = _Features(network)
        bank, queries = (_outputs(request, network, encoders, pairs, device) for pairs in (data.bank, data.held_out))
        for protocol in PROTOCOLS_OF_SIDES:
            for side, *features in zip(("x", "y"), bank, queries, strict=True):
                if protocol in asked:
                    yield protocol, _accuracy(protocol, side, features, data.bank, data.held_out, request)


class _Features(nn.Module):
    """What the encoders of both towers see, without their heads."""

    def __init__(self, network: TwoTowers) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(network.encoders.values())

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(encoder(side) for encoder, side in zip(self.encoders, (x, y), strict=True))


def _outputs(
    request: EvaluationRequest, network: TwoTowers, part: nn.Module, pairs: PairedArrays, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What the network, or a part of it, makes of both sides of all pairs."""
    home, parts = device_of(network), []
    network.to(device)
    as_trained = _as_trained(pairs, network.encoders.values())
    try:
        with frozen(part):
            for index in torch.arange(len(pairs)).split(ROWS_AT_ONCE):
                parts.append(part(*(side.to(device) for side in as_trained.batch(index))))
                if request.progress is not None:
                    request.progress(f"encoding {pairs.name}", int(index[-1]) + 1, len(pairs))
    finally:
        network.to(home)
    x, y = (torch.cat([both[side].float() for both in parts]) for side in (0, 1))
    return x, y


def _as_trained(pairs: PairedArrays, encoders: Iterable[nn.Module]) -> PairedArrays:
    """Images stay images where the encoders were built for them, all else is rows."""
    sides = []
    for side, encoder in zip((pairs.x, pairs.y), encoders, strict=True):
        spec = getattr(encoder, "spec", None)
        is_image = side.dim() == 4 and side.shape[1] in (1, 3) and (spec is None or spec.image_size > 1)
        sides.append(side if is_image else side.flatten(1))
    return pairs.with_sides(*sides)


def _accuracy(
    protocol: str,
    side: str,
    features: list[Tensor],
    bank: PairedArrays,
    held_out: PairedArrays,
    request: EvaluationRequest,
) -> Measured:
    """Of neighbours, or of a linear classifier, that see one side alone."""
    assert bank.labels is not None
    assert held_out.labels is not None
    learned_from, asked = features
    labels, wanted = bank.labels.to(asked.device), held_out.labels.to(asked.device)
    chosen: dict[str, Any] = {"k": neighbours_for(len(labels))}
    if protocol == "knn":
        logits = knn_votes(learned_from, labels, asked, k=chosen["k"], classes=len(bank.classes))
    else:
        probe = fit_probe(learned_from, labels, classes=len(bank.classes), score=selection_score, seed=request.seed)
        logits, chosen = probe.classifier.logits(asked), {"l2": probe.classifier.l2}
    unbalanced = is_unbalanced(bank.labels)
    scores = score_predictions([logits], wanted, bank.classes, unbalanced=unbalanced, seed=request.seed)
    return Measured(scores, f"from side {side}", chosen)


def _retrieval(queries: Tensor, bank: Tensor, variant: str, seed: int) -> Measured:
    """How often a query's own partner is among the nearest of the other side."""
    counts = []
    for rows in torch.arange(len(queries), device=queries.device).split(ROWS_AT_ONCE):
        cosine = queries[rows] @ bank.T
        counts.append((cosine > cosine.gather(1, rows[:, None])).sum(1))
    nearer = torch.cat(counts).cpu()
    values = {
        f"recall_at_{k}": bootstrap(mean_of((nearer < k).float()), len(nearer), seed=seed)
        for k in RANKS
        if k < len(bank)
    }
    return Measured(Scores("recall_at_1", values), variant, {"pairs": len(queries)})


def _information(z_x: Tensor, z_y: Tensor, beta: float, request: EvaluationRequest) -> Measured:
    """InfoNCE's lower bound on what the sides share, against the held-out pairs."""
    chooses = torch.arange(len(z_x), device=z_x.device) % 2 == 0

    def bounds(rows: Tensor) -> dict[str, float]:
        return pool_mi_nats(z_x[rows], z_y[rows], beta=beta, chooses=chooses[rows])

    found = jackknife(bounds, len(z_x), seed=request.seed)
    values = {name: found[name] for name in ("pool_mi_best_nats", "pool_mi_nats")}
    chosen = {"beta": beta, "ceiling_nats": found["pool_ceiling_nats"].value, "pool": len(z_x)}
    return Measured(Scores("pool_mi_best_nats", values), chosen=chosen)


def _beta(run: RunDirectory | None) -> float:
    rows = [] if run is None else run.metrics()
    betas = [row["beta"] for row in rows if isinstance(row.get("beta"), float)]
    return betas[-1] if betas else DEFAULT_BETA
