"""What a report shows over the steps: panels of curves, from the rows of metrics; a panel without data is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatclr.evaluation.intervals import wilson
from flatclr.training.instruments import SNR_FLOOR
from flatclr.training.schedule import scheduled_target

Rows = Sequence[Mapping[str, Any]]
Facts = Mapping[str, Any]  # the settings of a run, and what it made of them

LEARNT, NEGATIVES, OPTIMISATION, PACE = "What it learns", "Negatives", "Optimisation", "Data and pace"
GROUPS = (LEARNT, NEGATIVES, OPTIMISATION, PACE)
INTERVAL = "The band is the 95 % interval."


@dataclass(frozen=True)
class Curve:
    """A line of a panel.

    Args:
        label: in the legend.
        steps: where it was measured.
        values: what; NaN is a gap.
        low, high: ends of its band, as many; empty without one.
        is_reference: whether it is drawn dashed, as what others are compared with.
    """

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_reference: bool = False


@dataclass(frozen=True)
class Line:
    """A metric as a line.

    Args:
        key: of the metric.
        label: in the legend; "" takes the panel's title.
        scale: what values are multiplied with.
        is_reference: as in `Curve`.
    """

    key: str
    label: str = ""
    scale: float = 1.0
    is_reference: bool = False


Added = Callable[[Rows, Facts], list[Curve]]


@dataclass(frozen=True)
class Panel:
    """One picture of the rows that have the metric of its first line.

    Args:
        title: a few words.
        caption: what it means, in a sentence or two.
        unit: of its values.
        group: one of `GROUPS`.
        lines: of which the first must be there, and stands for the run beside other runs.
        band: of the first line, from its rows.
        alone: what more is to be said where a run stands alone, whose band and references are drawn.
        added: curves that no metric holds.
        is_log: whether the axis of values is logarithmic.
        from_zero: whether zero is shown.
        is_sparse: whether it is measured at evaluations, so that points are worth a dot.
        is_exact: whether it has no noise to smooth away.
    """

    title: str
    caption: str
    unit: str
    group: str
    lines: tuple[Line, ...]
    band: Callable[[Rows, Facts], tuple[list[float], list[float]] | None] | None = None
    alone: str = ""
    added: Added | None = None
    is_log: bool = False
    from_zero: bool = False
    is_sparse: bool = False
    is_exact: bool = False

    @property
    def needs(self) -> str:
        return self.lines[0].key

    def main(self, rows: Rows, facts: Facts) -> Curve:
        """The curve that stands for the run."""
        steps, values = series(rows, self.needs)
        band = self.band and self.band(_with(rows, self.needs), facts)
        low, high = band or ((), ())
        first = self.lines[0]
        return Curve(first.label or self.title, steps, [first.scale * value for value in values], low, high)

    def curves(self, rows: Rows, facts: Facts) -> list[Curve]:
        """All of them; empty where the rows have nothing of it."""
        if not _with(rows, self.needs):
            return []
        others = []
        for line in self.lines[1:]:
            steps, values = series(rows, line.key)
            if steps:
                scaled = [line.scale * value for value in values]
                others.append(Curve(line.label, steps, scaled, is_reference=line.is_reference))
        added = self.added(_with(rows, self.needs), facts) if self.added else []
        return [self.main(rows, facts), *others, *added]


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


def ess_target(facts: Facts, epoch: float) -> float:
    """What the run held its effective sample size at, NaN if it did not."""
    given = facts.get("ess_target")
    if facts.get("temperature") is not None:
        return math.nan
    return scheduled_target(given, epoch) if isinstance(given, list) else number(given)


def untrained_knn(rows: Rows) -> float | None:
    """kNN accuracy before the first step, if the run measured it."""
    values = [number(row["knn"]) for row in rows if row.get("step") == 0 and "knn" in row]
    return values[0] if values else None


def samples_tested(facts: Facts, row: Mapping[str, Any]) -> int | None:
    """How many test samples an evaluation of the run looked at; None where it is not known."""
    if isinstance(row.get("knn_samples"), int):
        return int(row["knn_samples"])
    known = [facts.get(name) for name in ("test_samples", "eval_samples")]
    counts = [count for count in known if isinstance(count, int) and count > 0]
    return min(counts) if isinstance(facts.get("test_samples"), int) and counts else None


def _with(rows: Rows, key: str) -> Rows:
    return [row for row in rows if row.get(key) is not None and "step" in row]


def _target(rows: Rows, facts: Facts) -> list[Curve]:
    targets = [ess_target(facts, row.get("epoch", 0.0)) for row in rows]
    if all(map(math.isnan, targets)):
        return []
    return [Curve("target", [row["step"] for row in rows], targets, is_reference=True)]


def _quantiles(rows: Rows, facts: Facts) -> tuple[list[float], list[float]] | None:
    banded = [row.get("ess_quantiles") or () for row in rows]
    if not any(len(three) == 3 for three in banded):
        return None
    low, high = ([number(three[q]) if len(three) == 3 else math.nan for three in banded] for q in (0, 2))
    return low, high


def _untrained(rows: Rows, facts: Facts) -> list[Curve]:
    value = untrained_knn(rows)
    return [] if value is None else [_level("untrained", 100 * value, rows)]


def _shares(key: str) -> Callable[[Rows, Facts], tuple[list[float], list[float]] | None]:
    """95 % intervals of shares of the test samples, in percent."""

    def band(rows: Rows, facts: Facts) -> tuple[list[float], list[float]] | None:
        known = [(number(row[key]), samples_tested(facts, row)) for row in rows]
        if all(samples is None for _, samples in known):
            return None
        scores = [wilson(value, samples) if samples and 0 <= value <= 1 else None for value, samples in known]
        ends = [(math.nan, math.nan) if s is None else (100 * s.low, 100 * s.high) for s in scores]
        return [low for low, _ in ends], [high for _, high in ends]

    return band


def _noise(rows: Rows, facts: Facts) -> list[Curve]:
    return [_level("noise alone", SNR_FLOOR, rows)]


def _level(label: str, value: float, rows: Rows) -> Curve:
    steps = [row["step"] for row in rows]
    return Curve(label, [min(steps), max(steps)], [value, value], is_reference=True)


ESS = Panel(
    "Effective sample size",
    "Share of the negatives that carry the gradient, over the anchors of a batch. Near 1 all weigh the same (beta is "
    "low, or the embeddings have collapsed); at 1/K a single one does.",
    "ESS",
    NEGATIVES,
    (Line("ess", "mean"),),
    band=_quantiles,
    alone="The band is 10 to 90 % of the anchors.",
    added=_target,
    from_zero=True,
)
BOUND = Panel(
    "Bound against ceiling",
    "InfoNCE's bound on the mutual information of the two views. At its ceiling the batch no longer tells a good "
    "encoder from a better one.",
    "nats",
    LEARNT,
    (Line("mi_nats", "bound of the batch"), Line("ceiling_nats", "ceiling", is_reference=True)),
    alone="The ceiling is the most that a batch of this size can show.",
    from_zero=True,
)
ACCURACY = Panel(
    "Nearest neighbours",
    "Test images whose class the nearest training images name, on frozen features.",
    "% of the test images",
    LEARNT,
    (Line("knn", "kNN accuracy", 100.0), Line("pixel_knn", "raw pixels", 100.0, is_reference=True)),
    band=_shares("knn"),
    alone=INTERVAL,
    added=_untrained,
    is_sparse=True,
)
PANELS = (
    ACCURACY,
    Panel(
        "Linear probe",
        "Test images whose class a linear classifier on frozen features names.",
        "% of the test images",
        LEARNT,
        (Line("linear", "linear accuracy", 100.0),),
        band=_shares("linear"),
        alone=INTERVAL,
        is_sparse=True,
    ),
    Panel(
        "Retrieval",
        "Held-out pairs whose nearest other side is their own.",
        "% of the pairs",
        LEARNT,
        (Line("retrieval_at_1", "retrieval at 1", 100.0),),
        is_sparse=True,
    ),
    Panel("Loss", "The objective's value.", "loss", LEARNT, (Line("loss", "loss"),)),
    BOUND,
    Panel(
        "Pool MI",
        "The bound of the current encoder against a large pool of negatives, at the beta of training and at the best "
        "of a few: what the batch is too small to show.",
        "nats",
        LEARNT,
        (
            Line("pool_mi_best_nats", "best beta"),
            Line("pool_mi_nats", "training beta"),
            Line("pool_ceiling_nats", "ceiling", is_reference=True),
        ),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "What is learnt by heart",
        "MI against a pool of views of training images and of as many test images; what only the first has does not "
        "carry over.",
        "nats",
        LEARNT,
        (Line("held_out_mi_nats", "test images"), Line("seen_mi_nats", "training images")),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Effective rank",
        "How many directions the features use, and the embeddings after the head.",
        "directions",
        LEARNT,
        (Line("effective_rank", "features"), Line("head_rank", "embeddings")),
        from_zero=True,
        is_sparse=True,
    ),
    ESS,
    Panel(
        "Inverse temperature",
        "What ESS control makes of beta, or the fixed one.",
        "beta",
        NEGATIVES,
        (Line("beta", "beta"),),
        is_exact=True,
    ),
    Panel(
        "Alignment",
        "Mean squared distance of the two views of an image; 0 when they coincide.",
        "alignment",
        NEGATIVES,
        (Line("alignment", "alignment"),),
        from_zero=True,
    ),
    Panel(
        "Uniformity",
        "Log mean Gaussian potential of the embeddings; lower is more evenly spread.",
        "uniformity",
        NEGATIVES,
        (Line("uniformity", "uniformity"),),
    ),
    Panel(
        "Spread of embeddings",
        "Standard deviation of the embeddings over a batch; 0 when all are the same.",
        "deviation",
        NEGATIVES,
        (Line("embedding_std", "spread"),),
        from_zero=True,
    ),
    Panel(
        "Collision rate",
        "Share of the negatives that are of the anchor's class.",
        "share",
        NEGATIVES,
        (Line("collision_rate", "collisions"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Gradient norm",
        "Of all parameters, before clipping.",
        "norm",
        OPTIMISATION,
        (Line("gradient_norm", "norm"),),
        is_log=True,
    ),
    Panel(
        "Gradient signal-to-noise",
        "Norm of the mean gradient of a few batches over the spread of single ones around it. Near the dashed line it "
        "is noise.",
        "ratio",
        OPTIMISATION,
        (Line("gradient_snr", "measured"),),
        added=_noise,
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Update against weights",
        "Norm of a step over the norm of the weights; usual is about one in a thousand.",
        "ratio",
        OPTIMISATION,
        (Line("update_ratio", "ratio"),),
        is_log=True,
    ),
    Panel(
        "Dead units",
        "Share of units before a ReLU that do not vary or are never positive.",
        "share",
        OPTIMISATION,
        (Line("dead_units", "dead"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Batch statistics",
        "How far the running statistics of batch normalisation are from those of a batch, where they are farthest.",
        "gap",
        OPTIMISATION,
        (Line("statistics_gap", "gap"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Learning rate",
        "After warmup, half a cosine down to 0.",
        "rate",
        OPTIMISATION,
        (Line("learning_rate", "learning rate"),),
        from_zero=True,
        is_exact=True,
    ),
    Panel(
        "Views by their pixels",
        "Share of views whose nearest view by pixels is the other one of their image; near 1 views hide too little.",
        "share",
        PACE,
        (Line("pixel_match", "matched"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Near-duplicates",
        "Share of the pairs of training images that are nearly the same, by pixels: negatives that are none.",
        "share",
        PACE,
        (Line("near_duplicates", "pairs nearly the same"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Test images seen in training",
        "Share of the test images that are nearly the same as a training image, by pixels.",
        "share",
        PACE,
        (Line("split_overlap", "test images seen"),),
        from_zero=True,
        is_sparse=True,
    ),
    Panel(
        "Throughput",
        "Images and views that pass the encoder in a second, without evaluations. Smaller and fewer views of an image "
        "take less time.",
        "per second",
        PACE,
        (Line("views_per_second", "views"), Line("images_per_second", "images")),
        from_zero=True,
    ),
    Panel(
        "Waiting for data",
        "Share of the time in which the next batch was not there yet and the device had nothing to do.",
        "share",
        PACE,
        (Line("data_wait_share", "waiting"),),
        from_zero=True,
    ),
)
OVERVIEW = (ESS, BOUND, ACCURACY)
NAMED = frozenset(line.key for panel in PANELS for line in panel.lines)


def panels_for(rows: Rows) -> tuple[Panel, ...]:
    """The panels that these rows can fill, with one for every other number that they hold."""
    return (*available(PANELS, rows), *(_plain(key) for key in other_metrics(rows)))


def available(panels: Sequence[Panel], rows: Rows) -> list[Panel]:
    """The panels that these rows can fill."""
    return [panel for panel in panels if _with(rows, panel.needs)]


OTHER = (
    "step",
    "epoch",
    "saturation",
    "knn_samples",
    "pool_best_beta",
    "bad_steps",
    "ess_with_positive",
    "anchors_left_out",
)


def other_metrics(rows: Rows) -> list[str]:
    """Numbers that no panel is made for: those of a later version, or of a program's own."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if not math.isnan(number(value)))
    return [key for key in keys if key not in NAMED and key not in OTHER]


def _plain(key: str) -> Panel:
    title = key.replace("_", " ").capitalize()
    return Panel(title, f"The metric {key}.", key, OPTIMISATION, (Line(key, key.replace("_", " ")),))


def panels_of(series: Sequence[str], rows: Rows) -> list[Panel]:
    """The panels that show these metrics, each once."""
    shown = panels_for(rows)
    found = [next((p for p in shown if any(line.key == key for line in p.lines)), None) for key in series]
    return list(dict.fromkeys(panel for panel in found if panel is not None))
