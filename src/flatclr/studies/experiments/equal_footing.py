"""Every rival at its own best scalar: does what FlatNCE wins at a small batch survive tuning?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import OF_ALL_ARMS, all_above, less, percent
from flatclr.studies.judging import (
    FAILED,
    HELD,
    NOT_RUN,
    OPEN,
    Verdict,
    above,
    below,
    score_text,
    together,
)
from flatclr.studies.literature import FLATNCE, THIS
from flatclr.studies.methods import (
    D_HEL,
    EPOCHS,
    FLAT_ESS,
    FLAT_NCE,
    INFO_NCE,
    PER_ANCHOR,
    SIG_LIP,
    SOG_CLR,
    TUNING_EPOCHS,
    VIC_REG,
    Method,
)
from flatclr.studies.study import FILLED_BY, Claim, Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS_CHANGE

SMALL, LARGE = 32, 256
FIRST, SECOND = (INFO_NCE, FLAT_ESS, FLAT_NCE, SOG_CLR), (D_HEL, SIG_LIP, VIC_REG, PER_ANCHOR)  # of tiers 1 and 2
BATCHES = (16, 64, 512)  # of tier 3
NAME, TIER, TIERS = "equal-footing", "tier", (1, 2, 3)
ROOM = 0.5  # points: "equals"
CLOSE = 1.0  # points: cells that a sentence compares and that differ by less have a second seed


class Cell(NamedTuple):
    """A method at a batch size, which is to have runs at its default and at its best scalar."""

    method: Method
    batch: int
    tier: int

    @property
    def default_arm(self) -> str:
        return self.method.arm(self.method.default, self.batch)

    def tuned_arm(self, found: Found) -> str | None:
        """At the best of the values that were tried; None before all were."""
        best = self.method.best(found, self.batch)
        return None if best is None else self.method.arm(best, self.batch)


CELLS = (  # long runs first
    *(Cell(method, batch, 1) for method in FIRST for batch in (SMALL, LARGE)),
    *(Cell(method, batch, 2) for method in SECOND for batch in (SMALL, LARGE)),
    *(Cell(method, batch, 3) for batch in BATCHES for method in (*FIRST, *SECOND)),
)


def cell_of(method: Method, batch: int) -> Cell:
    return next(cell for cell in CELLS if (cell.method, cell.batch) == (method, batch))


INFO_SMALL, INFO_LARGE = cell_of(INFO_NCE, SMALL), cell_of(INFO_NCE, LARGE)
ESS_SMALL, ESS_LARGE = cell_of(FLAT_ESS, SMALL), cell_of(FLAT_ESS, LARGE)
RIVALS = tuple(cell_of(method, SMALL) for method in (*FIRST, *SECOND) if method is not FLAT_ESS)


def plan(of: Plan) -> list[Run]:
    """What decides about the small batch comes first: InfoNCE tuned, FlatNCE under ESS control as it is.

    Runs of tiers that are not asked for count where they are kept.
    """
    tier = of.options[TIER]
    if tier not in TIERS:
        raise ValueError(f"{TIER} must be 1, 2 or 3, got {tier!r}; each takes in those before it.")
    cells = [cell for cell in CELLS if not of.quick or (cell.tier == 1 and cell.method in FIRST[:2])]
    info, ess = ([cell for cell in cells if cell.tier == 1 and cell.method is method] for method in FIRST[:2])
    runs = [*_tuning(info, of), *_defaults(ess, of), *_tuned(info, of), *_second_seeds(cells, main_arms(of.found), of)]
    for level in TIERS:
        group = [cell for cell in cells if cell.tier == level]
        first = of.found.first(len(of.seeds))  # what a further seed says must not take back that it was wanted
        close = {arm for pair in compared(first, level) if needs_seeds(first, *pair) for arm in pair}
        more = [*_tuning(group, of), *_tuned(group, of), *_defaults(group, of), *_second_seeds(cells, close, of)]
        runs += [replace(run, asked=level <= tier) for run in more]
    named: dict[str, Run] = {}
    for run in runs:
        named.setdefault(run.name, run)  # as it is named first
    return list(named.values())


def _tuning(cells: Iterable[Cell], of: Plan) -> Iterator[Run]:
    for method, batch, _ in cells:
        yield from (method.held_out_run(value, batch, quick=of.quick) for value in method.values)


def _defaults(cells: Iterable[Cell], of: Plan) -> Iterator[Run]:
    for seed in of.seeds:
        yield from (method.run(method.default, batch, seed, quick=of.quick) for method, batch, _ in cells)


def _tuned(cells: Iterable[Cell], of: Plan) -> Iterator[Run]:
    for seed in of.seeds:
        for method, batch, _ in cells:
            best = method.best(of.found, batch)
            if best is not None:
                yield method.run(best, batch, seed, quick=of.quick)


def _second_seeds(cells: Sequence[Cell], arms: set[str], of: Plan) -> Iterator[Run]:
    for method, batch, _ in cells:
        for value in method.values:
            if method.arm(value, batch) in arms:
                yield method.run(value, batch, len(of.seeds), quick=of.quick)


def main_arms(found: Found) -> set[str]:
    """Those that the first three sentences compare; two seeds of each say how far seeds lie apart."""
    tuned = (INFO_SMALL.tuned_arm(found), INFO_LARGE.tuned_arm(found))
    return {ESS_SMALL.default_arm, *(arm for arm in tuned if arm is not None)}


def compared(found: Found, level: int) -> list[tuple[str, str]]:
    """The finished arms that a sentence compares, as far as they are known."""
    info_small, info_large, ess_small, ess_large = (
        cell.tuned_arm(found) for cell in (INFO_SMALL, INFO_LARGE, ESS_SMALL, ESS_LARGE)
    )
    pairs = [
        (info_small, info_large),
        (ESS_SMALL.default_arm, info_large),
        (ESS_SMALL.default_arm, info_small),
        (ESS_SMALL.default_arm, ess_small),
        (ESS_LARGE.default_arm, ess_large),
        *((rival.tuned_arm(found), ess_small) for rival in RIVALS if rival.tier <= level),
    ]
    return [(one, other) for one, other in pairs if one and other and found.of(one) and found.of(other)]


def needs_seeds(found: Found, one: str, other: str) -> bool:
    """Whether two finished arms need a second seed to be compared."""
    return one != other and (abs(less(found, one, other, "knn").value) < CLOSE or {one, other} <= main_arms(found))


def table(found: Found) -> list[Row]:
    return [_row(cell, found) for cell in CELLS if _has_any(cell, found)]


def _row(cell: Cell, found: Found) -> Row:
    method, batch, _ = cell
    tried = [
        f"{value:g}: {percent(found, method.held_out_arm(value, batch), 'knn')}"
        for value in method.values
        if found.of(method.held_out_arm(value, batch))
    ]
    best = method.best(found, batch)
    return {
        "method": method.name,
        "batch": str(batch),
        "default": f"{method.scalar} {method.default:g}",
        **_accuracies(found, cell.default_arm, "default"),
        f"held-out kNN %, {TUNING_EPOCHS:g} epochs": "; ".join(tried) or "empty",
        "best": "empty" if best is None else f"{best:g}",
        **_accuracies(found, cell.tuned_arm(found), "best"),
    }


def _accuracies(found: Found, arm: str | None, kind: str) -> dict[str, str]:
    there = arm is not None and bool(found.of(arm))
    seeds = f" ({len(found.of(arm))} seeds)" if arm is not None and len(found.of(arm)) > 1 else ""
    return {
        f"{label} %, {kind}": percent(found, arm, number) + seeds if arm is not None and there else "empty"
        for number, label in {"knn": "kNN", "linear": "linear"}.items()
    }


def _has_any(cell: Cell, found: Found) -> bool:
    method, batch, _ = cell
    return any(
        found.of(arm)
        for value in method.values
        for arm in (method.arm(value, batch), method.held_out_arm(value, batch))
    )


def empty(found: Found) -> list[Row]:
    """What the table lacks, cell by cell; a shorter run never fills one."""
    rows: list[Row] = []
    first = found.first(1)
    to_repeat = {arm for pair in compared(first, TIERS[-1]) if needs_seeds(first, *pair) for arm in pair}
    for cell in CELLS:
        lacking = _lacking(cell, found)
        arms = {value: cell.method.arm(value, cell.batch) for value in cell.method.values}
        lacking += [f"second seed at {v:g}" for v, arm in arms.items() if arm in to_repeat and len(found.of(arm)) < 2]
        if lacking:
            command = f"`flatclr study {NAME} --set {TIER}={cell.tier}`"
            what = {"method": cell.method.name, "batch": str(cell.batch), "tier": str(cell.tier)}
            rows.append({**what, "empty": ", ".join(lacking), FILLED_BY: command})
    return rows


def _lacking(cell: Cell, found: Found) -> list[str]:
    method, batch, _ = cell
    tried = [value for value in method.values if found.of(method.held_out_arm(value, batch))]
    parts = [f"{len(method.values) - len(tried)} of {len(method.values)} values held out"]
    parts = parts if len(tried) < len(method.values) else []
    parts += [] if found.of(cell.default_arm) else ["default"]
    tuned = cell.tuned_arm(found)
    return parts + ([] if tuned is not None and found.of(tuned) else ["best"])


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for method, colour in zip((*FIRST, *SECOND), COLOURS, strict=False):
        cells = sorted((cell for cell in CELLS if cell.method is method), key=lambda cell: cell.batch)
        for arms, style in (
            ({cell.batch: cell.tuned_arm(found) for cell in cells}, "o-"),
            ({cell.batch: cell.default_arm for cell in cells}, "x:"),
        ):
            there = {batch: arm for batch, arm in arms.items() if arm is not None and found.of(arm)}
            accuracy = [100 * found.mean(arm, "knn").value for arm in there.values()]
            label = method.name if style == "o-" else None
            axes.plot(list(there), accuracy, style, color=colour, label=label, linewidth=1, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch size")
    axes.set_ylabel("kNN % on test images")
    axes.set_title("Tuned (circles) and as it comes (crosses)")
    axes.legend(fontsize=6)
    return {"figure": figure}


def lacks(found: Found, *pairs: tuple[str | None, str | None]) -> str:
    """What has to be run before these can be compared; "" where nothing has."""
    for one, other in pairs:
        if one is None or other is None:
            return "Not all values have been tried on held-out images."
        absent = next((arm for arm in (one, other) if not found.of(arm)), None)
        if absent is not None:
            return f"{absent} is not there."
        if min(len(found.of(one)), len(found.of(other))) < 2 and needs_seeds(found.first(1), one, other):
            return f"{one} and {other}: a second seed is to come."
    return ""


def judge_loss(found: Found) -> Verdict:
    small, large = INFO_SMALL.tuned_arm(found), INFO_LARGE.tuned_arm(found)
    if lack := lacks(found, (small, large)):
        return Verdict(NOT_RUN, lack)
    assert small is not None
    assert large is not None
    scores = {number: less(found, small, large, number) for number in ("knn", "linear")}
    return Verdict(together([below(score) for score in scores.values()]), _shown(small, large, scores), scores["knn"])


def judge_saving(found: Found) -> Verdict:
    ours, large = ESS_SMALL.default_arm, INFO_LARGE.tuned_arm(found)
    lost = judge_loss(found)
    if lack := lost.says if lost.word == NOT_RUN else lacks(found, (ours, large)):
        return Verdict(NOT_RUN, lack)
    assert large is not None
    scores = {number: less(found, ours, large, number) for number in ("knn", "linear")}
    shown = _shown(ours, large, scores)
    if lost.word != HELD:
        return Verdict(OPEN, f"There is no saving to show, since tuned InfoNCE shows no loss: {shown}", scores["knn"])
    return Verdict(together([above(score, -ROOM) for score in scores.values()]), shown, scores["knn"])


def judge_gain(found: Found) -> Verdict:
    ours, theirs = ESS_SMALL.default_arm, INFO_SMALL.tuned_arm(found)
    if lack := lacks(found, (ours, theirs)):
        return Verdict(NOT_RUN, lack)
    assert theirs is not None
    score = less(found, ours, theirs, "knn")
    return Verdict(above(score), _shown(ours, theirs, {"knn": score}), score)


def judge_untuned(found: Found) -> Verdict:
    cells = [ESS_SMALL, ESS_LARGE]
    pairs = [(cell.default_arm, cell.tuned_arm(found)) for cell in cells]
    if lack := lacks(found, *pairs):
        return Verdict(NOT_RUN, lack)
    word, scores = all_above(found, [(default, str(tuned)) for default, tuned in pairs], "knn", -ROOM)
    shown = " ".join(_shown(d, str(t), {"knn": s}) for (d, t), s in zip(pairs, scores, strict=True))
    return Verdict(word, shown, min(scores, key=lambda s: s.value))


def judge_rivals(found: Found) -> Verdict:
    ours = ESS_SMALL.tuned_arm(found)
    least = 0 if any(kept.settings["quick"] for kept in found) else 1  # the tier that must be there
    tried = [rival for rival in RIVALS if rival.tier <= least or _has_any(rival, found)]
    pairs = [(rival.tuned_arm(found), ours) for rival in tried]
    if lack := lacks(found, *pairs):
        return Verdict(NOT_RUN, lack)
    word, scores = all_above(found, [(str(ours), str(arm)) for arm, _ in pairs], "knn", -ROOM)
    shown = "; ".join(f"{arm} {score_text(score, 1)}" for (arm, _), score in zip(pairs, scores, strict=True))
    return Verdict(word, f"kNN points, {ours} less others: {shown}.", min(scores, key=lambda score: score.value))


def _shown(one: str, other: str, scores: dict[str, Score]) -> str:
    parts = " and ".join(f"{score_text(score, 1)} {number} points" for number, score in scores.items())
    return f"{one} less {other}: {parts}."


@dataclass(frozen=True)
class Sentence:
    """A claim, and how its verdict reads."""

    claim: Claim
    holds: str
    fails: str
    question: str

    def says(self, verdict: Verdict) -> str:
        if verdict.word in (HELD, FAILED):
            return f"{self.holds if verdict.word == HELD else self.fails} {verdict.says}"
        state = "is not known yet" if verdict.word == NOT_RUN else "cannot be told from these runs"
        return f"Whether {self.question} {state}. {verdict.says}"


TUNED_SOURCE = f"{FLATNCE}, Fig. 3, with InfoNCE tuned"


def _claim(source: str, statement: str, criterion: str, judge: Callable[[Found], Verdict]) -> Claim:
    """The judge itself says what else it needs, which follows from what tuning finds."""
    first = [
        cell.method.held_out_arm(value, cell.batch) for cell in (INFO_LARGE, INFO_SMALL) for value in INFO_NCE.values
    ]
    return Claim(source, statement, criterion, judge, lambda run: run.arm in first)


SENTENCES = (
    Sentence(
        _claim(
            TUNED_SOURCE,
            f"InfoNCE at batch {SMALL} is below InfoNCE at batch {LARGE}, its temperature tuned at each.",
            "difference below 0 by kNN and linear",
            judge_loss,
        ),
        "A small batch costs InfoNCE accuracy even when its temperature is tuned at each batch.",
        "A small batch costs InfoNCE nothing once its temperature is tuned at each batch.",
        "a small batch costs a tuned InfoNCE accuracy",
    ),
    Sentence(
        _claim(
            TUNED_SOURCE,
            f"FlatNCE under ESS control, untuned, at batch {SMALL} equals InfoNCE, tuned, at batch {LARGE}.",
            f"the claim before holds, and the difference is above -{ROOM:g} points by kNN and linear",
            judge_saving,
        ),
        '"A batch eight times smaller" survives tuning.',
        '"A batch eight times smaller" does not survive tuning.',
        '"a batch eight times smaller" survives tuning',
    ),
    Sentence(
        _claim(
            THIS,
            f"At batch {SMALL}, FlatNCE under ESS control, untuned, is above InfoNCE, tuned.",
            "difference of kNN above 0",
            judge_gain,
        ),
        "At the small batch FlatNCE under ESS control beats InfoNCE, which has its temperature tuned.",
        "At the small batch FlatNCE under ESS control does not beat InfoNCE once that has its temperature tuned.",
        "FlatNCE under ESS control beats a tuned InfoNCE at the small batch",
    ),
    Sentence(
        _claim(
            THIS,
            f"The ESS target needs no tuning: {FLAT_ESS.default:g} equals the best of "
            f"{', '.join(f'{value:g}' for value in FLAT_ESS.values)}.",
            f"kNN of the default less the best above -{ROOM:g} points at batch {SMALL} and {LARGE}",
            judge_untuned,
        ),
        "The ESS target needs no tuning.",
        "The ESS target gains from tuning.",
        "the ESS target gains from tuning",
    ),
    Sentence(
        _claim(
            THIS,
            f"At batch {SMALL}, no other method is above FlatNCE under ESS control, all tuned.",
            f"kNN of it less each other that was run above -{ROOM:g} points",
            judge_rivals,
        ),
        "Tuned alike, no other method that was run is above FlatNCE under ESS control at the small batch.",
        "Tuned alike, another method is above FlatNCE under ESS control at the small batch.",
        "another method is above FlatNCE under ESS control at the small batch, all tuned alike",
    ),
)


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    return [sentence.says(verdict) for sentence, verdict in zip(SENTENCES, verdicts, strict=True)]


STUDY = Study(
    name=NAME,
    title="Every method on equal footing",
    source=f"{FLATNCE}, Fig. 3, and the methods that came after it",
    experiment=(
        f"ResNet-18, CIFAR-10. Each method has one scalar: a temperature, the ESS target, VICReg's variance weight. "
        f"Three values of it are tried for {TUNING_EPOCHS:g} epochs on training images, measured by kNN on 5,000 of "
        f"them that are held out; the default and the best are trained for {EPOCHS:g} epochs and measured on test "
        f"images. Tier 1: {'; '.join(method.name for method in FIRST)}; batch {SMALL} and {LARGE}. Tier 2: "
        f"{'; '.join(method.name for method in SECOND)}. Tier 3: all at batch {', '.join(map(str, BATCHES))}. A second "
        "seed of what the first three sentences compare, and wherever a sentence compares two cells that differ by "
        f"less than {CLOSE:g} point of kNN."
    ),
    changed=(
        f"{SMALL_VIEWS_CHANGE}; "
        "every rival is tuned, which the paper did not do; one learning rate for each batch size, chosen on held-out "
        "images with views of 32 pixels for InfoNCE, used for all, which may not suit the others; SogCLR, whose "
        "gradient is that of FlatNCE times the temperature, has it divided by the temperature. Intervals "
        "are of the spread over seeds of all arms together, since two seeds of one arm have too wide an interval."
    ),
    claims=tuple(sentence.claim for sentence in SENTENCES),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="about half a GPU hour for tier 1, 1 with tier 2, 2.5 with tier 3, all with --jobs 8 that share the GPU",
    options={TIER: 3},
    empty=empty,
    summary=summary,
    brackets=OF_ALL_ARMS,
)
