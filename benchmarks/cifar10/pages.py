"""results/cifar10: a page with table, figure and findings for each question, from the kept runs and nothing else.

Every sentence with a number is made from the numbers; what was not run is said to be so.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.kept import KeptRun, held_out_knn, kept_runs, measured_rates
from benchmarks.cifar10.plan import (
    CONTROLLED,
    FULL,
    NCE,
    SIMCLR,
    STAGES,
    PlannedRun,
    Rates,
    Scale,
    family,
    planned,
    rate_exponent,
)
from benchmarks.cifar10.summary import (
    Cell,
    Checkpoint,
    Spread,
    Time,
    cells,
    checkpoints,
    correlation,
    difference,
    first_reaching,
    gauge,
    last_evaluation,
    mean_accuracy,
    pooled_spread,
    times,
)
from flatclr.evaluation.intervals import Score, wilson
from flatclr.files import replace_files
from flatclr.plots import figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_RUN = "not run"
README = record.RESULTS.parent / "README.md"
BEGIN, END = "<!-- cifar10:begin -->", "<!-- cifar10:end -->"
GOALS = (0.80, 0.85)
LITERATURE_ESS = (0.2, 0.4)
INTERVALS = (
    "Accuracies are means ± standard deviations over seeds, with 95 % intervals in brackets that cover test images and "
    "seeds; for these the deviation over seeds is pooled over all objectives and batch sizes, since two seeds say "
    "little of it. Differences have intervals over seeds."
)
Spreads = Mapping[str, Spread]  # by protocol
GAUGES = (
    "ESS, bound / ceiling, beta and gradient SNR are means over the last quarter of a run; pool MI is InfoNCE's bound "
    "at the best beta against a pool of as many images for every batch size."
)
Row = dict[str, str]


@dataclass(frozen=True)
class Book:
    """The plan and what there is of it."""

    scale: Scale
    kept: Mapping[str, KeptRun]

    @property
    def rates(self) -> Rates:
        return measured_rates(self.kept, self.scale) or self.scale.starting_rates

    def runs(self, *stages: str) -> list[PlannedRun]:
        return planned(stages, self.scale, self.rates)

    def there(self, runs: Sequence[PlannedRun]) -> list[KeptRun]:
        return [self.kept[run.name] for run in runs if run.name in self.kept]

    def cells(self, *stages: str) -> list[Cell]:
        return cells(self.runs(*stages), self.kept)

    @cached_property
    def spread(self) -> Spreads:
        """Of all runs of the common length or less that have seeds, so that a cell has one interval on all pages."""
        table = self.cells("grid", "grid-more", "equal-updates", "ess", "fdiv", "fdiv-more")
        return {protocol: pooled_spread(table, protocol) for protocol in figures.PROTOCOLS}

    def grid(self) -> list[Cell]:
        """The batch sizes under comparison, and those between if any was run."""
        between = self.cells("grid-more")
        return self.cells("grid") + (between if any(cell.runs for cell in between) else [])


@dataclass(frozen=True)
class Page:
    text: str
    figures: Mapping[str, Figure]


def write(home: Path, scale: Scale = FULL, *, readme: bool = False) -> list[Path]:
    """All pages and figures; returns their paths."""
    book = Book(scale, kept_runs(home))
    contents: dict[Path, bytes] = {}
    for name, make in PAGES.items():
        page = make(book)
        contents[home / f"{name}.md"] = page.text.encode()
        contents |= {home / f"{figure}.png": figure_bytes(drawn) for figure, drawn in page.figures.items()}
    home.mkdir(parents=True, exist_ok=True)
    replace_files(contents)
    if readme:
        replace_files({README: with_headline(README.read_text(), headline(book)).encode()})
    return [*contents, *([README] if readme else [])]


def with_headline(text: str, table: str) -> str:
    """README with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"README must hold the lines {BEGIN} and {END}, got none; add them where the table belongs.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def headline(book: Book) -> str:
    """The table of README: objectives by batch size, and the time to accuracy."""
    table = book.cells("grid")
    if not any(cell.runs for cell in table):
        return "Not run yet."
    rows = []
    for objective in NCE:
        row = {"objective": objective}
        for cell in (cell for cell in table if cell.objective == objective):
            for protocol, name in figures.PROTOCOLS.items():
                row[f"{name} %, batch {cell.batch}"] = accuracy(cell, protocol, book.spread[protocol])
        rows.append(row)
    found = {run.name: times(book.kept[run.name]) for run in book.runs("fast") if run.name in book.kept}
    says = [
        compared_batches(table, book.spread["knn"]),
        _eight_times(table, book.spread, book.scale),
        *(_reached(found, goal) for goal in GOALS),
    ]
    return "\n\n".join([record.markdown(rows), *_sentences(says)])


