"""From a run to its diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatclr.doctor.diagnosis import Diagnosis, Finding
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.foreign import embedding_row, foreign_rows
from flatclr.doctor.remedies import code_for
from flatclr.doctor.rules import RULES
from flatclr.runs import RunDirectory
from flatclr.training.result import RunResult

AFTER_ITS_CAUSE = 0.95  # of the cost of the fault that brings it about


def examine(
    source: str | Path | RunResult | None = None,
    *,
    metrics: str | Path | Sequence[Mapping[str, Any]] | None = None,
    embeddings: Any = None,
    negatives: int | None = None,
) -> Diagnosis:
    """What is wrong with a run, most costly first; of one of this package, or of another library's metrics.

    Nothing is computed but from what the run has written, so it takes a moment. What was not measured is not judged.

    Args:
        source: a run directory, finished or not, or what `flatclr.train` returned.
        metrics: instead of a run, the metrics of any training: a .csv or .jsonl file, a folder of TensorBoard events,
            or rows by name. Usual names are understood: step, loss or train_loss, grad_norm, lr, knn and others.
        embeddings: of the trained network, where they are at hand: an array or tensor [N, d], or a .npy, .npz, .csv or
            .parquet file, such as `flatclr embed` writes.
        negatives: how many each anchor had in another library's InfoNCE loss, which says where its ceiling is.

    Returns:
        A verdict in one sentence and the findings, each with its evidence, cause and remedy.

    Raises:
        FileNotFoundError: where there is no run, or no such file.
        ValueError: where there is nothing to examine, or a file cannot be read.

    >>> rows = [{"step": step, "loss": 2.0, "update_ratio": 1e-7} for step in range(100)]
    >>> examine(metrics=rows).findings[0].name
    'learning_rate_too_low'
    """
    if (source is None) == (metrics is None and embeddings is None):
        raise ValueError(
            "either a run or metrics and embeddings of another must be given, got "
            f"{'neither' if source is None else 'both'}; pass one of them."
        )
    if negatives is not None and (isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 1):
        raise ValueError(f"negatives must be a whole number >= 1, got {negatives!r}; count those of one anchor.")
    evidence = _of_run(source) if source is not None else _of_others(metrics, embeddings, negatives)
    return diagnose(evidence)


def diagnose(evidence: Evidence) -> Diagnosis:
    """The findings of every rule, put in order, and the verdict."""
    found = {name: finding for name, rule in RULES.items() if (finding := rule.look(evidence)) is not None}
    after = (
        replace(finding, cost=_cost(name, found), code=None if finding.command else code_for(name, evidence))
        for name, finding in found.items()
    )
    ordered = tuple(sorted(after, key=lambda finding: -finding.cost))
    return Diagnosis(_verdict(ordered, evidence), healthy=not ordered, findings=ordered)


def _cost(name: str, found: Mapping[str, Finding]) -> float:
    """What another fault brings about costs less than that fault, for it is gone with it."""
    causes = [_cost(cause, found) for cause in RULES[name].effect_of if cause in found]
    return min([found[name].cost, *(AFTER_ITS_CAUSE * cost for cost in causes)])


def _verdict(findings: Sequence[Finding], evidence: Evidence) -> str:
    steps = f"{evidence.steps:,.0f} steps"
    if not findings:
        return f"Nothing is wrong that the metrics of {steps} can show."
    first, *others = findings
    title = f"{first.title[:1].lower()}{first.title[1:]}"
    costs = first.costs if first.price else f"{first.costs} of what the run could have learnt"
    if not others:
        return f"One thing is wrong: {title}, which costs {costs}."
    return f"{len(findings)} things are wrong, first of all that {title}, which costs {costs}."


def _of_run(source: str | Path | RunResult) -> Evidence:
    run = RunDirectory.open(Path(source.path if isinstance(source, RunResult) else source))
    rows = run.metrics()
    if not rows:
        raise ValueError(f"a run must have metrics to be examined, got {run.path} without; let it log a step.")
    return Evidence(rows, run.config(), left_open=frozenset(run.asked()), run=str(run.path))


def _of_others(metrics: Any, embeddings: Any, negatives: int | None) -> Evidence:
    rows = [] if metrics is None else foreign_rows(metrics, negatives=negatives)
    if embeddings is not None:
        last = max((row["step"] for row in rows), default=0)
        rows.append(embedding_row(embeddings, step=last))
    return Evidence(rows)
