"""Metrics and embeddings of other libraries, as rows under the names of this one."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatclr import diagnostics
from flatclr.doctor.evidence import EVALUATION, LOG
from flatclr.files import read_json_lines
from flatclr.mi.tables import array_of, load_arrays, read_frame

Rows = list[dict[str, Any]]
MOST_EMBEDDINGS = 5000
NAMES = {  # what others call it, after what stands before the last slash is gone
    "step": ("step", "global_step", "iteration", "iter", "trainer_global_step", "steps"),
    "epoch": ("epoch",),
    "loss": ("loss", "train_loss", "training_loss", "loss_step", "train_loss_step", "ssl_loss", "contrastive_loss"),
    "gradient_norm": ("gradient_norm", "grad_norm", "grad_norm_total", "grad_2.0_norm_total"),
    "learning_rate": ("learning_rate", "lr", "lr-adamw", "lr-sgd", "lr-adam"),
    "update_ratio": ("update_ratio", "update_to_weight", "update_to_data"),
    "embedding_std": ("embedding_std", "representation_std", "z_std", "collapse_std"),
    "uniformity": ("uniformity",),
    "alignment": ("alignment",),
    "effective_rank": ("effective_rank", "rankme", "encoder_rank"),
    "head_rank": ("head_rank", "embedding_rank"),
    "mi_nats": ("mi_nats",),
    "ceiling_nats": ("ceiling_nats",),
    "saturation": ("saturation",),
    "ess": ("ess",),
    "beta": ("beta", "inverse_temperature", "logit_scale"),
    "gradient_snr": ("gradient_snr",),
    "knn": ("knn", "knn_accuracy", "knn_acc", "knn_top1", "val_knn", "knn_online"),
    "knn_samples": ("knn_samples",),
    "collision_rate": ("collision_rate",),
    "data_wait_share": ("data_wait_share", "data_time_share"),
    "held_out_mi_nats": ("held_out_mi_nats",),
    "seen_mi_nats": ("seen_mi_nats",),
    "pool_mi_best_nats": ("pool_mi_best_nats",),
    "dead_units": ("dead_units",),
    "statistics_gap": ("statistics_gap",),
    "split_overlap": ("split_overlap",),
    "near_duplicates": ("near_duplicates",),
    "pixel_match": ("pixel_match",),
    "pixel_knn": ("pixel_knn",),
    "bad_steps": ("bad_steps",),
}
KNOWN = {other: name for name, others in NAMES.items() for other in others}
IN_PERCENT = ("knn",)


def foreign_rows(metrics: str | Path | Sequence[Mapping[str, Any]], *, negatives: int | None = None) -> Rows:
    """Rows of a CSV or JSON-lines file, of a folder of TensorBoard events, or of a list, in order of their steps.

    Args:
        metrics: where they are, or the rows themselves.
        negatives: of each anchor, where the loss is InfoNCE; its saturation is added then.

    Raises:
        ValueError: where no metric is known by its name.
    """
    raw = _read(metrics)
    rows = [row for place, given in enumerate(raw) if (row := _translated(given, place))]
    known = {name for row in rows for name in row} - {"step", "epoch", "kind"}
    if not known:
        seen = sorted({str(name) for given in raw for name in given})[:8]
        raise ValueError(
            f"metrics must hold a column that is known, such as loss, got {', '.join(seen) or 'nothing'}; rename one."
        )
    if negatives is not None:
        _add_saturation(rows, math.log(negatives + 1))
    return sorted(rows, key=lambda row: row["step"])


def embedding_row(embeddings: Any, *, step: float) -> dict[str, Any]:
    """What embeddings show: their spread, uniformity and rank, as a row of an evaluation."""
    z = _embeddings(embeddings)
    measured: dict[str, Any] = {
        "head_rank": diagnostics.effective_rank(z).item(),
        "embedding_width": min(z.shape[1], len(z) - 1),
        "embedding_std": diagnostics.embedding_std(z).item(),
        "uniformity": diagnostics.uniformity(z).item(),
    }
    return {"step": step, "kind": EVALUATION, **measured}


def _read(metrics: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(metrics, str | Path):
        rows = list(metrics)
        if not all(isinstance(row, Mapping) for row in rows):
            raise TypeError(
                "metrics must be a file, a folder or rows by name, got something else; pass a list of dicts."
            )
        return rows
    path = Path(metrics)
    if not str(metrics) or not path.exists():
        raise FileNotFoundError(
            f"metrics must be a file or folder, got {str(metrics)!r}, which is none; check the path."
        )
    if path.is_dir():
        return _of_events(path)
    if not path.is_file():
        raise ValueError(f"metrics must be a file or folder, got {path}, which is neither; copy it into a file.")
    if path.suffix.lower() in (".jsonl", ".json"):
        return read_json_lines(path)
    return _of_csv(path)


def _of_csv(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [{n: v for n, v in row.items() if isinstance(n, str)} for row in csv.DictReader(file)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"metrics must be a table with a header, got {path}, which is none ({error}).") from error


def _of_events(folder: Path) -> Sequence[Mapping[str, Any]]:
    if not any(folder.rglob("events.out.tfevents.*")):
        raise ValueError(f"a folder of metrics must hold TensorBoard events, got {folder} without; pass a file.")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for inner in sorted({file.parent for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(inner), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                group = tag.rpartition("/")[0]
                rows.setdefault((group, event.step), {"step": event.step})[tag] = event.value
    return list(rows.values())


def _translated(given: Mapping[str, Any], place: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in given.items():
        known = _known(str(name))
        number = _number(value)
        if known is not None and number is not None:
            row[known] = number / 100 if known in IN_PERCENT and number > 1 else number
    if not row:
        return {}
    kind = LOG if "loss" in row or "gradient_norm" in row else EVALUATION
    return {"step": float(place), "kind": kind} | row


def _known(name: str) -> str | None:
    """The name a metric has here; folders before it say where it was measured."""
    plain = name.strip().lower().replace(" ", "_")
    for tried in (plain, plain.replace("/", "_"), plain.rpartition("/")[2]):
        if tried in KNOWN and not (KNOWN[tried] == "loss" and plain.startswith(("val", "test", "eval"))):
            return KNOWN[tried]
    return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _add_saturation(rows: Rows, ceiling: float) -> None:
    for row in rows:
        if "loss" in row:
            row.setdefault("ceiling_nats", ceiling)
            row.setdefault("saturation", 1 - row["loss"] / ceiling)


def _embeddings(given: Any) -> Tensor:
    values = _embedding_file(Path(given)) if isinstance(given, str | Path) else given
    z = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if z.dim() != 2 or len(z) < 3 or z.shape[1] < 2 or not z.dtype.is_floating_point:
        raise ValueError(
            f"embeddings must be numbers [N, d] of at least 3 rows and 2 columns, got {list(z.shape)} of {z.dtype}; "
            "pass a row for each image."
        )
    if not bool(torch.isfinite(z).all()):
        raise ValueError("embeddings must be finite, got some that are not; leave those rows out.")
    spread = torch.linspace(0, len(z) - 1, min(len(z), MOST_EMBEDDINGS)).round().long()
    return z[spread].float()


def _embedding_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"embeddings must be a file, got {str(path)!r}, which is none; check the path.")
    if path.suffix == ".npy":
        return load_arrays(path)
    if path.suffix == ".npz":
        with load_arrays(path) as arrays:
            if not arrays.files:
                raise ValueError(f"{path.name} must hold an array of embeddings, got none; write it again.")
            return array_of(arrays, "features" if "features" in arrays else arrays.files[0], path)
    frame = read_frame(path)
    return frame.select_dtypes("number").drop(columns=["label"], errors="ignore").to_numpy(np.float64)