def rate_page(book: Book) -> Page:
    runs = book.runs("lr")
    tried: dict[int, dict[float, Score]] = {batch: {} for batch in book.scale.tried_rates}
    for run in book.there(runs):
        tried[run.config.batch_size][run.config.learning_rate] = wilson(held_out_knn(run), book.scale.held_out)
    chosen = measured_rates(book.kept, book.scale)
    rows = [
        {
            "batch": str(batch),
            "learning rate": f"{rate:g}",
            "held-out kNN %": _bracketed(tried[batch][rate]) if rate in tried[batch] else NOT_RUN,
            "": "chosen" if chosen is not None and chosen[batch] == rate else "",
        }
        for batch, rates in book.scale.tried_rates.items()
        for rate in rates
    ]
    found = [
        f"InfoNCE at temperature 0.5 for {book.scale.rate_epochs:g} epochs. {book.scale.held_out:,} of the training "
        f"images are held out, kNN accuracy on them decides ({book.scale.rate_eval_samples:,} of the other images "
        "vote), and no test image is looked at. Brackets are 95 % intervals over the held-out images."
    ]
    says = [_rate_rule(chosen), *(_rate_choice(batch, tried[batch], chosen) for batch in tried)]
    cannot = (
        "Cannot show: whether the same rate is best for longer runs or for other objectives, all of which take it from "
        "here; one seed each."
    )
    return _page(
        book,
        "Learning rate by batch size",
        runs,
        ["lr"],
        [*found, record.markdown(rows)],
        [*says, cannot],
        {"learning_rate": figures.rates_figure(tried)} if all(tried.values()) else {},
    )


def _rate_rule(chosen: Rates | None) -> str | None:
    if chosen is None:
        return None
    first, power = min(chosen), rate_exponent(chosen)
    listed = " and ".join(f"{rate:g} at batch {batch}" for batch, rate in chosen.items())
    return (
        f"The rule: {listed}; in between and beyond, rate(B) = {chosen[first]:g} (B / {first})^{power:.2f}. A power of "
        "1 would be linear scaling, 0.5 the square root."
    )


def _rate_choice(batch: int, scores: Mapping[float, Score], chosen: Rates | None) -> str | None:
    if chosen is None:
        return None
    best, rates = chosen[batch], sorted(scores)
    alike = [rate for rate in rates if rate != best and scores[rate].high >= scores[best].low]
    text = f"At batch {batch}, {best:g} is best"
    text += f"; the intervals of {_and(f'{rate:g}' for rate in alike)} overlap with its own." if alike else ", clearly."
    if best in (rates[0], rates[-1]):
        text += " It is at the end of the range that was tried, so a better one may lie beyond."
    return text


def batch_page(book: Book) -> Page:
    table, equal, spread = book.grid(), book.cells("equal-updates"), book.spread
    first = [
        "## InfoNCE: the small batch against the large one",
        record.markdown(_batch_differences(table, spread, book.scale)),
        *_sentences([compared_batches(table, spread["knn"])]),
        "## All objectives at equal epochs",
        f"{INTERVALS} {GAUGES}",
        record.markdown([_cell_row(cell, spread) for cell in table]),
        *_sentences([_untrained(book)]),
        "## At equal updates",
        f"Batch {book.scale.small} stopped at the updates of batch {book.scale.large}, with a schedule of its own: it "
        f"has seen {book.scale.large // book.scale.small} times fewer images.",
        record.markdown([_cell_row(cell, spread) for cell in equal]),
    ]
    says = [
        *(_flat_against_infonce(table, batch, spread) for batch in sorted({c.batch for c in table})),
        _eight_times(table, spread, book.scale),
        _equal_updates(table, equal, spread["knn"], book.scale),
        _snr(table),
        f"Cannot show: what happens beyond {book.scale.epochs:g} epochs, with other encoders or other images; two "
        "seeds for each cell; one learning rate for all objectives of a batch size, tuned on InfoNCE.",
    ]
    drawn = {"batch_size": figures.accuracies_figure(table, spread), "gauges": figures.curves_figure(table)}
    runs = book.runs("grid", "equal-updates")
    shown = drawn if any(cell.runs for cell in table) else {}
    return _page(book, "Batch size and objective", runs, ["grid", "equal-updates"], first, says, shown)


