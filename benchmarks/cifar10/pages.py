"""results/cifar10: a page with table, figure and findings for each question, from the kept runs and nothing else.

Every sentence with a number is made from the numbers; what was not run is said to be so.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, in_short, joined
from benchmarks.cifar10.data import HELD_OUT
from benchmarks.cifar10.kept import KeptRun, held_out_knn, kept_runs, measured_rates
from benchmarks.cifar10.plan import (
    BETWEEN,
    CONTROLLED,
    FULL,
    LITERATURE_LINEAR,
    NCE,
    NO_LOG_RATIO,
    OTHERS,
    SIMCLR,
    STAGES,
    SWEPT,
    PlannedRun,
    Rates,
    Scale,
    family,
    planned,
    rate_exponent,
)
from benchmarks.cifar10.summary import (
    FEWEST_CELLS,
    FEWEST_RUNS,
    Cell,
    Checkpoint,
    Judge,
    Spread,
    Time,
    at_equal_epochs,
    cells,
    checkpoints,
    correlation,
    ending_at,
    first_reaching,
    gauge,
    last_evaluation,
    mean_accuracy,
    pooled_spread,
    signal_to_noise,
    times,
)
from flatclr.evaluation.intervals import NORMAL, Score, wilson
from flatclr.evaluation.knn import neighbours_for
from flatclr.evaluation.protocols import TEN_NEIGHBOURS
from flatclr.files import replace_files
from flatclr.plots import figure_bytes
from flatclr.training.instruments import SNR_FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_RUN = "not run"
README = record.RESULTS.parent / "README.md"
BEGIN, END = "<!-- cifar10:begin -->", "<!-- cifar10:end -->"
GOALS = (0.80, 0.85)
LITERATURE_ESS = (0.2, 0.4)
INFONCE = [name for name, settings in {**NCE, **BETWEEN}.items() if settings["objective"] == "infonce"]
Spreads = Mapping[str, Spread]  # by protocol
GAUGES = (
    "ESS, bound / ceiling, beta and gradient SNR are means over the last quarter of a run. Gradient SNR is what is "
    f"left of the measured one without noise, which alone reads {SNR_FLOOR:.2f} from eight batches. Pool MI is "
    "InfoNCE's bound at the best beta against a pool of as many images for every batch size; these are training "
    "images, as are those of the mini-batches."
)
Row = dict[str, str]
Tried = TypeVar("Tried", int, float)


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
        """Of InfoNCE and FlatNCE at the common length, so that a cell has one interval on all pages."""
        table = self.cells("grid", "grid-more", "tau", "ess")
        return {protocol: pooled_spread(table, protocol) for protocol in figures.PROTOCOLS}

    @property
    def short_deviation(self) -> float:
        """Over seeds, by kNN, of runs that are short, or of those of full length until there are such."""
        short = pooled_spread(self.cells("equal-updates"), "knn")
        return (short if short.freedom else self.spread["knn"]).deviation

    def grid(self) -> list[Cell]:
        """What is under comparison, and what lies between in batch size or temperature if any of it was run."""
        between = [self.cells("grid-more"), self.cells("tau")]
        return self.cells("grid") + [cell for group in between if any(c.runs for c in group) for cell in group]

    def batch_judge(self) -> Judge:
        """Over all differences that the page of batch sizes and README speak of."""
        table, small, large = self.grid(), self.scale.small, self.scale.large
        pairs = [(name, small, name, large) for name in INFONCE]
        pairs += [(one, b, other, b) for b in sorted({c.batch for c in table}) for one, other in FLAT_AGAINST]
        pairs += [(CONTROLLED, small, name, large) for name in INFONCE]
        found = [(_find(table, *pair[:2]), _find(table, *pair[2:])) for pair in pairs]
        found += [(cell, _find(table, cell.objective, large)) for cell in self.cells("equal-updates")]
        return Judge.over([(one, other) for one, other in found if one and other], self.spread)


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
    rows, judge = [], book.batch_judge()
    for objective in NCE:
        row = {"objective": objective}
        for cell in (cell for cell in table if cell.objective == objective):
            for protocol, name in figures.PROTOCOLS.items():
                row[f"{name} %, batch {cell.batch}"] = accuracy(cell, protocol, book.spread[protocol])
        rows.append(row)
    seeds = joined(str(seed) for seed in sorted({seed for cell in table for seed in cell.seeds}))
    intro = (
        f"ResNet-18 without labels for {book.scale.epochs:g} epochs, seeds {seeds}, the learning rate tuned for each "
        f"batch size on held-out training images. {_protocols(book.scale)} Means ± standard deviations over seeds, "
        "with 95 % intervals over test images and seeds; differences are those on these test images, with intervals "
        "over seeds that hold together with 95 %."
    )
    says = [
        compared_batches(table, judge, book.scale),
        _eight_times(book.grid(), judge, book.scale),
    ]
    return "\n\n".join([intro, record.markdown(rows), *_sentences(says), *_speed_headline(book)])


def _speed_headline(book: Book) -> list[str]:
    found = _measured_times(book)
    if not found:
        return []
    runs = [run for run in book.runs("fast") if run.name in found]
    rows = [_speed_row(book, run, found[run.name]) for run in runs]
    told = ("epochs", "kNN %", "linear %", *(f"minutes to {100 * goal:.0f} % kNN" for goal in GOALS), "minutes in all")
    machines = joined(sorted({p["gpu"] for run in book.there(runs) for p in run.processes if "gpu" in p}))
    intro = (
        f"Time to accuracy, `flatclr train --recipe {book.scale.fast_recipe} --epochs N` on {machines or 'a CPU'}, one "
        "run each: minutes on the wall with start and evaluations, in brackets without evaluations."
    )
    return [intro, record.markdown([{name: row[name] for name in told} for row in rows])]


def rate_page(book: Book) -> Page:
    scale, runs, around = book.scale, book.runs("lr"), book.runs("lr-flat")
    tried: dict[int, dict[float, Score]] = {batch: {} for batch in scale.tried_rates}
    for run in book.there(runs):
        tried[run.config.batch_size][run.config.learning_rate] = _held_out(run, scale)
    chosen = measured_rates(book.kept, scale)
    rows = [
        {
            "batch": str(batch),
            "learning rate": f"{rate:g}",
            "held-out kNN %": _bracketed(tried[batch][rate]) if rate in tried[batch] else NOT_RUN,
            "": "chosen" if chosen is not None and chosen[batch] == rate else "",
        }
        for batch, rates in scale.tried_rates.items()
        for rate in rates
    ]
    voting = min(scale.rate_eval_samples, scale.images - scale.held_out)
    found = [
        f"{SIMCLR} for {scale.rate_epochs:g} epochs. {scale.held_out:,} of the training images are held out, kNN "
        f"accuracy on them decides ({_neighbours(voting)}, {voting:,} of the other images in the bank), and no test "
        "image is looked at. Brackets are 95 % intervals over the held-out images.",
        record.markdown(rows),
    ]
    if book.there(around):
        found += [
            f"## {CONTROLLED} around these rates",
            "At half, at all and at double of the rate, in the same way. The choice above is not changed by it.",
            record.markdown([_held_out_row(book, run, {"batch": str(run.batch), **_rate(run)}) for run in around]),
        ]
    seeds = book.short_deviation
    says = [_rate_rule(chosen, tried, seeds), *(_rate_choice(batch, tried[batch], chosen, seeds) for batch in tried)]
    claims = []
    if chosen is not None:
        claims.append(Claim("the best rate", "growing with the batch", {"kNN": _rate_power(chosen, tried, seeds)}))
    cannot = (
        "whether the same rate is best for longer runs or for other objectives, all of which take it from here. One "
        f"seed each; the deviation over seeds, {100 * seeds:.1f} points, is that of runs of other stages."
    )
    findings = _findings(claims, cannot, says)
    shown = {"learning_rate": figures.rates_figure(tried)} if all(tried.values()) else {}
    return _page(book, "Learning rate by batch size", runs, ["lr"], found, findings, shown)


def _held_out(run: KeptRun, scale: Scale) -> Score:
    return wilson(held_out_knn(run), scale.held_out)


def _held_out_row(book: Book, run: PlannedRun, row: Row) -> Row:
    there = book.kept.get(run.name)
    return {**row, "held-out kNN %": NOT_RUN if there is None else _bracketed(_held_out(there, book.scale))}


def _rate(run: PlannedRun) -> Row:
    return {"learning rate": f"{run.config().learning_rate:g}"}


def _rate_rule(chosen: Rates | None, tried: Mapping[int, Mapping[float, Score]], seeds: float) -> str | None:
    if chosen is None:
        return None
    first, last, power = min(chosen), max(chosen), _rate_power(chosen, tried, seeds)
    listed = " and ".join(f"{rate:g} at batch {batch}" for batch, rate in chosen.items())
    return (
        f"The rule: {listed}; in between, rate(B) = {chosen[first]:g} (B / {first})^{power.value:.2f}. It is loosely "
        "known: rates that are not told apart from the chosen ones fit powers from "
        f"{power.low:.1f} to {power.high:.1f} (1 is linear scaling, 0.5 the square root), and beyond batch {last} it "
        "is extrapolation."
    )


def _rate_power(chosen: Rates, tried: Mapping[int, Mapping[float, Score]], seeds: float) -> Score:
    """Of the batch, with those that fit rates not told apart from the chosen ones."""
    first, last = min(chosen), max(chosen)
    low, high = ([chosen[batch], *_alike(tried[batch], chosen[batch], seeds)] for batch in (first, last))
    powers = [rate_exponent({first: small, last: large}) for small in low for large in high]
    return Score(rate_exponent(chosen), min(powers), max(powers))


def _alike(scores: Mapping[Tried, Score], best: Tried, seeds: float) -> list[Tried]:
    """What has an accuracy not told apart from the best, as if on other images: on the same ones less is enough.

    `seeds` is the standard deviation over seeds.
    """

    def error(score: Score) -> float:
        return math.hypot((score.high - score.low) / (2 * NORMAL), seeds)

    return [
        tried
        for tried, score in sorted(scores.items())
        if tried != best and scores[best].value - score.value <= NORMAL * math.hypot(error(score), error(scores[best]))
    ]


def _rate_choice(batch: int, scores: Mapping[float, Score], chosen: Rates | None, seeds: float) -> str | None:
    if chosen is None:
        return None
    best, rates = chosen[batch], sorted(scores)
    alike = _alike(scores, best, seeds)
    text = f"At batch {batch}, {best:g} is best"
    text += f"; not told apart from it: {joined(f'{rate:g}' for rate in alike)}." if alike else ", clearly."
    if best in (rates[0], rates[-1]):
        text += " It is at the end of the range that was tried, so a better one may lie beyond."
    return text


FLAT_AGAINST = (
    ("FlatNCE, temperature 0.1", "InfoNCE, temperature 0.1"),
    *((CONTROLLED, name) for name in (SIMCLR, *BETWEEN)),
)


def batch_page(book: Book) -> Page:
    scale, table, equal = book.scale, book.grid(), book.cells("equal-updates")
    spread, judge = book.spread, book.batch_judge()
    first = [
        "## InfoNCE: the small batch against the large one",
        record.markdown(_batch_differences(table, judge, scale)),
        *_sentences([compared_batches(table, judge, scale)]),
        "## All objectives at equal epochs",
        f"{_protocols(scale)} {_intervals(judge)} {GAUGES} {_reachable(scale)}",
        record.markdown([_cell_row(cell, spread) for cell in table]),
        *_sentences([_untrained(book)]),
        "## At equal updates",
        f"Batch {scale.small} stopped at the updates of batch {scale.large}, with a schedule of its own: it has seen "
        f"{scale.large // scale.small} times fewer images. Intervals rest on the spread over seeds of these runs.",
        record.markdown([_cell_row(cell, {p: pooled_spread(equal, p) for p in spread}) for cell in equal]),
    ]
    says = [
        *(_flat_against_infonce(table, batch, judge) for batch in sorted({c.batch for c in table})),
        _eight_times(table, judge, scale),
        _equal_updates(table, equal, judge, scale),
        _snr(table),
    ]
    cannot = (
        f"what happens beyond {scale.epochs:g} epochs, with other encoders or other images;{_seed_counts(table)} one "
        f"learning rate for all objectives of a batch size, tuned on {SIMCLR}.{_confounded(table)}"
    )
    findings = _findings(_batch_claims(table, judge, scale), cannot, says)
    drawn = {"batch_size": figures.accuracies_figure(table, spread), "gauges": figures.curves_figure(table)}
    runs = book.runs("grid", "equal-updates")
    shown = drawn if any(cell.runs for cell in table) else {}
    return _page(book, "Batch size and objective", runs, ["grid", "equal-updates"], first, findings, shown)


def _batch_claims(table: Sequence[Cell], judge: Judge, scale: Scale) -> list[Claim]:
    small, large = scale.small, scale.large
    claims = [
        Claim(flat, f"above {info} at batch {batch}", _gains(one, other, judge))
        for batch in sorted({cell.batch for cell in table})
        for flat, info in FLAT_AGAINST
        if (one := _find(table, flat, batch)) and (other := _find(table, info, batch))
    ]
    claims += [
        Claim(one.objective, f"losing from batch {large} to batch {small}", _gains(other, one, judge))
        for one, other in _batch_pairs(table, scale)
    ]
    best, controlled = _best_infonce(table, scale), _find(table, CONTROLLED, small)
    if best and controlled:
        predicate = f"at batch {small} above the best InfoNCE at batch {large}"
        claims.append(Claim(CONTROLLED, predicate, _gains(controlled, best, judge)))
    return [claim for claim in claims if claim.measured]


def _best_infonce(table: Sequence[Cell], scale: Scale) -> Cell | None:
    found = [cell for name in INFONCE if (cell := _find(table, name, scale.large)) is not None and cell.values("knn")]
    return max(found, key=lambda cell: statistics.fmean(cell.values("knn")), default=None)


def _find(table: Sequence[Cell], objective: str, batch: int) -> Cell | None:
    return next((cell for cell in table if (cell.objective, cell.batch) == (objective, batch)), None)


def _batch_pairs(table: Sequence[Cell], scale: Scale) -> Iterator[tuple[Cell, Cell]]:
    for objective in INFONCE:
        small, large = (_find(table, objective, batch) for batch in (scale.small, scale.large))
        if small and large:
            yield small, large


def _batch_differences(table: Sequence[Cell], judge: Judge, scale: Scale) -> list[Row]:
    rows = []
    for small, large in _batch_pairs(table, scale):
        for protocol, name in figures.PROTOCOLS.items():
            gain = judge.difference(small, large, protocol)
            rows.append(
                {
                    "objective": small.objective,
                    "accuracy": name,
                    f"batch {small.batch}": accuracy(small, protocol, judge.spread[protocol]),
                    f"batch {large.batch}": accuracy(large, protocol, judge.spread[protocol]),
                    "difference, points": NOT_RUN if gain is None else _points(gain),
                }
            )
    return rows


def compared_batches(table: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    """Whether InfoNCE has anything to lose from a small batch here, by every protocol."""
    parts = []
    verdicts: dict[str, list[str]] = {}
    for small, large in _batch_pairs(table, scale):
        gains = _gains(small, large, judge)
        if gains:
            parts.append(f"{small.objective} {_listed(gains)}")
            verdicts.setdefault(_batch_verdict(gains, scale.large // scale.small), []).append(small.objective)
    if not parts:
        return None
    told = " ".join(f"{verdict}: {joined(names)}." for verdict, names in verdicts.items())
    return f"Points at batch {scale.small} less batch {scale.large}: {joined(parts)}. {told}"


def _batch_verdict(gains: Mapping[str, Score], times_fewer: int) -> str:
    if any(math.isnan(gain.low) for gain in gains.values()):
        return "Too few seeds for a verdict"
    worse, level = ([p for p, gain in gains.items() if (gain.high < 0) is is_worse] for is_worse in (True, False))
    if not worse:
        return (
            f"Not shown to be worse at the small batch, which makes {times_fewer} times the updates, so that whether "
            f"another objective saves a factor of {times_fewer} in batch size cannot be answered at this length"
        )
    if level:
        return f"Worse at the small batch by {joined(worse)}, which {joined(level)} does not show"
    return f"Worse at the small batch by {joined(worse)}, so that another objective has something to win back"


def _flat_against_infonce(table: Sequence[Cell], batch: int, judge: Judge) -> str | None:
    parts = []
    for flat, info in FLAT_AGAINST:
        one, other = _find(table, flat, batch), _find(table, info, batch)
        gains = _gains(one, other, judge) if one and other else {}
        if gains:
            parts.append(f"{flat} less {info} {_listed(gains)}")
    return f"Points at batch {batch}: {joined(parts)}." if parts else None


def _gains(one: Cell, other: Cell, judge: Judge) -> dict[str, Score]:
    """By every protocol: one may find what another does not."""
    found = {name: judge.difference(one, other, protocol) for protocol, name in figures.PROTOCOLS.items()}
    return {name: gain for name, gain in found.items() if gain is not None}


def _listed(gains: Mapping[str, Score]) -> str:
    doubts = {name: ", not told apart" if gain.low <= 0 <= gain.high else "" for name, gain in gains.items()}
    return f"({'; '.join(f'{_points(gain)} by {name}{doubts[name]}' for name, gain in gains.items())})"


def _eight_times(table: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    best = _best_infonce(table, scale)
    small = _find(table, CONTROLLED, scale.small)
    gains = _gains(small, best, judge) if small and best else {}
    if best is None or not gains:
        return None
    told = (
        f"Points between batches: {CONTROLLED} at batch {scale.small} less {best.objective}, the best InfoNCE by kNN, "
        f"at batch {scale.large} {_listed(gains)}."
    )
    if any(math.isnan(gain.low) or gain.high < 0 for gain in gains.values()):
        return told
    most = joined(f"{max(0.0, -100 * gain.low):.1f} points by {name}" for name, gain in gains.items())
    return f"{told} That it matches, as the literature says, holds up to a loss of at most {most}."


def _equal_updates(table: Sequence[Cell], equal: Sequence[Cell], judge: Judge, scale: Scale) -> str | None:
    parts = []
    for cell in equal:
        large = _find(table, cell.objective, scale.large)
        gains = _gains(cell, large, judge) if large else {}
        if gains:
            parts.append(f"{cell.objective} {_listed(gains)}")
    if not parts:
        return None
    return (
        f"Points at equal updates, batch {scale.small} less batch {scale.large}, with "
        f"{scale.large // scale.small} times fewer images: {joined(parts)}."
    )


def _snr(table: Sequence[Cell]) -> str | None:
    found = {(c.objective, c.batch): value for c in table if (value := signal_to_noise(c.runs)) is not None}
    if not found:
        return None
    (least, low), (most, high) = (pick(found.items(), key=lambda item: item[1]) for pick in (min, max))
    return (
        f"Gradient SNR over the last quarter is between {low:.2f} ({least[0]}, batch {least[1]}) and {high:.2f} "
        f"({most[0]}, batch {most[1]}), without the {SNR_FLOOR:.2f} of noise alone, with which the figure has "
        "it; eight batches tell little so near to that."
    )


def _confounded(table: Sequence[Cell]) -> str:
    """Objectives were not run at the same temperatures."""
    betas = {c.batch: beta for c in table if c.objective == CONTROLLED and (beta := gauge(c.runs, "beta")) is not None}
    fixed = sorted({1 / {**NCE, **BETWEEN}[c.objective]["temperature"] for c in table if c.objective in INFONCE})
    if not betas:
        return ""
    held = joined(f"{beta:.1f} at batch {batch}" for batch, beta in sorted(betas.items()))
    return (
        f" Nor can it tell objective from temperature: {CONTROLLED} settled at a beta of {held}, and InfoNCE ran at "
        f"{joined(f'{beta:g}' for beta in fixed)} only."
    )


def _reachable(scale: Scale) -> str:
    """The bound is largest for positives at cosine 1; negatives have a mean cosine of about 0 at the least."""
    beta = 1 / NCE[SIMCLR]["temperature"]
    parts = []
    for batch in (scale.small, scale.large):
        negatives = 2 * batch - 2
        ceiling = math.log(negatives + 1)
        share = 1 - math.log1p(negatives * math.exp(-beta)) / ceiling
        parts.append(f"{share:.2f} of its ceiling at batch {batch}")
    return f"At temperature {1 / beta:g} the bound cannot pass about {joined(parts)}, however good the encoder."


def _untrained(book: Book) -> str | None:
    for run in book.there(book.runs("grid")):
        knn, linear = run.untrained("knn"), run.untrained("linear")
        if knn is not None and linear is not None:
            return f"Untrained, the encoder has {_bracketed(knn)} % by kNN and {_bracketed(linear)} % by linear probe."
    return None


def ess_page(book: Book) -> Page:
    middle = _find(book.cells("grid"), CONTROLLED, book.scale.small)
    assert middle is not None, "the plan has it"
    runs = [*book.runs("ess"), *middle.planned]
    table, spread = sorted([*book.cells("ess"), middle], key=_target), book.spread
    inside, outside = ([c for c in table if _is_recommended(c) is wanted] for wanted in (True, False))
    judge = Judge.over([(one, other) for one in inside for other in outside], spread)
    found = {
        protocol: {_target(cell): score for cell in table if (score := mean_accuracy(cell, protocol, spread[protocol]))}
        for protocol in figures.PROTOCOLS
    }
    rows = [{"ESS target": f"{_target(cell):g}", **_cell_row(cell, spread)} for cell in table]
    for row in rows:
        del row["objective"]
    says = [
        *(_best_target(table, judge, protocol) for protocol in figures.PROTOCOLS),
        *(_below(cell, _losses(cell, table, judge)) for cell in outside),
    ]
    gains = {
        name: gain
        for protocol, name in figures.PROTOCOLS.items()
        if (best := _best_by_side(table, protocol)) and (gain := judge.difference(best[True], best[False], protocol))
    }
    told = "{:g} to {:g}".format(*LITERATURE_ESS)
    claims = [Claim("the best target", f"within {told}", gains)] if gains else []
    claims += [
        Claim(f"{_target(cell):g}", f"below the best target within {told}", losses)
        for cell in outside
        if (losses := _losses(cell, table, judge))
    ]
    cannot = (
        f"other batch sizes than {book.scale.small}, or runs longer than {book.scale.epochs:g} epochs;"
        f"{_seed_counts(table)} whether the target matters by itself or by the temperature that comes of it."
    )
    findings = _findings(claims, cannot, says)
    shown = {"ess": figures.targets_figure(found, LITERATURE_ESS)} if len(found["knn"]) > 1 else {}
    text = [
        f"FlatNCE, batch {book.scale.small}; the target 0.25 is that of the grid. {_protocols(book.scale)} "
        f"{_intervals(judge)} {GAUGES}"
    ]
    return _page(book, "ESS targets", runs, ["ess", "grid"], [*text, record.markdown(rows)], findings, shown)


def _target(cell: Cell) -> float:
    return float(cell.planned[0].settings["ess_target"])


def _is_recommended(cell: Cell) -> bool:
    low, high = LITERATURE_ESS
    return low <= _target(cell) <= high


def _best_target(table: Sequence[Cell], judge: Judge, protocol: str) -> str | None:
    best = _best_by_side(table, protocol)
    if not best:
        return None
    told = "{:g} to {:g}".format(*LITERATURE_ESS)
    name = figures.PROTOCOLS[protocol]
    inside, outside = best[True], best[False]
    gain = judge.difference(inside, outside, protocol)
    assert gain is not None
    done = sum(bool(cell.values(protocol)) for cell in table)
    missing = "" if done == len(table) else f" of the {done} targets run"
    highest = max(best.values(), key=lambda cell: statistics.fmean(cell.values(protocol)))
    if gain.low > 0:
        verdict = f"that {told} is best holds here"
    elif gain.high < 0:
        verdict = f"that {told} is best does not hold here"
    else:
        verdict = f"the literature's {told} is neither confirmed nor refuted"
    return (
        f"By {name}, {_target(highest):g} is best{missing}. The best within {told} ({_target(inside):g}) less "
        f"the best outside ({_target(outside):g}) is {_points(gain)} points: {verdict}."
    )


def _losses(cell: Cell, table: Sequence[Cell], judge: Judge) -> dict[str, Score]:
    """What the best target within the literature's range has more than this one, by every protocol."""
    return {
        name: loss
        for protocol, name in figures.PROTOCOLS.items()
        if (best := _best_by_side(table, protocol)) and (loss := judge.difference(best[True], cell, protocol))
    }


