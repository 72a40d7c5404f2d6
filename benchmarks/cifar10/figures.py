"""Pictures of the runs, in the style of `flatclr.plots`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.cifar10.plan import NO_LOG_RATIO, family
from benchmarks.cifar10.summary import Cell, Checkpoint, Spread, Time, mean_accuracy
from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, MUTED, figure_style, new_figure
from flatclr.training.instruments import SNR_FLOOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP"
LINES = ("-", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
PROTOCOLS = {"knn": "kNN", "linear": "linear"}


def rates_figure(tried: Mapping[int, Mapping[float, Score]]) -> Figure:
    """Accuracy on held-out images by learning rate, a line for each batch size."""
    with figure_style():
        figure = new_figure(4.6, 3.2)
        axes = figure.add_subplot()
        for (batch, scores), marker in zip(tried.items(), MARKERS, strict=False):
            _with_bars(axes, list(scores), list(scores.values()), fmt=f"{marker}-", label=f"batch {batch}")
        axes.set_xscale("log", base=2)
        rates = sorted({rate for scores in tried.values() for rate in scores})
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45)
        axes.minorticks_off()
        axes.set_xlabel("learning rate")
        axes.set_ylabel("kNN, % of held-out images")
        axes.set_title("InfoNCE, temperature 0.5")
        axes.legend()
        return figure


def accuracies_figure(table: Sequence[Cell], spread: Mapping[str, Spread]) -> Figure:
    """kNN and linear accuracy of each objective by batch size."""
    objectives = list(dict.fromkeys(cell.objective for cell in table))
    batches = sorted({cell.batch for cell in table})
    with figure_style():
        figure = new_figure(8.0, 3.4)
        for place, (protocol, name) in enumerate(PROTOCOLS.items(), start=1):
            axes = figure.add_subplot(1, 2, place)
            for number, objective in enumerate(objectives):
                shift = 0.12 * (number - (len(objectives) - 1) / 2)
                found = [
                    (batches.index(cell.batch) + shift, score)
                    for cell in table
                    if cell.objective == objective
                    and (score := mean_accuracy(cell, protocol, spread[protocol])) is not None
                ]
                if found:
                    _with_bars(axes, *_columns(found), fmt=MARKERS[number], label=objective, color=COLOURS[number])
            axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
            axes.set_xlim(-0.5, len(batches) - 0.5)
            axes.set_xlabel("batch size")
            axes.set_ylabel("% of the test images")
            axes.set_title(f"{name} accuracy")
        _legend_below(figure)
        return figure


def curves_figure(table: Sequence[Cell]) -> Figure:
    """Gauges over a run, mean over seeds: a row for each batch size, a line for each objective."""
    gauges = {
        "ess": "ESS",
        "saturation": "bound / ceiling",
        "gradient_snr": "gradient SNR",
        "pool_mi_best_nats": "pool MI, nats",
    }
    objectives = list(dict.fromkeys(cell.objective for cell in table))
    batches = sorted({cell.batch for cell in table})
    columns = len(gauges)
    with figure_style():
        figure = new_figure(2.9 * columns, 2.6 * len(batches))
        for row, batch in enumerate(batches):
            of_batch = [cell for cell in table if cell.batch == batch and cell.runs]
            for column, (name, label) in enumerate(gauges.items(), start=1):
                axes = figure.add_subplot(len(batches), columns, row * columns + column)
                for cell in of_batch:
                    number = objectives.index(cell.objective)
                    mean = _mean_curve([run.metrics for run in cell.runs], name)
                    style: dict[str, Any] = {"color": COLOURS[number], "linestyle": LINES[number % len(LINES)]}
                    axes.plot(*_columns(mean), label=cell.objective, linewidth=1.2, **style)
                if name == "gradient_snr":
                    axes.axhline(SNR_FLOOR, color=MUTED, linestyle="--", linewidth=1, label="SNR of noise alone")
                axes.set_title(f"{label}, batch {batch}")
                axes.set_xlabel("epoch")
        _legend_below(figure)
        return figure


def targets_figure(accuracies: Mapping[str, Mapping[float, Score]], recommended: tuple[float, float]) -> Figure:
    """Accuracy by the target at which the ESS was held; what the literature recommends is shaded."""
    with figure_style():
        figure = new_figure(4.6, 3.2)
        axes = figure.add_subplot()
        axes.axvspan(*recommended, color=MUTED, alpha=0.15, linewidth=0, label="best in the literature")
        for (protocol, by_target), marker in zip(accuracies.items(), MARKERS, strict=False):
            if by_target:
                label = PROTOCOLS[protocol]
                _with_bars(axes, list(by_target), list(by_target.values()), fmt=f"{marker}-", label=label)
        axes.set_xlabel("ESS target")
        axes.set_ylabel("% of the test images")
        axes.set_xlim(0, 0.8)
        axes.set_title("FlatNCE with its ESS held")
        axes.legend()
        return figure


def information_figure(points: Sequence[Checkpoint]) -> Figure:
    """kNN accuracy against mutual information, of the pool and of the batches: colour by objective, form by batch."""
    from matplotlib.lines import Line2D

    groups: dict[tuple[str, int], list[Checkpoint]] = {}
    for point in points:
        groups.setdefault((family(point.objective), point.batch), []).append(point)
    objectives = list(dict.fromkeys(objective for objective, _ in groups))
    forms = dict(zip(sorted({batch for _, batch in groups}), MARKERS, strict=False))
    styles: dict[str, dict[str, Any]] = {
        objective: {
            "color": COLOURS[number % len(COLOURS)],
            "markerfacecolor": "none" if number >= len(COLOURS) else COLOURS[number],
            "linestyle": "none",
            "markersize": 4,
        }
        for number, objective in enumerate(objectives)
    }
    panels = {"pool_mi_nats": "pool MI at the best beta", "batch_mi_nats": "mini-batch MI"}
    with figure_style():
        figure = new_figure(8.6, 4.2)
        for place, (name, label) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, 2, place)
            for (objective, batch), group in groups.items():
                if name == "batch_mi_nats" and objective in NO_LOG_RATIO:
                    continue
                values = [getattr(point, name) for point in group]
                axes.plot(values, [100 * p.knn for p in group], forms[batch], alpha=0.7, **styles[objective])
            axes.set_xlabel(f"{label}, nats")
            axes.set_ylabel("kNN, % of a sample of the test images")
            axes.set_title(label)
        shown = {objective: Line2D([], [], marker="o", **style) for objective, style in styles.items()}
        grey: dict[str, Any] = {"color": MUTED, "linestyle": "none", "markersize": 5}
        shown |= {f"batch {batch}": Line2D([], [], marker=form, **grey) for batch, form in forms.items()}
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4, fontsize=8)
        return figure


def objectives_figure(accuracies: Mapping[str, Mapping[str, Score]]) -> Figure:
    """kNN and linear accuracy of each objective, with intervals."""
    names = list(accuracies)
    with figure_style():
        figure = new_figure(6.4, 0.42 * len(names) + 1.0)
        axes = figure.add_subplot()
        for number, (protocol, label) in enumerate(PROTOCOLS.items()):
            for place, name in enumerate(names):
                if protocol in accuracies[name]:
                    value, low, high = _percent(accuracies[name][protocol])
                    height = place + 0.12 * (2 * number - 1)
                    style: dict[str, Any] = {"color": COLOURS[number], "label": label if place == 0 else None}
                    axes.errorbar(value, height, xerr=[[value - low], [high - value]], fmt=MARKERS[number], **style)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("% of the test images, 95 % interval")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return figure


def speed_figure(found: Mapping[str, Sequence[Time]], goals: Sequence[float]) -> Figure:
    """kNN accuracy by minutes on the wall."""
    with figure_style():
        figure = new_figure(5.4, 3.4)
        axes = figure.add_subplot()
        for name, marker in zip(found, MARKERS, strict=False):
            axes.plot([t.wall / 60 for t in found[name]], [100 * t.knn for t in found[name]], f"{marker}-", label=name)
        for goal in goals:
            axes.axhline(100 * goal, color=MUTED, linestyle="--", linewidth=1)
        axes.set_xlim(left=0)
        axes.set_xlabel("minutes since the command was given")
        axes.set_ylabel("kNN, % of the test images")
        axes.set_title("Time to accuracy")
        axes.legend()
        return figure


def _with_bars(axes: Axes, places: Sequence[float], scores: Sequence[Score], **style: Any) -> None:
    values, lows, highs = _columns([_percent(score) for score in scores])
    below, above = ([abs(end - v) for v, end in zip(values, ends, strict=True)] for ends in (lows, highs))
    axes.errorbar(places, values, yerr=[below, above], capsize=2, markersize=5, linewidth=1.2, **style)


def _percent(score: Score) -> tuple[float, float, float]:
    return 100 * score.value, 100 * score.low, 100 * score.high


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _mean_curve(runs: Sequence[Sequence[Mapping[str, Any]]], name: str) -> list[tuple[float, float]]:
    """(epoch, mean over runs), where all runs have it; what was not finite is a gap."""
    having = [[row for row in run if name in row] for run in runs]
    return [
        (rows[0]["epoch"], sum(_number(row[name]) for row in rows) / len(rows)) for rows in zip(*having, strict=False)
    ]


def _number(value: Any) -> float:
    return value if isinstance(value, float) else math.nan


def _legend_below(figure: Figure) -> None:
    named = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=4, fontsize=8)