def _of(table: Sequence[Cell], objective: str, batch: int) -> Cell:
    return next(cell for cell in table if (cell.objective, cell.batch) == (objective, batch))


def _batch_differences(table: Sequence[Cell], spread: Spreads, scale: Scale) -> list[Row]:
    rows = []
    for objective in (name for name, settings in NCE.items() if settings["objective"] == "infonce"):
        small, large = (_of(table, objective, batch) for batch in (scale.small, scale.large))
        for protocol, name in figures.PROTOCOLS.items():
            gain = difference(small, large, protocol, spread[protocol])
            rows.append(
                {
                    "objective": objective,
                    "accuracy": name,
                    f"batch {small.batch}": accuracy(small, protocol, spread[protocol]),
                    f"batch {large.batch}": accuracy(large, protocol, spread[protocol]),
                    "difference, points": NOT_RUN if gain is None else _points(gain),
                }
            )
    return rows


def compared_batches(table: Sequence[Cell], spread: Spread) -> str | None:
    """Whether InfoNCE has anything to lose from a small batch here."""
    small, large = (pick(cell.batch for cell in table) for pick in (min, max))
    names = [name for name, settings in NCE.items() if settings["objective"] == "infonce"]
    found = {name: difference(_of(table, name, small), _of(table, name, large), "knn", spread) for name in names}
    gains = {name: gain for name, gain in found.items() if gain is not None}
    if not gains:
        return None
    parts = [
        f"{name} {_verdict(gain)} itself at batch {large} ({_points(gain)} points)" for name, gain in gains.items()
    ]
    says = f"By kNN at batch {small}, {_and(parts)}."
    if any(math.isnan(gain.low) for gain in gains.values()):
        return says
    worse = [name for name, gain in gains.items() if gain.high < 0]
    if worse:
        return f"{says} So at equal epochs another objective has something to win back from {_and(worse)}."
    return (
        f"{says} The small batch makes {large // small} times the updates and is not shown to be worse: "
        f"whether another objective saves a factor of {large // small} in batch size cannot be answered at this length."
    )


def _flat_against_infonce(table: Sequence[Cell], batch: int, spread: Spreads) -> str | None:
    pairs = (("FlatNCE, temperature 0.1", "InfoNCE, temperature 0.1"), (CONTROLLED, SIMCLR))
    parts = []
    for flat, info in pairs:
        gains = _gains(_of(table, flat, batch), _of(table, info, batch), spread)
        if gains is not None:
            parts.append(f"{flat} less {info} {gains}")
    return f"Points at batch {batch}: {_and(parts)}." if parts else None


def _gains(one: Cell, other: Cell, spread: Spreads) -> str | None:
    """By every protocol: one may find what another does not."""
    found = {name: difference(one, other, p, spread[p]) for p, name in figures.PROTOCOLS.items()}
    parts = []
    for name, gain in found.items():
        if gain is not None:
            doubt = ", not told apart" if gain.low <= 0 <= gain.high else ""
            parts.append(f"{_points(gain)} by {name}{doubt}")
    return f"({'; '.join(parts)})" if parts else None


def _eight_times(table: Sequence[Cell], spread: Spreads, scale: Scale) -> str | None:
    found = [_of(table, name, scale.large) for name in NCE if name.startswith("InfoNCE")]
    best = max((c for c in found if c.runs), key=lambda c: statistics.fmean(c.values("knn")), default=None)
    small = _of(table, CONTROLLED, scale.small)
    gains = None if best is None else _gains(small, best, spread)
    if best is None or gains is None:
        return None
    return (
        f"Points between batches: {CONTROLLED} at batch {scale.small} less {best.objective}, the better InfoNCE by "
        f"kNN, at batch {scale.large} {gains}."
    )


