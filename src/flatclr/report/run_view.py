"""What the page of one run says, ready for its template."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flatclr.doctor import examine
from flatclr.evaluation.figures import SHARES
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import TRAINED, Row
from flatclr.report.charts import curve_data, grouped, panel_data, panel_head, run_data
from flatclr.report.panels import panels_of, samples_tested
from flatclr.report.published import published_for
from flatclr.report.reading import RunRecord, text
from flatclr.runs import RESOLVED
from flatclr.training.progress import duration
from flatclr.training.resolve import millions

EVALUATED = {  # key: label, whether a share, format of others
    "knn": ("kNN accuracy", True, ""),
    "linear": ("linear accuracy", True, ""),
    "retrieval_at_1": ("retrieval at 1", True, ""),
    "pixel_knn": ("kNN accuracy of raw pixels", True, ""),
    "effective_rank": ("effective rank", False, "{:.1f}"),
    "head_rank": ("effective rank of the embeddings", False, "{:.1f}"),
    "pool_mi_nats": ("pool MI at the training beta, nats", False, "{:.3f}"),
    "pool_mi_best_nats": ("pool MI at the best beta, nats", False, "{:.3f}"),
    "pool_best_beta": ("best beta", False, "{:g}"),
    "pool_ceiling_nats": ("ceiling of pool MI, nats", False, "{:.3f}"),
    "collision_rate": ("collision rate", False, "{:.3f}"),
    "gradient_snr": ("gradient signal-to-noise", False, "{:.2f}"),
}
NOT_MEASURED = {"text": "not measured", "interval": ""}


def run_view(record: RunRecord, *, pictures_note: str = "") -> dict[str, Any]:
    """Everything but the curves."""
    return {
        "state": record.state,
        "summary": summary(record),
        "diagnosis": diagnosis_of(record),
        "alarms": record.alarms(),
        "tiles": tiles(record),
        "evaluations": [*_results_tables(record), *_own_evaluations(record)],
        "groups": grouped(record.panels),
        "pictures": record.pictures,
        "pictures_note": pictures_note,
        "settings": list(record.settings()),
        "environment": _environment(record),
    }


def script_data(record: RunRecord) -> dict[str, Any]:
    """What the page's script draws."""
    panels = {
        panel.needs: panel_data(panel, [curve_data(curve) for curve in panel.curves(record.rows, record.facts)])
        for panel in record.panels
    }
    data: dict[str, Any] = {"kind": "run", "runs": [run_data(record)], "panels": panels}
    return data if record.pictures is None else {**data, "map": record.pictures.get("map")}


def summary(record: RunRecord) -> str:
    """One line: objective, batch, steps, pace."""
    of = "" if record.total_steps is None else f" of {record.total_steps:,}"
    parts = [str(record.config.get("objective")), f"batch {record.config.get('batch_size')}"]
    parts += [f"{record.steps:,}{of} steps"]
    parts += [f"{record.rate(n):,.0f} {n}/s" for n in ("images", "views") if not math.isnan(record.rate(n))]
    return ", ".join(parts)


def diagnosis_of(record: RunRecord) -> dict[str, Any] | None:
    """The doctor's verdict and findings, each with the panels that show it; None where there is nothing to examine."""
    try:
        found = examine(record.path)
    except (ValueError, OSError):
        return None
    content = found.to_dict()
    for finding, shown in zip(found.findings, content["findings"], strict=True):
        shown["costs"] = finding.costs
        shown["panels"] = [panel_head(panel) for panel in panels_of(finding.series, record.rows)[:2]]
    return content


def tiles(record: RunRecord) -> list[dict[str, str]]:
    """The numbers to look at first, then what the run was made of."""
    return [tile for tile in (*_result_tiles(record), *_fact_tiles(record)) if tile is not None]


def _tile(label: str, value: str, below: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "below": below}


def _result_tiles(record: RunRecord) -> list[dict[str, str] | None]:
    found: list[dict[str, str] | None] = []
    for key in ("knn", "linear", "retrieval_at_1"):
        measured = [row for row in record.evaluations if key in row]
        if measured:
            last = record.score(key, measured[-1])
            first = measured[0].get(key) if measured[0].get("step") == 0 and len(measured) > 1 else None
            below = f"[{interval(last)}]" if interval(last) else ""
            before = f"untrained {percent(first)}" if isinstance(first, float) else ""
            before = "untrained" if measured[-1].get("step") == 0 else before
            found.append(_tile(EVALUATED[key][0], percent(last.value), ", ".join(filter(None, (below, before)))))
    rank = record.last("effective_rank")
    if not math.isnan(rank):
        found.append(_tile("effective rank", f"{rank:.1f}", "directions of the features"))
    pool, ceiling = record.last("pool_mi_best_nats"), record.last("pool_ceiling_nats")
    if not math.isnan(pool):
        found.append(_tile("pool MI", f"{pool:.2f} nats", f"of at most {ceiling:.2f}"))
    return found