def _below(cell: Cell, losses: Mapping[str, Score]) -> str | None:
    return f"Points of the best target within less {_target(cell):g} {_listed(losses)}." if losses else None


def _best_by_side(table: Sequence[Cell], protocol: str) -> dict[bool, Cell]:
    """The best target within what the literature recommends and the best outside; empty if either was not run."""
    done = [cell for cell in table if cell.values(protocol)]
    sides = {wanted: [cell for cell in done if _is_recommended(cell) is wanted] for wanted in (True, False)}
    if not all(sides.values()):
        return {}
    return {
        wanted: max(group, key=lambda cell: statistics.fmean(cell.values(protocol))) for wanted, group in sides.items()
    }


def information_page(book: Book) -> Page:
    stages = ["grid", "grid-more", "tau", "equal-updates", "ess", "fdiv", "fdiv-more"]
    runs = [run for stage in stages for run in book.runs(stage) if not STAGES[stage].optional or run.name in book.kept]
    points = [p for run in runs if run.name in book.kept for p in checkpoints(book.kept[run.name], run.objective)]
    groups = {
        "pool_mi_nats": _groups_of(points, book.scale),
        "batch_mi_nats": _groups_of([p for p in points if p.objective not in NO_LOG_RATIO], book.scale),
    }
    text = (
        "Over the evaluations within runs: Pearson and Spearman correlation of kNN accuracy with the bound against a "
        "pool (best beta) and with the bound of the training batches (mean over those logged since the evaluation "
        "before); both are on training images. At equal epochs, each value is taken less the mean over all runs of "
        f"its length at that time. kNN here is on a sample of {book.scale.eval_samples:,} test images, with "
        f"{_neighbours(book.scale.eval_samples)} among as many training images. 95 % intervals are from a bootstrap "
        f"that draws whole cells (objective and batch size, with all seeds); fewer than {FEWEST_CELLS} have none, and "
        f"fewer than {FEWEST_RUNS} runs no correlation. {joined(NO_LOG_RATIO)} is left out of all that has mini-batch "
        "MI: its scores are no log-ratios, so that a bound of its batches says nothing; pool MI is that of cosines."
    )
    says = [_information_verdict(groups[quantity[0]], quantity) for quantity in MEASURED_AGAINST]
    claims = _information_claims(groups)
    cannot = (
        "cause. Within a run accuracy and bounds both grow with time, so correlations over all checkpoints are those "
        "of time as well. At one time they are not, and compare few objectives and temperatures."
    )
    findings = _findings(claims, cannot, says)
    shown = {"mi_accuracy": figures.information_figure(points)} if points else {}
    rows = [_information_row(name, {q: of[name] for q, of in groups.items()}) for name in groups["pool_mi_nats"]]
    tables = [text, record.markdown(rows)]
    return _page(book, "Mutual information against accuracy", runs, stages, tables, findings, shown)


