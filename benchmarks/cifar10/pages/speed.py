"""Time to accuracy, and what was tried for the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined
from benchmarks.cifar10.pages.book import NOT_RUN, Book, Row
from benchmarks.cifar10.pages.common import (
    Page,
    alike_to,
    commands_of,
    findings_of,
    held_out_file,
    held_out_row,
    held_out_score,
    listed,
    made_on,
    made_page,
    neighbours,
    rate_cell,
    score_text,
    those_said,
)
from benchmarks.cifar10.plan import PlannedRun, Scale
from benchmarks.cifar10.summary import Time, ending_at, first_reaching, times
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.protocols import TEN_NEIGHBOURS

GOALS = (0.80, 0.85)


def speed_headline(book: Book) -> list[str]:
    found = _measured_times(book)
    if not found:
        return []
    runs = [run for run in book.runs("fast") if run.name in found]
    rows = [_speed_row(book, run, found[run.name]) for run in runs]
    told = ("epochs", "kNN %", "linear %", *(f"minutes to {100 * goal:.0f} % kNN" for goal in GOALS), "minutes in all")
    machines = joined(sorted({p["gpu"] for run in book.there(runs) for p in run.processes if "gpu" in p}))
    intro = (
        f"Time to accuracy of `flatclr train --recipe {book.scale.fast_recipe} --epochs N` on {machines or 'a CPU'}, "
        "one run each. Minutes are wall-clock time with start and evaluations; brackets leave the evaluations out."
    )
    return [intro, record.markdown([{name: row[name] for name in told} for row in rows])]


def speed_page(book: Book) -> Page:
    runs, screened, found = book.runs("fast"), book.runs("screen"), _measured_times(book)
    rows = [_speed_row(book, run, found.get(run.name, [])) for run in runs]
    config = runs[0].config()
    voting = min(config.eval_samples or book.scale.images, book.scale.images)
    text = listed(
        "One run at a time. Minutes are wall-clock time since the command was given, with start, graph capture, "
        "checkpoints and evaluations, up to the first evaluation at that accuracy. Brackets leave the evaluations out.",
        f"kNN along a run: {neighbours(voting)} among {voting:,} training images. The accuracies after a run use all "
        "of them and have 95 % intervals over test images.",
        "The command above names all that differs from the recipe.",
    )
    tables = [text, record.markdown(rows), *_screen_section(book, screened)]
    says = [
        *(_reached(found, goal) for goal in GOALS),
        _beside_public(book, found),
    ]
    ends = {run.name: score for run in book.there(runs) if (score := run.score("knn")) is not None}
    claims = [
        Claim(name, f"ends above {100 * goal:.0f} % by kNN", {"kNN": _less(score, goal)})
        for goal in GOALS
        for name, score in ends.items()
    ]
    cannot = (
        f"Spread: each run has one seed. An evaluation comes only every {_every(found)} epochs, so times are upper "
        "limits. The learning rate falls to zero over a run, so a shorter run may reach a goal earlier than the first "
        "part of a longer one. Which size of views is best for long runs was not tried. Neither were other GPUs, so "
        "the GPU's share of the distance to public results is not known."
    )
    findings = findings_of(claims, cannot, says)
    shown = {"time_to_accuracy": figures.speed_figure(found, GOALS)} if found else {}
    return made_page(book, "Time to accuracy", runs, ["screen", "fast"], tables, findings, shown)


def _measured_times(book: Book) -> dict[str, list[Time]]:
    return {run.name: times(run) for run in book.there(book.runs("fast"))}


def _speed_row(book: Book, run: PlannedRun, measured: Sequence[Time]) -> Row:
    there, config = book.kept.get(run.name), run.config()
    row = {"run": run.name, "objective": run.objective, "batch": str(run.batch)}
    row |= {"epochs": f"{config.epochs:g}", **rate_cell(run)}
    for protocol, name in figures.PROTOCOLS.items():
        score = None if there is None else there.score(protocol)
        row[f"{name} %"] = NOT_RUN if score is None else score_text(score)
    ten = None if there is None else there.score("knn", name=TEN_NEIGHBOURS)
    row["kNN %, 10 with equal votes"] = NOT_RUN if ten is None else score_text(ten)
    for goal in GOALS:
        reached = first_reaching(measured, goal)
        row[f"minutes to {100 * goal:.0f} % kNN"] = NOT_RUN if there is None else _minutes(reached)
    return row | {"minutes in all": _minutes(measured[-1]) if measured else NOT_RUN}


def _less(score: Score, goal: float) -> Score:
    return Score(score.value - goal, score.low - goal, score.high - goal)


def _beside_public(book: Book, found: Mapping[str, Sequence[Time]]) -> str:
    told = (
        "A public single-file SimCLR (dkobak/simclr-cifar10, batch 512) states 83.2 % by kNN after 100 epochs and 20 "
        "minutes, and 90.3 % after 500 epochs and 99 minutes, on an A100. There the 10 nearest neighbours by cosine "
        "vote without weights."
    )
    own = [
        f"{100 * score.value:.1f} % after {found[run.name][-1].wall / 60:.1f} minutes ({run.name})"
        for run in book.there(book.runs("fast"))
        if (score := run.score("knn", name=TEN_NEIGHBOURS)) is not None and found[run.name]
    ]
    return f"{told} By the same measure these runs have {joined(own)}. None was made for 90.3 %." if own else told


def _screen_section(book: Book, runs: Sequence[PlannedRun]) -> list[str]:
    """What was tried for the recipe, on held-out images."""
    rows, scores = [], {}
    for run in runs:
        config, there, pixels = run.config(), book.kept.get(run.name), _pixels(run, book.scale)
        row = {"run": run.name, "pixels of a view": str(pixels), "epochs": f"{config.epochs:g}"}
        row |= {"updates": f"{run.steps:,}"}
        row["seconds, shared"] = NOT_RUN if there is None else f"{times(there)[-1].training:.0f}"
        rows.append(held_out_row(book, run, row))
        if there is not None:
            scores[pixels] = held_out_score(there, book.scale)
    scale, voting = book.scale, book.scale.images - book.scale.held_out
    text = listed(
        "Smaller views cost less arithmetic, and what they show has about the size it has in whole images.",
        "Here epochs are in inverse proportion to the pixels of a view: the same arithmetic, but not the same time. "
        "The seconds are of runs that shared the GPU.",
        f"{scale.held_out:,} of the training images are held out. kNN is measured on them at their full size: "
        f"{neighbours(voting)} among all others. One seed; 95 % intervals are over the held-out images.",
    )
    history = (
        "An earlier screen of 12 epochs each tried smaller views, less grayscale, a head 1024 wide and residual blocks "
        "that start as the identity. Its files were lost, and nothing is taken from it."
    )
    held_out = f"{held_out_file(scale)} {made_on(book.there(runs)) or ''}".strip()
    found = those_said([_size_choice(book, scores)])
    by_hand = f"```sh\n{commands_of(runs[0])}\n```"
    return ["## What was tried for the recipe", text, by_hand, held_out, record.markdown(rows), *found, history]


def _pixels(run: PlannedRun, scale: Scale) -> int:
    """Of a view's side."""
    return run.config().view_size or scale.pixels


