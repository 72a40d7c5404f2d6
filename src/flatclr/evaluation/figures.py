"""An evaluation as one picture: every protocol beside random weights, accuracy by depth, the confusion of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from flatclr.evaluation.features import OUTPUT
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row
from flatclr.plots import COLOURS, MUTED, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = ("top1", "mean_per_class", "mean_average_precision", "recall_at_1")
COLOUR_OF = {TRAINED: COLOURS[0], RANDOM: MUTED}
MOST_CLASSES_NAMED = 20


def draw(evaluation: Evaluation) -> Figure:
    """Panels for what was measured; accuracies in percent, bars and bands are 95 % intervals."""
    with figure_style():
        overall = [row for row in evaluation.rows if row.headline in SHARES and row.layer == OUTPUT]
        by_depth = [row for row in evaluation.rows if row.headline in SHARES and row.layer != OUTPUT]
        confused = next((row for row in overall if row.weights == TRAINED and row.confusion), None)
        gauges = [row for row in evaluation.rows if row.headline not in SHARES and row.layer == OUTPUT]
        panels = [
            panel
            for panel, rows in ((_bars, overall), (_depth, by_depth), (_gauges, gauges), (_confusion, [confused]))
            if any(rows)
        ]
        content = {_bars: overall, _depth: by_depth, _gauges: gauges, _confusion: [row for row in [confused] if row]}
        figure = new_figure(5.2 * max(1, len(panels)), 4.2)
        for place, panel in enumerate(panels):
            panel(figure.add_subplot(1, len(panels), place + 1), content[panel])
        figure.suptitle(evaluation.encoder, x=0.01, ha="left", fontsize=11)
        return figure


def _label(row: Row) -> str:
    return "\n".join(part for part in (f"{row.protocol} on {row.data}", row.variant) if part)


def _group(row: Row) -> tuple[str, ...]:
    """What rows of one bar or line share; data may have the same name."""
    return row.key[:-2]


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    names = {_group(row): _label(row) for row in rows}
    places = {group: place for place, group in enumerate(names)}
    for row in rows:
        place = places[_group(row)] + (0.2 if row.weights == RANDOM else -0.2)
        value, low, high = (100 * number for number in (row.best.value, row.best.low, row.best.high))
        axes.barh(place, value, height=0.36, color=COLOUR_OF[row.weights])
        axes.errorbar(value, place, xerr=[[value - low], [high - value]], color="black", capsize=2, linewidth=1)
        axes.annotate(f"{value:.1f}", (0, place), (4, 0), textcoords="offset points", va="center", color="white")
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("%, 95 % interval")
    axes.set_title("accuracy: trained (blue) and random weights (grey)")


def _depth(axes: Axes, rows: Sequence[Row]) -> None:
    lines = {(_group(row), row.weights): _label(row) for row in rows}
    layers = list(dict.fromkeys(row.layer for row in rows))
    colours = dict(zip(dict.fromkeys(group for group, _ in lines), COLOURS * 9, strict=False))
    for (group, weights), name in lines.items():
        of_line = [row for row in rows if (_group(row), row.weights) == (group, weights)]
        places = [layers.index(row.layer) for row in of_line]
        style = "o-" if weights == TRAINED else "o:"
        colour = colours[group]
        axes.plot(places, [100 * row.best.value for row in of_line], style, label=f"{name}, {weights}", color=colour)
        low, high = (
            [100 * number for number in bound]
            for bound in zip(*((r.best.low, r.best.high) for r in of_line), strict=True)
        )
        axes.fill_between(places, low, high, alpha=0.15, linewidth=0, color=colour)
    axes.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
    axes.set_ylabel("%, 95 % band")
    axes.set_title("accuracy by depth")
    axes.legend()


def _gauges(axes: Axes, rows: Sequence[Row]) -> None:
    axes.axis("off")
    axes.set_title("without labels: trained / random")
    lines = []
    trained = [row for row in rows if row.weights == TRAINED]
    for row in trained:
        random = next((other for other in rows if other.key == (*row.key[:-1], RANDOM)), None)
        for name, score in row.scores.items():
            other = "" if random is None else f" / {random.scores[name].value:.2f}"
            shown = name.replace("_", " ") + (f" ({row.data})" if len({row.data_sha256 for row in rows}) > 1 else "")
            lines.append((shown, f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]{other}"))
    for line, (name, text) in enumerate(lines):
        height = 0.94 - 0.1 * line
        axes.text(0.0, height, name, transform=axes.transAxes, va="top")
        axes.text(1.0, height, text, transform=axes.transAxes, va="top", ha="right")


def _confusion(axes: Axes, rows: Sequence[Row]) -> None:
    (row,) = rows
    counts = torch.tensor(row.confusion, dtype=torch.float64)
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    names = list(row.per_class)
    if len(names) == len(counts) <= MOST_CLASSES_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names)
        for true in range(len(names)):
            for predicted in range(len(names)):
                share = shares[true, predicted].item()
                if share >= 0.005:
                    colour = "white" if share > 0.5 else "black"
                    axes.text(predicted, true, f"{100 * share:.0f}", ha="center", va="center", color=colour, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(f"{row.protocol}: % of each class")