MEASURED_AGAINST = (
    ("pool_mi_nats", "pool MI", "0.65"),
    ("batch_mi_nats", "mini-batch MI", "none"),
)


ALL, AT_ONE_TIME, FIRST, LAST = "all", "all, at equal epochs", "first evaluation", "last evaluation"
WITHIN = "InfoNCE and FlatNCE"


def _groups_of(points: Sequence[Checkpoint], scale: Scale) -> dict[str, list[Checkpoint]]:
    """Which checkpoints are looked at together; first and last are those of runs of full length."""
    longest = max((p.of for p in points), default=0)
    whole = [p for p in points if p.of == longest]
    groups = {
        ALL: list(points),
        WITHIN: [p for p in points if p.objective.startswith(("InfoNCE", "FlatNCE"))],
        AT_ONE_TIME: at_equal_epochs(points),
        FIRST: [p for p in whole if p.number == 1],
        LAST: [p for p in whole if p.is_last],
    }
    groups |= {f"batch {b}": [p for p in points if p.batch == b] for b in (scale.small, *scale.between, scale.large)}
    families = dict.fromkeys(map(family, (*NCE, *BETWEEN, *SWEPT, *OTHERS)))
    groups |= {name: [p for p in points if family(p.objective) == name] for name in families}
    return {name: group for name, group in groups.items() if group or name == ALL or name in NO_LOG_RATIO}