def _equal_updates(table: Sequence[Cell], equal: Sequence[Cell], spread: Spread, scale: Scale) -> str | None:
    parts = []
    for cell in equal:
        gain = difference(cell, _of(table, cell.objective, scale.large), "knn", spread)
        if gain is not None:
            parts.append(f"{cell.objective} {_points(gain)}")
    if not parts:
        return None
    return f"At equal updates, batch {scale.small} less batch {scale.large} is, in points of kNN: {_and(parts)}."


def _snr(table: Sequence[Cell]) -> str | None:
    found = {(c.objective, c.batch): value for c in table if (value := gauge(c.runs, "gradient_snr")) is not None}
    if not found:
        return None
    (least, low), (most, high) = (pick(found.items(), key=lambda item: item[1]) for pick in (min, max))
    return (
        f"Gradient SNR over the last quarter is between {low:.2f} ({least[0]}, batch {least[1]}) and {high:.2f} "
        f"({most[0]}, batch {most[1]})."
    )


def _untrained(book: Book) -> str | None:
    for run in book.there(book.runs("grid")):
        knn, linear = run.untrained("knn"), run.untrained("linear")
        if knn is not None and linear is not None:
            return f"Untrained, the encoder has {_bracketed(knn)} % by kNN and {_bracketed(linear)} % by linear probe."
    return None


def ess_page(book: Book) -> Page:
    runs = book.runs("ess")
    held = [cell for cell in book.cells("grid") if (cell.objective, cell.batch) == (CONTROLLED, book.scale.small)]
    table, spread = sorted([*book.cells("ess"), *held], key=_target), book.spread
    found = {
        protocol: {_target(cell): score for cell in table if (score := mean_accuracy(cell, protocol, spread[protocol]))}
        for protocol in figures.PROTOCOLS
    }
    rows = [{"ESS target": f"{_target(cell):g}", **_cell_row(cell, spread)} for cell in table]
    for row in rows:
        del row["objective"]
    says = [
        *(_best_target(table, spread[protocol], protocol) for protocol in figures.PROTOCOLS),
        f"Cannot show: other batch sizes than {book.scale.small}, or runs longer than {book.scale.epochs:g} epochs; "
        "two seeds for each target.",
    ]
    shown = {"ess": figures.targets_figure(found)} if any(found.values()) else {}
    text = [f"FlatNCE, batch {book.scale.small}; the target 0.25 is that of the grid. {INTERVALS} {GAUGES}"]
    return _page(book, "ESS targets", runs, ["ess", "grid"], [*text, record.markdown(rows)], says, shown)


def _target(cell: Cell) -> float:
    return float(cell.planned[0].settings["ess_target"])


def _best_target(table: Sequence[Cell], spread: Spread, protocol: str) -> str | None:
    low, high = LITERATURE_ESS
    done = [cell for cell in table if cell.values(protocol)]
    inside = [cell for cell in done if low <= _target(cell) <= high]
    outside = [cell for cell in done if cell not in inside]
    if not inside or not outside:
        return None
    name = figures.PROTOCOLS[protocol]
    best, best_inside, best_outside = (
        max(group, key=lambda cell: statistics.fmean(cell.values(protocol))) for group in (done, inside, outside)
    )
    gain = difference(best_inside, best_outside, protocol, spread)
    assert gain is not None
    missing = "" if len(done) == len(table) else f" of the {len(done)} targets run"
    if gain.low > 0:
        verdict = "that 0.2 to 0.4 is best holds here"
    elif gain.high < 0:
        verdict = "that 0.2 to 0.4 is best does not hold here"
    else:
        verdict = "the literature's 0.2 to 0.4 is neither confirmed nor refuted"
    return (
        f"By {name}, {_target(best):g} is best{missing}. The best within 0.2 to 0.4 ({_target(best_inside):g}) less "
        f"the best outside ({_target(best_outside):g}) is {_points(gain)} points: {verdict}."
    )


