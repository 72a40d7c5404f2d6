"""Figures of a run, from the rows of its metrics; a panel without data is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatclr.plots import COLOURS, MUTED, figure_style, new_figure
from flatclr.training.instruments import SNR_FLOOR
from flatclr.training.schedule import scheduled_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = COLOURS[:3]
PANEL_INCHES = (3.6, 2.6)
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One picture of the rows that have the key `needs`."""

    title: str
    caption: str
    needs: str
    draw: Callable[[Axes, Rows, Mapping[str, Any]], None]


def series(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the rows that have the key; what was not finite is NaN, a gap in the line.

    >>> series([{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": "inf"}], "loss")
    ([1, 3], [2.0, nan])
    """
    found = _with(rows, key)
    return [row["step"] for row in found], [number(row[key]) for row in found]


def number(value: Any) -> float:
    """A finite number, or NaN for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan


def ess_target(config: Mapping[str, Any], epoch: float) -> float:
    """What the run held its effective sample size at, NaN if it did not."""
    given = config.get("ess_target")
    if config.get("temperature") is not None:
        return math.nan
    return scheduled_target(given, epoch) if isinstance(given, list) else number(given)


def untrained_knn(rows: Rows) -> float | None:
    """kNN accuracy before the first step, if the run measured it."""
    values = [number(row["knn"]) for row in rows if row.get("step") == 0 and "knn" in row]
    return values[0] if values else None


def _ess(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    banded = [row for row in rows if len(row.get("ess_quantiles") or ()) == 3]
    low, _, high = ([number(row["ess_quantiles"][q]) for row in banded] for q in range(3))
    axes.fill_between(
        [row["step"] for row in banded], low, high, color=BLUE, alpha=0.2, linewidth=0, label="10 to 90 %"
    )
    axes.plot(*series(rows, "ess"), color=BLUE, label="mean")
    targets = [ess_target(config, row.get("epoch", 0.0)) for row in rows]
    if not all(map(math.isnan, targets)):
        axes.plot([row["step"] for row in rows], targets, color=ORANGE, linestyle="--", label="target")
    axes.set_ylim(0, 1)
    axes.set_ylabel("ESS")
    axes.legend()


def _bound(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    axes.plot(*series(rows, "mi_nats"), color=BLUE, label="bound of the batch")
    axes.plot(*series(rows, "ceiling_nats"), color=ORANGE, linestyle="--", label="ceiling")
    _from_zero(axes)
    axes.set_ylabel("nats")
    axes.legend()


def _pool(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    axes.plot(*series(rows, "pool_mi_best_nats"), color=BLUE, marker="o", label="best beta")
    axes.plot(*series(rows, "pool_mi_nats"), color=GREEN, marker="s", label="training beta")
    axes.plot(*series(rows, "pool_ceiling_nats"), color=ORANGE, linestyle="--", label="ceiling")
    _from_zero(axes)
    axes.set_ylabel("nats")
    axes.legend()


def _accuracy(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    steps, values = series(rows, "knn")
    axes.plot(steps, [100 * value for value in values], color=BLUE, marker="o", label="kNN accuracy")
    untrained = untrained_knn(rows)
    if untrained is not None:
        axes.axhline(100 * untrained, color=MUTED, linestyle="--", label="untrained")
    axes.set_ylabel("% of the test images")
    axes.legend()


def _snr(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    axes.plot(*series(rows, "gradient_snr"), color=BLUE, marker="o", label="measured")
    axes.axhline(SNR_FLOOR, color=MUTED, linestyle="--", label="noise alone")
    _from_zero(axes)
    axes.set_ylabel("ratio")
    axes.legend()


def _pace(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
    axes.plot(*series(rows, "images_per_second"), color=BLUE, label="images")
    axes.plot(*series(rows, "views_per_second"), color=ORANGE, label="views")
    _from_zero(axes)
    axes.set_ylabel("per second")
    axes.legend()


def _from_zero(axes: Axes) -> None:
    """Show zero, unless the curve goes below it."""
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=1.08 * axes.get_ylim()[1])


def _curve(title: str, caption: str, key: str, label: str, *, marker: str = "", log: bool = False) -> Panel:
    def draw(axes: Axes, rows: Rows, config: Mapping[str, Any]) -> None:
        steps, values = series(rows, key)
        axes.plot(steps, values, color=BLUE, marker=marker)
        if log and any(value > 0 for value in values):
            axes.set_yscale("log")
        axes.set_ylabel(label)

    return Panel(title, caption, key, draw)


ESS = Panel(
    "Effective sample size",
    "Share of the negatives that carry the gradient, over the anchors of a batch. Near 1 all weigh the same (beta is "
    "low, or the embeddings have collapsed); at 1/K a single one does.",
    "ess",
    _ess,
)
BOUND = Panel(
    "Bound against ceiling",
    "InfoNCE's bound on the mutual information of the two views, and the most that a batch of this size can show. At "
    "the ceiling the batch no longer tells a good encoder from a better one.",
    "mi_nats",
    _bound,
)
ACCURACY = Panel(
    "Nearest neighbours",
    "Test images whose class the nearest training images name, on frozen features.",
    "knn",
    _accuracy,
)
PANELS = (
    ESS,
    BOUND,
    ACCURACY,
    Panel(
        "Pool MI",
        "The bound of the current encoder against a large pool of negatives, at the beta of training and at the best "
        "of a few: what the batch is too small to show.",
        "pool_mi_best_nats",
        _pool,
    ),
    _curve("Loss", "The objective's value.", "loss", "loss"),
    _curve("Inverse temperature", "What ESS control makes of beta, or the fixed one.", "beta", "beta"),
    _curve("Gradient norm", "Of all parameters, before clipping.", "gradient_norm", "norm", log=True),
    Panel(
        "Gradient signal-to-noise",
        "Norm of the mean gradient of a few batches over the spread of single ones around it. Near the dashed line it "
        "is noise.",
        "gradient_snr",
        _snr,
    ),
    _curve(
        "Alignment",
        "Mean squared distance of the two views of an image; 0 when they coincide.",
        "alignment",
        "alignment",
    ),
    _curve(
        "Uniformity",
        "Log mean Gaussian potential of the embeddings; lower is more evenly spread.",
        "uniformity",
        "uniformity",
    ),
    _curve(
        "Waiting for data",
        "Share of the time in which the next batch was not there yet and the device had nothing to do.",
        "data_wait_share",
        "share",
    ),
    _curve("Effective rank", "How many directions the features use.", "effective_rank", "directions", marker="o"),
    _curve(
        "Retrieval",
        "Held-out pairs whose nearest other side is their own.",
        "retrieval_at_1",
        "share",
        marker="o",
    ),
    _curve(
        "Collision rate",
        "Share of the negatives that are of the anchor's class.",
        "collision_rate",
        "share",
        marker="o",
    ),
    Panel(
        "Throughput",
        "Images and views that pass the encoder in a second, without evaluations. Smaller and fewer views of an image "
        "take less time.",
        "views_per_second",
        _pace,
    ),
)
OVERVIEW = (ESS, BOUND, ACCURACY)


def available(panels: Sequence[Panel], rows: Rows) -> list[Panel]:
    """The panels that these rows can fill."""
    return [panel for panel in panels if _with(rows, panel.needs)]


def draw_panels(panels: Sequence[Panel], rows: Rows, config: Mapping[str, Any], *, columns: int = 1) -> Figure:
    """All of the panels in one figure, row by row."""
    rows_of_panels = math.ceil(len(panels) / columns)
    with figure_style():
        figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows_of_panels)
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows_of_panels, columns, place)
            panel.draw(axes, _with(rows, panel.needs), config)
            axes.set_title(panel.title)
            axes.set_xlabel("step")
    return figure


def _with(rows: Rows, key: str) -> Rows:
    return [row for row in rows if row.get(key) is not None and "step" in row]