def _information_row(name: str, by_quantity: Mapping[str, Sequence[Checkpoint]]) -> Row:
    points = by_quantity["pool_mi_nats"]
    row = {"checkpoints": name, "points": str(len(points)), "runs": str(len({p.run for p in points}))}
    for quantity, label, _ in MEASURED_AGAINST:
        found = correlation(by_quantity[quantity], quantity)
        row[f"Pearson, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.pearson)
        row[f"Spearman, {label}"] = NOT_RUN if not points else "" if found is None else _correlation(found.spearman)
    return row


def _information_claims(groups: Mapping[str, Mapping[str, Sequence[Checkpoint]]]) -> list[Claim]:
    claims = []
    for (quantity, label, _), related in zip(MEASURED_AGAINST, (True, False), strict=True):
        for group, words in {ALL: "over all checkpoints", AT_ONE_TIME: "at equal epochs", LAST: "at the end"}.items():
            found = correlation(groups[quantity].get(group, ()), quantity)
            if found is None:
                continue
            measured = {"Pearson": found.pearson, "Spearman": found.spearman}
            if group == ALL and not related:
                measured = {name: _contradiction(score) for name, score in measured.items()}
            what = "going with" if related or group != ALL else "unrelated to"
            literature = ", as the literature has it" if group == ALL else ""
            claims.append(Claim(label, f"{what} kNN accuracy {words}{literature}", measured))
    return claims


def _contradiction(score: Score) -> Score:
    """Below zero where a correlation is told from none; that there is none cannot be shown."""
    return Score(0.0, -1.0, 1.0) if score.low <= 0 <= score.high or math.isnan(score.low) else Score(-1.0, -1.0, -1.0)


def _information_verdict(groups: Mapping[str, Sequence[Checkpoint]], quantity: tuple[str, str, str]) -> str | None:
    name, label, told = quantity
    found = correlation(groups[ALL], name)
    if found is None:
        return None
    parts = [f"{_correlation(found.pearson)} over all {found.points} checkpoints of {found.runs} runs"]
    others = {
        WITHIN: "over those of InfoNCE and FlatNCE",
        AT_ONE_TIME: "at equal epochs",
        FIRST: "at the first evaluation of runs of full length",
        LAST: "at their last",
    }
    for group, words in others.items():
        other = correlation(groups.get(group, ()), name)
        if other is not None:
            parts.append(f"{_correlation(other.pearson)} {words}{_doubt(other.pearson)}")
    return f"Pearson's correlation of kNN accuracy with {label} is {joined(parts)}; the literature has {told}."


def _doubt(score: Score) -> str:
    return " (not told from zero)" if score.low <= 0 <= score.high else ""


def divergence_page(book: Book) -> Page:
    simclr = _find(book.cells("grid"), SIMCLR, book.scale.large)
    assert simclr is not None, "the plan has it"
    all_seeds = book.cells("fdiv", "fdiv-more")
    table = [simclr, *(all_seeds if any(len(cell.runs) > 1 for cell in all_seeds) else book.cells("fdiv"))]
    spread, judge = book.spread, Judge.over([(cell, simclr) for cell in table[1:]], book.spread)
    scores = {
        cell.objective: {p: s for p in figures.PROTOCOLS if (s := mean_accuracy(cell, p, spread[p])) is not None}
        for cell in table
    }
    says = [
        *(_against_simclr(table, simclr, protocol, judge) for protocol in figures.PROTOCOLS),
        f"The literature's linear accuracies after long training (f-MICL): {_literature()}.",
    ]
    claims = _divergence_claims(table, simclr, judge)
    cannot = (
        "what these objectives reach with learning rates and constants of their own; all take the rate tuned on "
        f"InfoNCE and the constants of their papers.{_resolved(table, simclr, judge)} Where an objective has one "
        "seed, its interval rests on the spread of InfoNCE and FlatNCE, as if its own were no larger."
    )
    findings = _findings(claims, cannot, says)
    text = (
        f"Batch {book.scale.large}, {book.scale.epochs:g} epochs. f-MICL with the Gaussian kernel; SimCLR is InfoNCE "
        f"at temperature {NCE[SIMCLR]['temperature']:g}, from the grid. {_protocols(book.scale)} {_intervals(judge)} "
        f"{GAUGES} ESS, bound and beta are taken at the scale an objective trains with."
    )
    rows = [_cell_row(cell, spread) for cell in table]
    shown = {"f_divergences": figures.objectives_figure(scores)} if sum(map(bool, scores.values())) > 1 else {}
    runs = [run for cell in (*table[1:], simclr) for run in cell.planned]
    return _page(book, "f-divergences", runs, ["fdiv", "grid"], [text, record.markdown(rows)], findings, shown)


def _literature() -> str:
    named = {"SimCLR" if name == SIMCLR else name: value for name, value in LITERATURE_LINEAR.items()}
    return joined(f"{name} {value:.2f}" for name, value in named.items())


def _divergence_claims(table: Sequence[Cell], simclr: Cell, judge: Judge) -> list[Claim]:
    """On which side of SimCLR the literature has each by linear probe, and which are above it by kNN."""
    claims = []
    for cell in table:
        gains = {} if cell is simclr else _gains(cell, simclr, judge)
        if "linear" in gains:
            above = LITERATURE_LINEAR[cell.objective] > LITERATURE_LINEAR[SIMCLR]
            predicate = f"{'above' if above else 'below'} SimCLR by linear probe, as the literature has it"
            claims.append(Claim(cell.objective, predicate, {"linear": _times(gains["linear"], 1 if above else -1)}))
        if "kNN" in gains:
            seeds = " (one seed each)" if len(cell.runs) == 1 else ""
            claims.append(Claim(cell.objective, f"above SimCLR by kNN{seeds}", {"kNN": gains["kNN"]}))
    return claims


def _times(score: Score, sign: int) -> Score:
    low, high = sorted((sign * score.low, sign * score.high))
    return Score(sign * score.value, low, high)


def _resolved(table: Sequence[Cell], simclr: Cell, judge: Judge) -> str:
    """What the literature's differences would need."""
    gains = [gain for cell in table if cell is not simclr and (gain := judge.difference(cell, simclr, "linear"))]
    if not gains or math.isnan(gains[0].low):
        return ""
    gap = max(abs(value - LITERATURE_LINEAR[SIMCLR]) for value in LITERATURE_LINEAR.values())
    half = max(100 * (gain.high - gain.low) / 2 for gain in gains)
    return f" The literature's differences from SimCLR are at most {gap:.1f} points, these runs resolve {half:.1f}."


def _against_simclr(table: Sequence[Cell], simclr: Cell, protocol: str, judge: Judge) -> str | None:
    done = [cell for cell in table if cell.values(protocol)]
    if len(done) < 2 or not simclr.values(protocol):
        return None
    best = max(done, key=lambda cell: statistics.fmean(cell.values(protocol)))
    verdicts: dict[str, list[str]] = {}
    for cell in done:
        gain = judge.difference(cell, simclr, protocol)
        if cell is not simclr and gain is not None:
            verdicts.setdefault(_verdict(gain), []).append(f"{cell.objective} ({_points(gain)})")
    highest = 100 * statistics.fmean(best.values(protocol))
    listed = "; ".join(f"{verdict.removeprefix('is ')} SimCLR: {joined(names)}" for verdict, names in verdicts.items())
    return f"By {figures.PROTOCOLS[protocol]}, {best.objective} is highest ({highest:.1f} %). In points, {listed}."


def speed_page(book: Book) -> Page:
    runs, screened, found = book.runs("fast"), book.runs("screen"), _measured_times(book)
    rows = [_speed_row(book, run, found.get(run.name, [])) for run in runs]
    config = runs[0].config()
    voting = min(config.eval_samples, book.scale.images)
    text = (
        "One run at a time. Minutes on the wall since the command was given, with start, graph capture, checkpoints "
        "and evaluations, up to the first evaluation at that accuracy; in brackets, without the evaluations up to "
        f"there. kNN along a run has {_neighbours(voting)} among {voting:,} training images; the accuracies after it "
        "have all of them, and 95 % intervals over test images. Commands as the one above name all that differs from "
        "the recipe."
    )
    tables = [text, record.markdown(rows), *_screen_section(book, screened)]
    says = [
        *(_reached(found, goal) for goal in GOALS),
        _beside_public(book, found),
    ]
    ends = {run.name: score for run in book.there(runs) if (score := run.score("knn")) is not None}
    claims = [
        Claim(name, f"ending above {100 * goal:.0f} % by kNN", {"kNN": _less(score, goal)})
        for goal in GOALS
        for name, score in ends.items()
    ]
    cannot = (
        f"spread, with one seed for each run; and an evaluation comes only every {_every(found)} epochs, so times are "
        "upper limits. The learning rate falls to zero over a run, so a shorter run may reach a goal earlier than the "
        "first part of a longer one. Which size of views is best for long runs was not tried, nor other GPUs, so that "
        "what of the distance to public results is the GPU's is not known."
    )
    findings = _findings(claims, cannot, says)
    shown = {"time_to_accuracy": figures.speed_figure(found, GOALS)} if found else {}
    return _page(book, "Time to accuracy", runs, ["screen", "fast"], tables, findings, shown)


def _measured_times(book: Book) -> dict[str, list[Time]]:
    return {run.name: times(run) for run in book.there(book.runs("fast"))}


def _speed_row(book: Book, run: PlannedRun, measured: Sequence[Time]) -> Row:
    there, config = book.kept.get(run.name), run.config()
    row = {"run": run.name, "objective": run.objective, "batch": str(run.batch)}
    row |= {"epochs": f"{config.epochs:g}", **_rate(run)}
    for protocol, name in figures.PROTOCOLS.items():
        score = None if there is None else there.score(protocol)
        row[f"{name} %"] = NOT_RUN if score is None else _bracketed(score)
    ten = None if there is None else there.score("knn", name=TEN_NEIGHBOURS)
    row["kNN %, 10 with equal votes"] = NOT_RUN if ten is None else _bracketed(ten)
    for goal in GOALS:
        reached = first_reaching(measured, goal)
        row[f"minutes to {100 * goal:.0f} % kNN"] = NOT_RUN if there is None else _minutes(reached)
    return row | {"minutes in all": _minutes(measured[-1]) if measured else NOT_RUN}


def _less(score: Score, goal: float) -> Score:
    return Score(score.value - goal, score.low - goal, score.high - goal)


def _beside_public(book: Book, found: Mapping[str, Sequence[Time]]) -> str:
    told = (
        "A public single-file SimCLR (dkobak/simclr-cifar10, batch 512) states 83.2 % by kNN after 100 epochs and 20 "
        "minutes, and 90.3 % after 500 epochs and 99 minutes, on an A100; there the 10 nearest neighbours by cosine "
        "vote without weights."
    )
    own = [
        f"{100 * score.value:.1f} % after {found[run.name][-1].wall / 60:.1f} minutes ({run.name})"
        for run in book.there(book.runs("fast"))
        if (score := run.score("knn", name=TEN_NEIGHBOURS)) is not None and found[run.name]
    ]
    return f"{told} By the same measure, here: {joined(own)}; 90.3 % was not tried for." if own else told


def _screen_section(book: Book, runs: Sequence[PlannedRun]) -> list[str]:
    """What was tried for the recipe, on held-out images."""
    rows, scores = [], {}
    for run in runs:
        config, there = run.config(), book.kept.get(run.name)
        row = {"run": run.name, "pixels of a view": str(_pixels(run)), "epochs": f"{config.epochs:g}"}
        row |= {"updates": f"{run.steps:,}"}
        row["seconds, shared"] = NOT_RUN if there is None else f"{times(there)[-1].training:.0f}"
        rows.append(_held_out_row(book, run, row))
        if there is not None:
            scores[_pixels(run)] = _held_out(there, book.scale)
    scale, voting = book.scale, book.scale.images - book.scale.held_out
    text = (
        "Smaller views cost less arithmetic and bring what they show to the size it has in whole images. Here epochs "
        "are in inverse proportion to the pixels of a view, which is the same arithmetic but not the same time: the "
        f"seconds are of runs that shared the GPU. Tried without {scale.held_out:,} of the training images, on which "
        f"kNN is measured at their full size ({_neighbours(voting)} among all others). One seed, 95 % intervals over "
        "the held-out images."
    )
    history = (
        "An earlier screen, 12 epochs of each, tried less grayscale, a head 1024 wide and residual blocks that start "
        "as the identity besides smaller views. Its files were lost, and nothing is taken from it."
    )
    held_out = f"{_held_out_file(scale)} {_made_on(book.there(runs)) or ''}".strip()
    found = _sentences([_size_choice(book, scores)])
    by_hand = f"```sh\n{_by_hand(runs[0])}\n```"
    return ["## What was tried for the recipe", text, by_hand, held_out, record.markdown(rows), *found, history]


def _pixels(run: PlannedRun) -> int:
    """Of a view's side; views as large as the images have the images' 32."""
    return run.config().view_size or 32


def _size_choice(book: Book, scores: Mapping[int, Score]) -> str | None:
    """Whether the size of the recipe was the best of the screen."""
    taken = _pixels(book.runs("fast")[0])
    if taken not in scores:
        return None
    best = max(scores, key=lambda size: scores[size].value)
    if best == taken:
        return f"The recipe takes the best of these, {taken} pixels."
    more = 100 * (scores[best].value - scores[taken].value)
    told = "not told apart" if taken in _alike(scores, best, book.short_deviation) else "told apart"
    return (
        f"The recipe takes {taken} pixels. {best} pixels had {more:.1f} points more here, which is {told}; no longer "
        "run decided between them."
    )


def _every(found: Mapping[str, Sequence[Time]]) -> str:
    gaps = {f"{measured[0].epoch:g}" for measured in found.values() if measured}
    return joined(sorted(gaps, key=float)) or "few"


def _reached(found: Mapping[str, Sequence[Time]], goal: float) -> str | None:
    if not found:
        return None
    reached = {name: time for name, measured in found.items() if (time := first_reaching(measured, goal)) is not None}
    if not reached:
        best = max(time.knn for measured in found.values() for time in measured)
        return f"No run reached {100 * goal:.0f} % by kNN along the way; the highest was {100 * best:.1f} %."
    name = min(reached, key=lambda run: reached[run].wall)
    ends = {name: time for name, measured in found.items() if (time := ending_at(measured, goal)) is not None}
    says = f"{100 * goal:.0f} % by kNN took {_spoken(reached[name])}, by {name}"
    if not ends:
        return f"{says}; no run ends there."
    shortest = min(ends, key=lambda run: ends[run].wall)
    return f"{says}; the shortest run that ends at or above it is {shortest}, of {_spoken(ends[shortest])}."


def _spoken(time: Time) -> str:
    return f"{time.wall / 60:.1f} minutes on the wall ({time.training / 60:.1f} without evaluations)"


def accuracy(cell: Cell, protocol: str, spread: Spread) -> str:
    """Mean ± deviation over seeds [95 %], in percent."""
    score, values = mean_accuracy(cell, protocol, spread), cell.values(protocol)
    if score is None:
        return NOT_RUN
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * score.value:.1f}{deviation} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _cell_row(cell: Cell, spread: Spreads) -> Row:
    runs, rate = cell.runs, cell.planned[0].config().learning_rate
    return {
        "objective": cell.objective,
        "batch": str(cell.batch),
        "updates": f"{cell.steps:,}",
        "rate": f"{runs[0].config.learning_rate if runs else rate:g}",
        "kNN %": accuracy(cell, "knn", spread["knn"]),
        "linear %": accuracy(cell, "linear", spread["linear"]),
        "ESS": _gauge(gauge(runs, "ess")),
        "bound / ceiling": _gauge(gauge(runs, "saturation")),
        "beta": NOT_RUN if (beta := gauge(runs, "beta")) is None else f"{beta:.{1 if beta >= 0.1 else 4}f}",
        "gradient SNR": _gauge(signal_to_noise(runs)),
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
    findings: Sequence[str],
    shown: Mapping[str, Figure],
) -> Page:
    pictures = [f"![{name.replace('_', ' ')}]({name}.png)" for name in shown]
    return Page("\n\n".join([f"# {title}", _origin(book, runs, stages), *tables, *pictures, *findings]) + "\n", shown)