def _size_choice(book: Book, scores: Mapping[int, Score]) -> str | None:
    """Whether the size of the recipe was the best of the screen."""
    taken = _pixels(book.runs("fast")[0], book.scale)
    if taken not in scores:
        return None
    best = max(scores, key=lambda size: scores[size].value)
    if best == taken:
        return f"The recipe takes the best of these, {taken} pixels."
    more = 100 * (scores[best].value - scores[taken].value)
    told = "not told apart" if taken in alike_to(best, scores, book.short_spread) else "told apart"
    return (
        f"The recipe takes {taken} pixels. {best} pixels had {more:.1f} points more here, which is {told}. No longer "
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
    says = f"{name} was the first at {100 * goal:.0f} % by kNN, after {_spoken(reached[name])}."
    if not ends:
        return f"{says} No run ends there."
    shortest = min(ends, key=lambda run: ends[run].wall)
    return f"{says} The shortest run that ends at or above it is {shortest}, of {_spoken(ends[shortest])}."


def _spoken(time: Time) -> str:
    return f"{time.wall / 60:.1f} minutes ({time.training / 60:.1f} without evaluations)"


def _minutes(time: Time | None) -> str:
    return "not reached" if time is None else f"{time.wall / 60:.1f} ({time.training / 60:.1f})"