def _fact_tiles(record: RunRecord) -> list[dict[str, str] | None]:
    known, config = record.resolved, record.config
    size = known.get("image_size") or config.get("image_size")
    below = [f"{size} px" if size else "", f"{known['classes']} classes" if known.get("classes") else ""]
    test = known.get("test_samples")
    below += [f"{test:,} test" if test else ""]
    samples = f"{known['samples']:,} samples" if isinstance(known.get("samples"), int) else str(config.get("data"))
    weights = known.get("parameters")
    minutes, cost = record.minutes, record.multiply_adds
    per_epoch = known.get("steps_per_epoch")
    return [
        _tile("data", samples, ", ".join(filter(None, [str(known.get("data") or ""), *below]))),
        _tile(
            "encoder",
            str(known.get("encoder") or config.get("encoder")),
            f"{millions(weights)} parameters with its head" if isinstance(weights, int) else "",
        ),
        _tile(
            "length",
            f"{record.steps:,} steps",
            f"{record.steps / per_epoch:.3g} epochs of {per_epoch:,}" if per_epoch else "",
        ),
        None if math.isnan(minutes) or not minutes else _tile("time", duration(60 * minutes), _place(record)),
        None if math.isnan(cost) or not cost else _tile("cost", f"{powers(cost)}", "multiply-adds of training"),
    ]


def _place(record: RunRecord) -> str:
    """Where, with hours of a GPU where it was one."""
    device, processes = str(record.environment.get("device", "")), record.resolved.get("processes") or 1
    if device in ("", "cpu") or record.config.get("device") == "cpu":
        return "of training, on a CPU"
    return f"of training, {record.minutes * processes / 60:.3g} hours of {device}"


def _results_tables(record: RunRecord) -> list[dict[str, Any]]:
    """What `flatclr eval` found, beside random weights and published numbers."""
    found = record.evaluation
    if found is None:
        return []
    rows, notes = [], []
    for row in found.rows:
        if row.weights != TRAINED:
            continue
        random = found.random_beside(row)
        rows.append({"label": _protocol(row), "scores": [_score(row), _score(random) if random else NOT_MEASURED]})
        notes += [
            f"Published for {row.protocol} on {row.data}: {100 * one.accuracy:.1f} % ({one.says}; {one.source})."
            for one in (published_for(row.data, row.protocol) if row.layer == "output" else ())
        ]
    notes = [*dict.fromkeys(notes), *(f"Left out {name}: {reason}" for name, reason in found.skipped)]
    title = "flatclr eval, with 95 % intervals"
    return [{"title": title, "columns": ["protocol", "trained", "random weights"], "rows": rows, "notes": notes}]


def _protocol(row: Row) -> str:
    layer = "" if row.layer == "output" else f", layer {row.layer}"
    return f"{row.protocol} {row.variant}".strip() + f" v{row.version} on {row.data}{layer}: {row.headline}"


def _score(row: Row) -> dict[str, str]:
    best = row.best
    if row.headline in SHARES:
        return {"text": percent(best.value), "interval": interval(best)}
    return {"text": f"{best.value:.4g}", "interval": interval(best, share=False)}


def _own_evaluations(record: RunRecord) -> list[dict[str, Any]]:
    """The evaluations of training: the first of the untrained encoder, and the last."""
    evaluations = record.evaluations
    if not evaluations:
        return [{"title": "In training", "columns": [], "rows": [], "notes": ["The run has evaluated nothing yet."]}]
    first, last = evaluations[0], evaluations[-1]
    shown = [first, last] if first.get("step") == 0 and last is not first else [last]
    rows = [
        {"label": label, "scores": [_measured(record, key, row) for row in shown]}
        for key, (label, _, _) in EVALUATED.items()
        if any(key in row for row in shown)
    ]
    samples = samples_tested(record.facts, last)
    notes = [] if samples is None else [f"Brackets are 95 % intervals over {samples:,} test samples."]
    return [{"title": "In training", "columns": ["", *map(_step, shown)], "rows": rows, "notes": notes}]


def _measured(record: RunRecord, key: str, row: Mapping[str, Any]) -> dict[str, str]:
    value, (_, is_share, form) = row.get(key), EVALUATED[key]
    if value is None:
        return NOT_MEASURED
    if not isinstance(value, int | float):
        return {"text": str(value), "interval": ""}
    score = record.score(key, row)
    return {"text": percent(value) if is_share else form.format(value), "interval": interval(score)}


def _step(row: Mapping[str, Any]) -> str:
    return "untrained" if row.get("step") == 0 else f"step {row.get('step', 0):,}"


def _environment(record: RunRecord) -> list[tuple[str, str]]:
    told = {name: value for name, value in record.environment.items() if name != RESOLVED}
    rows = [(name, text(value)) for name, value in told.items()]
    return rows or [("environment.json", "missing or unreadable")]


def percent(value: float) -> str:
    """
    >>> percent(0.8124)
    '81.2 %'
    """
    return f"{100 * value:.1f} %"


def interval(score: Score, *, share: bool = True) -> str:
    """The ends of an interval, "" where there is none.

    >>> interval(Score(0.5, 0.45, 0.55)), interval(Score(0.5, float("nan"), float("nan")))
    ('45.0, 55.0', '')
    """
    if math.isnan(score.low) or math.isnan(score.high):
        return ""
    low, high = (f"{100 * end:.1f}" if share else f"{end:.4g}" for end in (score.low, score.high))
    return f"{low}, {high}"


def powers(value: float) -> str:
    """
    >>> powers(3.14e15)
    '3.1 · 10¹⁵'
    """
    exponent = math.floor(math.log10(value))
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value / 10**exponent:.1f} · 10{raised}"