def _findings(claims: Sequence[Claim], cannot: str, says: Sequence[str | None]) -> list[str]:
    """What held, what did not, what cannot be shown; then the numbers."""
    return ["## Findings", in_short(claims, cannot), "\n".join(f"- {text}" for text in says if text is not None)]


def _origin(book: Book, runs: Sequence[PlannedRun], stages: Sequence[str]) -> str:
    """Commands, hardware, commits and seeds."""
    scale = "" if book.scale is FULL else f" --plan {book.scale.name}"
    needed = [stage for stage in stages if not STAGES[stage].optional]
    told = f" {_held_out_file(book.scale)}" if runs[0].held_out else ""
    lines = [
        f"`python -m benchmarks.cifar10 run{scale} --stage {' '.join(needed)} --data DIR --results NEW`, then "
        f"`python -m benchmarks.cifar10 tables{scale} --results NEW`; without `--results`, what is kept here is not "
        f"made again. {len(book.there(runs))} of {len(runs)} runs are there; raw metrics in `runs/`.{told} By hand, "
        "for example (on a GPU repetitions differ in their last digits):",
        f"```sh\n{_by_hand(runs[0])}\n```",
    ]
    return "\n\n".join([*lines, *_sentences([_made_on(book.there(runs))])])


def _by_hand(run: PlannedRun) -> str:
    places = {"data": HELD_OUT} if run.held_out else {}
    lines = [shlex.join(["flatclr", *run.arguments(**places, out=run.name)])]
    if run.protocols:
        lines.append(f"flatclr eval {run.name} --protocol {','.join(run.protocols)}")
    return "\n".join(lines)


