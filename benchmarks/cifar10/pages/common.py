"""What all pages have in common: where a page comes from, cells as rows, numbers as text."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined, judged
from benchmarks.cifar10.data import HELD_OUT
from benchmarks.cifar10.kept import KeptRun, held_out_knn
from benchmarks.cifar10.pages.book import NOT_RUN, Book, Row, Spreads
from benchmarks.cifar10.plan import FULL, STAGES, PlannedRun, Scale
from benchmarks.cifar10.summary import (
    Cell,
    Judge,
    Spread,
    gauge,
    last_evaluation,
    mean_accuracy,
    signal_to_noise,
)
from flatclr.evaluation.intervals import Score, wilson
from flatclr.evaluation.knn import neighbours_for
from flatclr.training.instruments import SNR_FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAUGES = (
    "ESS, bound / ceiling, beta and gradient SNR are means over the last quarter of a run. Gradient SNR has the share "
    f"of noise taken out, which alone reads {SNR_FLOOR:.2f} from eight batches.",
    "Pool MI is InfoNCE's bound at the best beta, against a pool of the same size for every batch size. Pool and "
    "mini-batches are training images.",
)
NOTHING, UNJUDGED = "shows no clear difference by", "differs, with too few seeds for an interval, by"
Tried = TypeVar("Tried", int, float)


@dataclass(frozen=True)
class Page:
    text: str
    figures: Mapping[str, Figure]


def listed(*texts: str, under: str = "") -> str:
    """One point of a list for each text, below a first line where there is one.

    >>> print(listed("One.", "Two.", under="- Both:"))
    - Both:
      - One.
      - Two.
    """
    if not under:
        return "\n".join(f"- {text}" for text in texts)
    return "\n".join([under, *(f"  - {text}" for text in texts)])


def held_out_score(run: KeptRun, scale: Scale) -> Score:
    return wilson(held_out_knn(run), scale.held_out)


def held_out_row(book: Book, run: PlannedRun, row: Row) -> Row:
    there = book.kept.get(run.name)
    return {**row, "held-out kNN %": NOT_RUN if there is None else score_text(held_out_score(there, book.scale))}


def rate_cell(run: PlannedRun) -> Row:
    return {"learning rate": f"{run.config().learning_rate:g}"}


def alike_to(best: Tried, scores: Mapping[Tried, Score], spread: Spread) -> list[Tried]:
    """What has an accuracy not told apart from the best, with one seed each.

    As if on other images, where the same ones would do with less.
    """
    seeds = spread.half_width(1, 1) if spread.freedom else 0.0

    def needed(score: Score) -> float:
        images = math.hypot(score.high - score.low, scores[best].high - scores[best].low) / 2
        return math.hypot(images, seeds)

    return [
        tried
        for tried, score in sorted(scores.items())
        if tried != best and scores[best].value - score.value <= needed(score)
    ]


def times_sign(score: Score, sign: int) -> Score:
    low, high = sorted((sign * score.low, sign * score.high))
    return Score(sign * score.value, low, high)


def gains_of(one: Cell, other: Cell, judge: Judge) -> dict[str, Score]:
    """By every protocol: one may find what another does not."""
    found = {name: judge.difference(one, other, protocol) for protocol, name in figures.PROTOCOLS.items()}
    return {name: gain for name, gain in found.items() if gain is not None}


def spoken(objective: str) -> str:
    """An objective's label as it stands in a sentence.

    >>> spoken("InfoNCE, temperature 0.5"), spoken("FlatNCE, ESS 0.25")
    ('InfoNCE at temperature 0.5', 'FlatNCE at ESS 0.25')
    """
    return objective.replace(", ", " at ")


def gains_text(gains: Mapping[str, Score]) -> str:
    """What differences show, as the verb of a sentence; brackets are intervals.

    >>> gains_text({"kNN": Score(0.05, 0.04, 0.06), "linear": Score(0.02, 0.01, 0.03)})
    'gains 5.0 kNN points [4.0, 6.0] and 2.0 linear points [1.0, 3.0]'
    >>> gains_text({"kNN": Score(-0.05, -0.06, -0.04), "linear": Score(0.01, -0.01, 0.03)})
    'loses 5.0 kNN points [4.0, 6.0] and shows no clear difference by linear (+1.0 [-1.0, +3.0])'
    """
    parts: dict[str, list[str]] = {}
    for name, gain in gains.items():
        verb, what = _shown(name, gain)
        parts.setdefault(verb, []).append(what)
    return joined(f"{verb} {joined(what, 'or' if verb == NOTHING else 'and')}" for verb, what in parts.items())


def _shown(name: str, gain: Score) -> tuple[str, str]:
    """The verb and its object."""
    if math.isnan(gain.low):
        return UNJUDGED, f"{points_text(gain)} {name} points"
    if gain.low <= 0 <= gain.high:
        return NOTHING, f"{name} ({points_text(gain)})"
    size = times_sign(gain, 1 if gain.low > 0 else -1)
    return "gains" if gain.low > 0 else "loses", score_text(size, f" {name} points")


def accuracy(cell: Cell, protocol: str, spread: Spread) -> str:
    """Mean ± deviation over seeds [95 %], in percent."""
    score, values = mean_accuracy(cell, protocol, spread), cell.values(protocol)
    if score is None:
        return NOT_RUN
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * score.value:.1f}{deviation} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def cell_row(cell: Cell, spread: Spreads) -> Row:
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


def made_page(
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


def findings_of(claims: Sequence[Claim], cannot: str, says: Sequence[str | None]) -> list[str]:
    """What held, what did not and what stays open; the numbers; what the runs cannot show."""
    found = [record.markdown(judged(claims))] if claims else []
    numbers = "\n".join(f"- {text}" for text in those_said(says))
    return ["## Findings", *found, *([numbers] if numbers else []), "## What these runs cannot show", cannot]


def _origin(book: Book, runs: Sequence[PlannedRun], stages: Sequence[str]) -> str:
    """Commands, hardware, commits and seeds."""
    scale = "" if book.scale is FULL else f" --plan {book.scale.name}"
    made = {run.stage for run in runs}
    shown = (stage for stage in stages if not STAGES[stage].optional or stage in made)
    needed = list(dict.fromkeys(["lr", *shown]))  # gives the rates
    command = "python -m benchmarks.cifar10"
    lines = [
        f"{len(book.there(runs))} of {len(runs)} runs are kept, with their raw metrics in `runs/`. These commands make "
        "all of them again; without `--results` those that are kept are not repeated.",
        f"```sh\n{command} run{scale} --stage {' '.join(needed)} --data DIR --results NEW\n"
        f"{command} tables{scale} --results NEW\n```",
        *([held_out_file(book.scale)] if runs[0].held_out else []),
        "These make one of them by hand. On a GPU, repetitions are not bit-identical.",
        f"```sh\n{commands_of(runs[0])}\n```",
    ]
    return "\n\n".join([*lines, *those_said([made_on(book.there(runs))])])


def commands_of(run: PlannedRun) -> str:
    places = {"data": HELD_OUT} if run.held_out else {}
    lines = [shlex.join(["flatclr", *run.arguments(**places, out=run.name)])]
    if run.protocols:
        lines.append(f"flatclr eval {run.name} --protocol {','.join(run.protocols)}")
    return "\n".join(lines)


def made_on(there: Sequence[KeptRun]) -> str | None:
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


def held_out_file(scale: Scale) -> str:
    return (
        f"`run` first writes `{HELD_OUT}` beside the runs. It holds the training images, {scale.held_out:,} of them "
        "(the same each time) in the place of the test images."
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


def protocols(scale: Scale) -> tuple[str, str]:
    """What the accuracies at the end of runs are."""
    return (
        f"kNN classifies every test image by frozen features before the head: {neighbours(scale.images)} among all "
        f"{scale.images:,} training images.",
        "Linear is a probe on the same features. Its penalty is chosen on training images.",
    )


def neighbours(bank: int) -> str:
    return f"the {neighbours_for(bank)} nearest by cosine voting with weight exp(cosine / 0.07)"


def intervals(judge: Judge) -> tuple[str, str]:
    """What the brackets of accuracies are, and those of differences."""
    together = f" They hold together with 95 % (Bonferroni, {judge.comparisons} of them by kNN and by linear probe)."
    return (
        "Accuracies are means ± standard deviations over seeds. Brackets are 95 % intervals that cover test images and "
        "seeds. Their deviation over seeds is pooled over all InfoNCE and FlatNCE runs of full length: the seeds of "
        "one cell say little.",
        f"Differences are on these test images, with intervals over seeds.{together if judge.comparisons > 1 else ''}",
    )


def seed_counts(table: Sequence[Cell]) -> str:
    counts = sorted({len(cell.runs) for cell in table if cell.runs})
    return f" Seeds of each cell: {joined(map(str, counts))}." if counts else ""


def those_said(given: Sequence[str | None]) -> list[str]:
    return [text for text in given if text is not None]


def points_text(gain: Score) -> str:
    if math.isnan(gain.low):
        return f"{100 * gain.value:+.1f}"
    return f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def score_text(score: Score, unit: str = "") -> str:
    return f"{100 * score.value:.1f}{unit} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _gauge(value: float | None) -> str:
    return NOT_RUN if value is None else f"{value:.2f}"