def information_page(book: Book) -> Page:
    stages = ["grid", "grid-more", "equal-updates", "ess", "fdiv", "fdiv-more"]
    runs = book.runs(*stages)
    points = [p for run in runs if run.name in book.kept for p in checkpoints(book.kept[run.name], run.objective)]
    nce = [p for p in points if p.objective.startswith(("InfoNCE", "FlatNCE"))]
    groups: dict[str, list[Checkpoint]] = {"all": points, "InfoNCE and FlatNCE": nce}
    groups["the last of each run"] = [p for p in points if p.last]
    groups |= {f"batch {b}": [p for p in points if p.batch == b] for b in sorted({p.batch for p in points})}
    families = dict.fromkeys(family(p.objective) for p in points)
    groups |= {name: [p for p in points if family(p.objective) == name] for name in families}
    text = (
        "Over the evaluations within runs: Pearson and Spearman correlation of kNN accuracy with the bound against a "
        "pool (best beta) and with the bound of the training batches (mean over those logged since the evaluation "
        f"before). kNN here is on a sample of {book.scale.eval_samples:,} test images, the 20 nearest of as many "
        "training images voting. 95 % intervals are from a bootstrap that draws whole runs; fewer than 3 have none."
    )
    says = [
        *(_information_verdict(points, name, label, told) for name, label, told in MEASURED_AGAINST),
        "Cannot show: cause. Within a run accuracy and bounds both grow with time, so correlations over all "
        "checkpoints are partly those of time; the row of last evaluations is free of that, with one point a run.",
    ]
    shown = {"mi_accuracy": figures.information_figure(points)} if points else {}
    tables = [text, record.markdown([_information_row(name, group) for name, group in groups.items()])]
    return _page(book, "Mutual information against accuracy", runs, stages, tables, says, shown)


MEASURED_AGAINST = (
    ("pool_mi_nats", "pool MI", "0.65"),
    ("batch_mi_nats", "mini-batch MI", "none"),
)