def _made_on(there: Sequence[KeptRun]) -> str | None:
    """Hardware and versions, and by commit seeds and how many ran at a time."""
    started = [(run, process) for run in there for process in run.processes if process["does"] == "train"]
    if not started:
        return None
    machines = sorted({f"{p.get('gpu', 'no GPU')}, {p['cores']} cores of {p['cpu']}" for _, p in started})
    versions = sorted({f"PyTorch {run.environment['torch']}" for run in there})
    parts = []
    for commit in sorted({process["commit"] for _, process in started}):
        of_commit = [(run, process) for run, process in started if process["commit"] == commit]
        seeds = sorted({run.config.seed for run, _ in of_commit})
        named = f"seed{'s' if len(seeds) > 1 else ''} {joined(map(str, seeds))}"
        parts.append(f"commit {commit}, {named}, {_sharing([process for _, process in of_commit])}")
    return f"On {joined(machines)}; {joined(versions)}; {'; '.join(parts)}."


def _held_out_file(scale: Scale) -> str:
    return (
        f"`run` first writes `{HELD_OUT}` beside the runs: the training images, {scale.held_out:,} of them (the same "
        "each time) in the place of the test images."
    )


def _sharing(processes: Sequence[Mapping[str, Any]]) -> str:
    """How many at a time, and how they had the GPU together; older runs do not say it themselves."""
    text = f"{joined(str(count) for count in sorted({process['beside'] + 1 for process in processes}))} at a time"
    beside = [process.get("multi_process_service") for process in processes if process["beside"]]
    if None in beside:
        text += " (how they shared the GPU is in [runs/README.md](runs/README.md))"
    if True in beside:
        text += ", together by NVIDIA's multi-process service"
    return text


