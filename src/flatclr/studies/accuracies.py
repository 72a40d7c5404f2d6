"""Tables and curves of accuracies that several studies share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.judging import every, pooled_spread, score_text
from flatclr.studies.study import OVER_SEEDS, Found, Row

OF_ALL_ARMS = f"{OVER_SEEDS}; of differences by the spread of all arms that are alike"  # on pages that show `less`
HELD_OUT = "held out: "
Pair = tuple[str, str]  # of arms


def in_points(score: Score) -> Score:
    """A share as percent, a difference of shares as points.

    >>> in_points(Score(0.5, 0.25, 0.75))
    Score(value=50.0, low=25.0, high=75.0)
    """
    return Score(100 * score.value, 100 * score.low, 100 * score.high)


def percent(found: Found, arm: str, number: str) -> str:
    """Mean over seeds with its interval; "" where it was not measured, "stopped" where a run did."""
    if has_stopped(found, arm):
        return "stopped"
    if not _has(found, arm, number):
        return ""
    return score_text(in_points(found.mean(arm, number)), 1)


def points(found: Found, one: str, other: str, number: str) -> Score:
    """One arm less another, seeds paired, in points; of two seeds the interval is too wide to tell anything."""
    return in_points(found.difference(one, other, number))


def less(
    found: Found, one: str, other: str, number: str, *, comparisons: int = 1, apart: Collection[str] = ()
) -> Score:
    """One arm less another in points, its interval of the spread over seeds of all arms that are like the first.

    These are trained as long, on the same images. Runs that learnt little, below half of the best arm, lie together
    or apart for reasons of their own: their arms are left out. An arm less itself is 0.

    Args:
        comparisons: of how many this is one, as `Spread.difference` has it.
        apart: other arms whose spread says nothing of these two.
    """
    if one == other:
        return Score(0.0, 0.0, 0.0)
    there = [arm for arm in found.arms if _has(found, arm, number) and arm not in apart]
    values = {arm: found.values(arm, number) for arm in there if _training(found, arm) == _training(found, one)}
    means = [statistics.fmean(accuracies) for accuracies in values.values()]
    half = max((mean for mean in means if mean == mean), default=0.0) / 2
    spread = pooled_spread([accuracies for accuracies in values.values() if min(accuracies) >= half])
    return in_points(spread.difference(found.values(one, number), found.values(other, number), comparisons=comparisons))


def _training(found: Found, arm: str) -> tuple[bool, object]:
    """On which images, and how long."""
    return is_held_out(arm), found.one(arm).settings.get("config", {}).get("epochs")


def all_above(
    found: Found, pairs: Sequence[Pair], number: str, threshold: float = 0.0, *, apart: Collection[str] = ()
) -> tuple[str, list[Score]]:
    """Whether the first of each pair is above the second, and by how many points; `apart` is as in `less`."""
    alone, among = (
        [less(found, one, other, number, comparisons=count, apart=apart) for one, other in pairs]
        for count in (1, len(pairs))
    )
    return every(alone, among, threshold), alone


def best_arm(found: Found, arms: Iterable[str], number: str) -> str | None:
    """The arm with the highest mean, the first of equals; one with a run that stopped has none."""
    means = {arm: found.mean(arm, number).value for arm in arms if found.of(arm)}
    known = [arm for arm, mean in means.items() if not math.isnan(mean)]
    return max(known, key=means.__getitem__, default=None)


def has_stopped(found: Found, arm: str) -> bool:
    """Whether losses of a run of the arm did not stay finite."""
    return any("stopped" in kept.numbers for kept in found.of(arm))


def held_out(arm: str) -> str:
    """The name of the arm's runs on held-out training images, by which settings are chosen."""
    return f"{HELD_OUT}{arm}"


def is_held_out(arm: str) -> bool:
    return arm.startswith(HELD_OUT)


def _has(found: Found, arm: str, number: str) -> bool:
    return all(number in kept.numbers for kept in found.of(arm))


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
