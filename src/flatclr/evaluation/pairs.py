"""Evaluation of networks for paired data: does each side find the other, and how much do they share?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatclr.checks import checked_device
from flatclr.contrast.numerics import unit_rows
from flatclr.data.opening import dataset_from
from flatclr.data.sources import PairedArrays
from flatclr.evaluation.features import OUTPUT, frozen, weights_digest
from flatclr.evaluation.intervals import bootstrap, jackknife, mean_of
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.protocols import Measured
from flatclr.evaluation.request import EvaluationRequest
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row, set_aside, write_results
from flatclr.evaluation.scores import Scores
from flatclr.models.network import TwoTowers, device_of
from flatclr.models.trained import load_network, paired_run
from flatclr.models.untrained import untrained
from flatclr.runs import RunDirectory

VERSION = 1
PROTOCOLS_OF_PAIRS = ("retrieval", "mi")
RANKS = (1, 5, 10)
FEWEST_PAIRS = 8
ROWS_AT_ONCE = 512
DEFAULT_BETA = 10.0


def is_paired(subject: Any) -> bool:
    """Whether it is a network for pairs, or the run of one."""
    return isinstance(subject, TwoTowers) or (isinstance(subject, str | Path) and paired_run(Path(subject)))


def evaluate_pairs(request: EvaluationRequest) -> Evaluation:
    """As `evaluate`, for a network or run on pairs: retrieval in both directions, and mutual information."""
    device = checked_device(request.device)
    network, settings = _opened(request)
    held_out, name = _held_out(request, settings)
    asked = request.protocols if request.is_explicit else list(PROTOCOLS_OF_PAIRS)
    reason = "must be for images, got paired data; it has retrieval and mi"
    skipped = tuple((p, f"protocol {p} {reason}.") for p in asked if p not in PROTOCOLS_OF_PAIRS)
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
        for row in _rows(request, towers, held_out, name, kind, _beta(settings), device, asked):
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


def _held_out(request: EvaluationRequest, run: RunDirectory | None) -> tuple[PairedArrays, str]:
    """The pairs that training did not see, where there are some."""
    given: Any = request.data
    if given is None and run is not None:
        given = run.config().get("data")
    if given is None:
        raise ValueError("data must be named for a network without a run, got none; pass --data (data= from Python).")
    dataset = dataset_from(given, data_dir=request.data_dir)
    source = dataset.test if dataset.test is not None else dataset.train
    if not isinstance(source, PairedArrays):
        raise ValueError(f"the data must be pairs, got images ({dataset.name}); pass x.npy,y.npy, say.")
    if len(source) < FEWEST_PAIRS:
        raise ValueError(
            f"{dataset.name} must have at least {FEWEST_PAIRS} held-out pairs, got {len(source)}; add more."
        )
    return source, dataset.name


def _rows(
    request: EvaluationRequest,
    network: TwoTowers,
    pairs: PairedArrays,
    name: str,
    weights: str,
    beta: float,
    device: torch.device,
    asked: list[str],
) -> Iterator[Row]:
    started = time.monotonic()
    z_x, z_y = _embedded(request, network, pairs, device)
    measured: list[tuple[str, Measured]] = []
    if "retrieval" in asked:
        measured += [("retrieval", _retrieval(z_x, z_y, "x to y", request.seed))]
        measured += [("retrieval", _retrieval(z_y, z_x, "y to x", request.seed))]
    if "mi" in asked:
        measured.append(("mi", _information(z_x, z_y, beta, request)))
    for protocol, of in measured:
        yield Row(
            protocol=protocol,
            version=VERSION,
            variant=of.variant,
            data=name,
            data_sha256=pairs.fingerprint(),
            seed=request.seed,
            layer=OUTPUT,
            weights=weights,
            headline=of.scores.headline,
            scores=of.scores.values,
            chosen=of.chosen,
            seconds=round(time.monotonic() - started, 3),
        )
        started = time.monotonic()


def _embedded(
    request: EvaluationRequest, network: TwoTowers, pairs: PairedArrays, device: torch.device
) -> tuple[Tensor, Tensor]:
    home, parts = device_of(network), []
    network.to(device)
    try:
        with frozen(network):
            for index in torch.arange(len(pairs)).split(ROWS_AT_ONCE):
                parts.append(network(*(side.to(device) for side in _as_trained(pairs).batch(index))))
                if request.progress is not None:
                    request.progress(f"encoding {pairs.name}", int(index[-1]) + 1, len(pairs))
    finally:
        network.to(home)
    x, y = (torch.cat([part[side].float() for part in parts]) for side in (0, 1))
    return unit_rows(x), unit_rows(y)


def _as_trained(pairs: PairedArrays) -> PairedArrays:
    """Images stay images, all else is rows."""
    sides = [
        side if side.dim() == 4 and side.shape[1] in (1, 3) and side.shape[2] == side.shape[3] else side.flatten(1)
        for side in (pairs.x, pairs.y)
    ]
    return PairedArrays(*sides, name=pairs.name)


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
