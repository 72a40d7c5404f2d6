"""What kept runs say of themselves along training: gauges that need no labels, beside the accuracy at the same time."""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from flatclr.files import json_ready, parse_json
from flatclr.runs import CONFIG, METRICS, RunDirectory
from flatclr.studies.keeping import RUNS

GAUGES = {  # each so that more should be better
    "pool MI": lambda row, logs: row.get("pool_mi_best_nats"),
    "RankMe": lambda row, logs: row.get("effective_rank"),
    "alignment + uniformity": lambda row, logs: _negated(_mean(logs, "alignment"), _mean(logs, "uniformity")),
    "ESS": lambda row, logs: _mean(logs, "ess"),
}
OTHER_NAMES = {"held-out.npz": "cifar10", None: "embedded"}  # of data, in settings
NO_KIND = ("seed", "out", "data", "data_dir", "device")  # what does not make a run another kind


@dataclass(frozen=True)
class Checkpoint:
    """One evaluation of a run.

    Args:
        epoch: when.
        knn: accuracy then.
        gauges: by name; of batches, the mean since the evaluation before.
    """

    epoch: float
    knn: float
    gauges: Mapping[str, float]


@dataclass(frozen=True)
class Course:
    """The evaluations of a run.

    Args:
        data: the data set.
        alike: what runs whose accuracies can be compared have in common: data, how it was measured, how long.
        kind: what runs that differ in their seeds alone have in common.
        checkpoints: in order of time.
    """

    data: str
    alike: str
    kind: str
    checkpoints: tuple[Checkpoint, ...]


def courses_of_runs(folder: Path) -> Iterator[Course]:
    """Of every run directory below a folder; metrics may be packed."""
    for path in sorted(folder.glob(f"*/{CONFIG}")):
        rows, config = metrics_of(path.parent), RunDirectory.open(path.parent).config()
        logs, evaluations = ([row for row in rows if row.get("kind") == kind] for kind in ("log", "evaluation"))
        yield from _course(config, logs, evaluations, held_out=str(config["data"]).startswith("held-out"))


def courses_of_studies(folder: Path, *, but: str) -> Iterator[Course]:
    """Of every training run that studies have kept; `but` is a study to leave out."""
    for path in study_files(folder, but=but):
        content = parse_json(path.read_bytes())
        yield from course_of_study(content["settings"], content["numbers"])


def study_files(folder: Path, *, but: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"*/{RUNS}/*.json") if path.parent.parent.name != but)


def course_of_study(settings: Mapping[str, Any], numbers: Mapping[str, Any]) -> Iterator[Course]:
    """Of one kept run of a study; nothing of one that trained nothing."""
    if "evaluations" in numbers:
        config = {**settings["config"], "data": settings["data"], "recipe": settings["recipe"]}
        yield from _course(config, numbers["log"], numbers["evaluations"], held_out=settings["held_out"])


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, or of metrics.jsonl.gz; none where there is neither."""
    plain, packed = run / METRICS, run / f"{METRICS}.gz"
    if not (plain.is_file() or packed.is_file()):
        return []
    text = plain.read_text() if plain.is_file() else gzip.decompress(packed.read_bytes()).decode()
    return [parse_json(line) for line in text.splitlines()]


def _course(
    config: Mapping[str, Any],
    logs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    *,
    held_out: bool,
) -> Iterator[Course]:
    """Nothing of a run that has no accuracy, or that learnt from labels."""
    if config.get("positives") == "class" or config.get("objective") == "supervised":
        return
    found, before = [], -1
    for row in evaluations:
        since = [log for log in logs if before < log["step"] <= row["step"]]
        gauges = {name: read(row, since) for name, read in GAUGES.items()}
        if since and all(isinstance(value, float) for value in (row.get("knn"), *gauges.values())):
            found.append(Checkpoint(row["epoch"], row["knn"], gauges))  # before the first step there are no batches
        before = row["step"]
    if found:
        data = OTHER_NAMES.get(config["data"], PurePath(str(config["data"])).name)
        same = {name: value for name, value in config.items() if name not in NO_KIND}
        kind = hashlib.sha256(json.dumps(json_ready(same), sort_keys=True).encode()).hexdigest()[:10]
        measured = f"{config.get('eval_samples')} samples" + (" held out" if held_out else "")
        alike = f"{data}, {measured}, {found[-1].epoch:.0f} epochs"
        yield Course(data, alike, kind, tuple(found))


def _mean(logs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [log[name] for log in logs if isinstance(log.get(name), float)]
    return statistics.fmean(values) if values else None


def _negated(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return -sum(known) if len(known) == len(values) else None
