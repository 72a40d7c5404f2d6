"""Tables and curves of accuracies that several studies share."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.judging import score_text
from flatclr.studies.study import Found, Row


def in_points(score: Score) -> Score:
    """A share as percent, a difference of shares as points.

    >>> in_points(Score(0.5, 0.25, 0.75))
    Score(value=50.0, low=25.0, high=75.0)
    """
    return Score(100 * score.value, 100 * score.low, 100 * score.high)


def percent(found: Found, arm: str, number: str) -> str:
    """Mean over seeds with its interval; "" where it was not measured."""
    if any(number not in kept.numbers for kept in found.of(arm)):
        return ""
    return score_text(in_points(found.mean(arm, number)), 1)


def points(found: Found, one: str, other: str, number: str) -> Score:
    """One arm less another, seeds paired, in points."""
    return in_points(found.difference(one, other, number))


def accuracy_rows(found: Found, arms: Sequence[str], numbers: Sequence[str] = ("knn", "linear")) -> list[Row]:
    """A row per arm."""
    return [
        {
            "run": arm,
            **{f"{number} %": percent(found, arm, number) for number in numbers},
            "minutes": f"{found.mean(arm, 'minutes').value:.1f}",
            "seeds": str(len(found.of(arm))),
        }
        for arm in arms
    ]


def knn_figure(found: Found, arms: Sequence[str], number: str = "knn") -> Figure:
    """Accuracy along training, the first seed of each arm."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for place, arm in enumerate(arms):
        rows = [row for row in found.one(arm).numbers["evaluations"] if number in row]
        style = "-" if place < len(COLOURS) else "--"
        epochs, accuracy = [row["epoch"] for row in rows], [100 * row[number] for row in rows]
        axes.plot(epochs, accuracy, style, color=COLOURS[place % len(COLOURS)], label=arm)
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{number} %")
    axes.set_title("Accuracy along training")
    axes.legend(fontsize=6)
    return figure