def _information_row(name: str, points: Sequence[Checkpoint]) -> Row:
    row = {"checkpoints": name, "points": str(len(points)), "runs": str(len({p.run for p in points}))}
    for quantity, label, _ in MEASURED_AGAINST:
        found = correlation(points, quantity)
        row[f"Pearson, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.pearson)
        row[f"Spearman, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.spearman)
    return row


def _information_verdict(points: Sequence[Checkpoint], name: str, label: str, told: str) -> str | None:
    found = correlation(points, name)
    if found is None:
        return None
    clear = "is clearly not zero" if found.pearson.low > 0 or found.pearson.high < 0 else "is not told from zero"
    return (
        f"kNN accuracy and {label} correlate by {_correlation(found.pearson)} (Pearson) over {found.points} "
        f"checkpoints of {found.runs} runs, which {clear}; the literature has {told}."
    )


def divergence_page(book: Book) -> Page:
    simclr = [cell for cell in book.cells("grid") if (cell.objective, cell.batch) == (SIMCLR, book.scale.large)]
    second = book.cells("fdiv", "fdiv-more")
    table = [*simclr, *(second if any(len(cell.runs) > 1 for cell in second) else book.cells("fdiv"))]
    spread = book.spread
    scores = {
        cell.objective: {p: s for p in figures.PROTOCOLS if (s := mean_accuracy(cell, p, spread[p])) is not None}
        for cell in table
    }
    says = [
        *(_against_simclr(table, simclr[0], protocol, spread[protocol]) for protocol in figures.PROTOCOLS),
        "Cannot show: what these objectives reach with learning rates and constants of their own; all take the rate "
        "tuned on InfoNCE and the constants of their papers. Where an objective has one seed, its interval rests on "
        "the spread of the others.",
    ]
    text = (
        f"Batch {book.scale.large}, {book.scale.epochs:g} epochs. f-MICL with the Gaussian kernel; SimCLR is InfoNCE "
        f"at temperature 0.5, from the grid. {INTERVALS} Gauges are taken at the scale an objective trains with."
    )
    rows = [_cell_row(cell, spread) for cell in table]
    shown = {"f_divergences": figures.objectives_figure(scores)} if any(scores.values()) else {}
    return _page(book, "f-divergences", book.runs("fdiv"), ["fdiv", "grid"], [text, record.markdown(rows)], says, shown)


def _against_simclr(table: Sequence[Cell], simclr: Cell, protocol: str, spread: Spread) -> str | None:
    done = [cell for cell in table if cell.values(protocol)]
    if len(done) < 2 or not simclr.values(protocol):
        return None
    best = max(done, key=lambda cell: statistics.fmean(cell.values(protocol)))
    verdicts: dict[str, list[str]] = {}
    for cell in done:
        gain = difference(cell, simclr, protocol, spread)
        if cell is not simclr and gain is not None:
            verdicts.setdefault(_verdict(gain), []).append(f"{cell.objective} ({_points(gain)})")
    highest = 100 * statistics.fmean(best.values(protocol))
    listed = "; ".join(f"{verdict.removeprefix('is ')} SimCLR: {_and(names)}" for verdict, names in verdicts.items())
    return f"By {figures.PROTOCOLS[protocol]}, {best.objective} is highest ({highest:.1f} %). In points, {listed}."


def speed_page(book: Book) -> Page:
    runs = book.runs("fast")
    found = {run.name: times(book.kept[run.name]) for run in runs if run.name in book.kept}
    rows = []
    for run in runs:
        there = book.kept.get(run.name)
        measured = found.get(run.name, [])
        row = {"run": run.name, "objective": run.objective, "batch": str(run.settings["batch_size"])}
        row["epochs"] = f"{run.settings['steps'] / (book.scale.images // run.settings['batch_size']):g}"
        for protocol, name in figures.PROTOCOLS.items():
            score = None if there is None else there.score(protocol)
            row[f"{name} %"] = NOT_RUN if score is None else _bracketed(score)
        for goal in GOALS:
            reached = first_reaching(measured, goal)
            row[f"minutes to {100 * goal:.0f} % kNN"] = NOT_RUN if there is None else _minutes(reached)
        row["minutes in all"] = _minutes(measured[-1]) if measured else NOT_RUN
        rows.append(row)
    text = (
        "One run at a time. Minutes of training (steps with augmentation and checkpoints) and, in brackets, on the "
        "wall since the command was given (start, graph capture, evaluations and gauges too), up to the first "
        f"evaluation at that accuracy. kNN along a run has {book.scale.fast_eval_samples:,} training images voting; "
        "the accuracies after it have all of them, and 95 % intervals over test images."
    )
    says = [
        *(_reached(found, goal) for goal in GOALS),
        "A public single-file SimCLR needs 20 A100-minutes for 83.2 % and 99 for 90.3 % by kNN (as stated there, "
        "another GPU).",
        "Cannot show: spread, with one seed for each run; and an evaluation comes only every "
        f"{_every(found)} epochs, so times are upper limits. The learning rate falls to zero over a run, so a shorter "
        "run may reach a goal earlier than the first part of a longer one.",
    ]
    shown = {"time_to_accuracy": figures.speed_figure(found, GOALS)} if found else {}
    return _page(book, "Time to accuracy", runs, ["fast"], [text, record.markdown(rows)], says, shown)


def _every(found: Mapping[str, Sequence[Time]]) -> str:
    gaps = {f"{measured[0].epoch:.1f}" for measured in found.values() if measured}
    return _and(sorted(gaps, key=float)) or "few"


def _reached(found: Mapping[str, Sequence[Time]], goal: float) -> str | None:
    if not found:
        return None
    reached = {name: time for name, measured in found.items() if (time := first_reaching(measured, goal)) is not None}
    if not reached:
        best = max(time.knn for measured in found.values() for time in measured)
        return f"No run reached {100 * goal:.0f} % by kNN along the way; the highest was {100 * best:.1f} %."
    name = min(reached, key=lambda run: reached[run].training)
    return f"{100 * goal:.0f} % by kNN took {_minutes(reached[name])} minutes, by {name}."


def accuracy(cell: Cell, protocol: str, spread: Spread) -> str:
    """Mean ± deviation over seeds [95 %], in percent."""
    score, values = mean_accuracy(cell, protocol, spread), cell.values(protocol)
    if score is None:
        return NOT_RUN
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * score.value:.1f}{deviation} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _cell_row(cell: Cell, spread: Spreads) -> Row:
    runs, rate = cell.runs, cell.planned[0].settings["learning_rate"]
    return {
        "objective": cell.objective,
        "batch": str(cell.batch),
        "updates": f"{cell.steps:,}",
        "rate": f"{runs[0].config.learning_rate if runs else rate:g}",
        "kNN %": accuracy(cell, "knn", spread["knn"]),
        "linear %": accuracy(cell, "linear", spread["linear"]),
        "ESS": _gauge(gauge(runs, "ess")),
        "bound / ceiling": _gauge(gauge(runs, "saturation")),
        "beta": _gauge(gauge(runs, "beta"), 1),
        "gradient SNR": _gauge(gauge(runs, "gradient_snr")),
        "mini-batch MI": _gauge(gauge(runs, "mi_nats")),
        "pool MI": _gauge(last_evaluation(runs, "pool_mi_best_nats")),
        "seeds": ", ".join(map(str, cell.seeds)) or NOT_RUN,
    }


def _page(
    book: Book,
    title: str,
    runs: Sequence[PlannedRun],
    stages: Sequence[str],
    tables: Sequence[str],
    says: Sequence[str | None],
    shown: Mapping[str, Figure],
) -> Page:
    pictures = [f"![{name.replace('_', ' ')}]({name}.png)" for name in shown]
    findings = ["## Findings", "\n".join(f"- {text}" for text in says if text is not None)]
    return Page("\n\n".join([f"# {title}", _origin(book, runs, stages), *tables, *pictures, *findings]) + "\n", shown)


def _origin(book: Book, runs: Sequence[PlannedRun], stages: Sequence[str]) -> str:
    """Command, hardware, commit and seeds."""
    there = book.there(runs)
    scale = "" if book.scale is FULL else f" --plan {book.scale.name}"
    needed = [stage for stage in stages if not STAGES[stage].optional]
    lines = [
        f"`python -m benchmarks.cifar10 run{scale} --stage {' '.join(needed)} --data DIR`, then "
        f"`python -m benchmarks.cifar10 tables{scale}`. {len(there)} of {len(runs)} runs are there; raw metrics in "
        "`runs/`. By hand, for example:",
        f"```sh\n{shlex.join(['flatclr', *runs[0].arguments()])}\n```",
    ]
    if there:
        started = [process for run in there for process in run.processes if process["does"] == "train"]
        machines = sorted({f"{p.get('gpu', 'no GPU')}, {p['cores']} cores of {p['cpu']}" for p in started})
        versions = sorted({f"PyTorch {run.environment['torch']}" for run in there})
        commits = sorted({process["commit"] for process in started})
        beside = sorted({process["beside"] + 1 for process in started})
        lines.append(
            f"On {_and(machines)}; {_and(versions)}; commit {_and(commits)}; seeds "
            f"{_and(str(seed) for seed in sorted({run.config.seed for run in there}))}; "
            f"{_and(map(str, beside))} at a time."
        )
    return "\n\n".join(lines)


def _sentences(given: Sequence[str | None]) -> list[str]:
    return [text for text in given if text is not None]


def _verdict(gain: Score) -> str:
    if math.isnan(gain.low):
        return "has too few seeds to be compared with"
    return "is better than" if gain.low > 0 else "is worse than" if gain.high < 0 else "is not told apart from"


def _points(gain: Score) -> str:
    if math.isnan(gain.low):
        return f"{100 * gain.value:+.1f}"
    return f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def _bracketed(score: Score) -> str:
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _correlation(score: Score) -> str:
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"


def _gauge(value: float | None, digits: int = 2) -> str:
    return NOT_RUN if value is None else f"{value:.{digits}f}"


def _minutes(time: Time | None) -> str:
    return "not reached" if time is None else f"{time.training / 60:.1f} ({time.wall / 60:.1f})"


def _and(parts: Iterable[str]) -> str:
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


PAGES: dict[str, Callable[[Book], Page]] = {
    "learning_rate": rate_page,
    "batch_size": batch_page,
    "ess": ess_page,
    "mi_accuracy": information_page,
    "f_divergences": divergence_page,
    "time_to_accuracy": speed_page,
}