def _protocols(scale: Scale) -> str:
    """What the accuracies at the end of runs are."""
    return (
        f"kNN is on frozen features before the head: {_neighbours(scale.images)} among all {scale.images:,} training "
        "images, for every test image. Linear is a probe on the same features, its penalty chosen on training images."
    )


def _neighbours(bank: int) -> str:
    return f"the {neighbours_for(bank)} nearest by cosine voting with weight exp(cosine / 0.07)"


def _intervals(judge: Judge) -> str:
    together = f" that hold together with 95 % (Bonferroni, {judge.comparisons} of them by kNN and by linear probe)"
    return (
        "Accuracies are means ± standard deviations over seeds, with 95 % intervals in brackets that cover test images "
        "and seeds; for these the deviation over seeds is pooled over all InfoNCE and FlatNCE runs of full length, "
        "since the seeds of one say little of it. Differences are those on these test images, with intervals over "
        f"seeds{together if judge.comparisons > 1 else ''}."
    )


def _seed_counts(table: Sequence[Cell]) -> str:
    counts = sorted({len(cell.runs) for cell in table if cell.runs})
    return f" seeds for each cell: {joined(map(str, counts))};" if counts else ""


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
    if math.isnan(score.low):
        return f"{score.value:.2f}"
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"


def _gauge(value: float | None, digits: int = 2) -> str:
    return NOT_RUN if value is None else f"{value:.{digits}f}"


def _minutes(time: Time | None) -> str:
    return "not reached" if time is None else f"{time.wall / 60:.1f} ({time.training / 60:.1f})"


PAGES: dict[str, Callable[[Book], Page]] = {
    "learning_rate": rate_page,
    "batch_size": batch_page,
    "ess": ess_page,
    "mi_accuracy": information_page,
    "f_divergences": divergence_page,
    "time_to_accuracy": speed_page,
}
