"""Which gauge that needs no labels ranks runs and checkpoints as kNN accuracy does?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.plots import COLOURS, new_figure
from flatclr.studies.checkpoints import (
    GAUGES,
    Checkpoint,
    Course,
    course_of_study,
    courses_of_runs,
    courses_of_studies,
    study_files,
)
from flatclr.studies.judging import FAILED, HELD, OPEN, Verdict, above, mean_score, score_text, together
from flatclr.studies.literature import F_MICL, RANK_ME, THIS
from flatclr.studies.ranking import FEWEST, rank_correlation
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import located, training_run

NAME = "model-choice"
GOOD = 0.5  # of a rank correlation, whose whole interval is to be above
KEPT = "kept runs"
STEPS, EVALUATIONS = 300, 5
TRAINED: dict[str, dict[str, Any]] = {  # on a CPU, for a second data set
    **{f"InfoNCE {t:g}": {"objective": "infonce", "temperature": t} for t in (0.05, 0.1, 0.5)},
    "FlatNCE 0.1": {"objective": "flatnce", "temperature": 0.1},
    **{f"FlatNCE, ESS {t:g}": {"objective": "flatnce", "ess_target": t} for t in (0.25, 0.6)},
    "SigLIP 0.1": {"objective": "siglip", "temperature": 0.1},
    "alignment + uniformity": {"objective": "align_uniform"},
}


def plan(of: Plan) -> list[Run]:
    """What is kept now, under a name with its count, so that more of it is looked at again."""
    kept, studies = (Path(located(str(of.options[name]))) for name in ("kept", "studies"))
    count = len(list(kept.glob("*/config.yaml"))) + len(study_files(studies, but=NAME))
    looked = Run(f"{KEPT}, {count} files", 0, measure_kept, dict(of.options))
    schedule = {"steps": STEPS, "batch_size": 32, "log_every": 10, "eval_every": STEPS // EVALUATIONS}
    small = {"encoder_options": {"width": 16}, "eval_samples": 1000, "eval_start": False}
    arms = dict(list(TRAINED.items())[:2]) if of.quick else TRAINED
    trained = [
        training_run(
            arm, seed, {**own, **schedule, **small}, recipe="small", data="embedded", protocols=["knn"], quick=of.quick
        )
        for seed in of.seeds
        for arm, own in arms.items()
    ]
    return [looked, *trained]


def measure_kept(job: Job) -> Numbers:
    """The courses of run directories, and of training runs that studies have kept."""
    runs = courses_of_runs(Path(located(job.settings["kept"])))
    studies = courses_of_studies(Path(located(job.settings["studies"])), but=NAME)
    return {"courses": [_plain(course) for course in (*runs, *studies)]}


def _plain(course: Course) -> dict[str, Any]:
    rows = [[point.epoch, point.knn, *point.gauges.values()] for point in course.checkpoints]
    return {"data": course.data, "alike": course.alike, "kind": course.kind, "rows": rows}


def courses(found: Found) -> list[Course]:
    """Those that were kept before, and those of this study."""
    there: list[Course] = []
    for kept in found:
        for plain in kept.numbers.get("courses", ()):
            points = [Checkpoint(row[0], row[1], dict(zip(GAUGES, row[2:], strict=True))) for row in plain["rows"]]
            there.append(Course(plain["data"], plain["alike"], plain["kind"], tuple(points)))
        there += course_of_study(kept.settings, kept.numbers) if "evaluations" in kept.numbers else ()
    return there


def by_kind(some: Sequence[Course], measure: Callable[[Course], float]) -> list[float]:
    """A number of every course, averaged over those of one kind: they differ in their seeds alone."""
    kinds: dict[str, list[float]] = {}
    for course in some:
        kinds.setdefault(course.kind, []).append(measure(course))
    return [statistics.fmean(values) for values in kinds.values()]


def long_enough(some: Sequence[Course]) -> list[Course]:
    return [course for course in some if len(course.checkpoints) >= FEWEST]


def within_run(some: Sequence[Course], gauge: str) -> Score:
    """The mean over kinds of the rank correlation along a run, with its interval over kinds."""

    def along(course: Course) -> float:
        points = course.checkpoints
        return rank_correlation([point.gauges[gauge] for point in points], [point.knn for point in points]).value

    return mean_score(by_kind(long_enough(some), along))


def gain_over_last(some: Sequence[Course], gauge: str) -> Score:
    """kNN points of the checkpoint that a gauge chooses, less the last one; of equal gauges the later."""

    def gain(course: Course) -> float:
        last = len(course.checkpoints) - 1
        chosen = max(range(last + 1), key=lambda place: (course.checkpoints[place].gauges[gauge], place))
        return 100 * (course.checkpoints[chosen].knn - course.checkpoints[last].knn)

    return mean_score(by_kind(long_enough(some), gain))


def most_to_gain(some: Sequence[Course]) -> Score:
    """kNN points of the best checkpoint, which labels choose, less the last one."""
    return mean_score(
        by_kind(
            long_enough(some),
            lambda c: 100 * (max(point.knn for point in c.checkpoints) - c.checkpoints[-1].knn),
        )
    )


def ends(some: Sequence[Course], gauge: str) -> tuple[list[float], list[float]]:
    """Gauge and kNN at the end, each kind once."""
    return (
        by_kind(some, lambda course: course.checkpoints[-1].gauges[gauge]),
        by_kind(some, lambda course: course.checkpoints[-1].knn),
    )


def between_runs(some: Sequence[Course], gauge: str) -> Score:
    return rank_correlation(*ends(some, gauge))


def lost_by_choice(some: Sequence[Course], gauge: str) -> float:
    """kNN points of the best kind of run, less that of the kind that a gauge chooses."""
    gauges, accuracies = ends(some, gauge)
    return 100 * (max(accuracies) - accuracies[gauges.index(max(gauges))])


def groups(found: Found) -> dict[str, list[Course]]:
    """Courses whose accuracies can be compared, the largest group first; smaller ones than have an interval are out."""
    there: dict[str, list[Course]] = {}
    for course in courses(found):
        there.setdefault(course.alike, []).append(course)
    sizes = {name: len({course.kind for course in some}) for name, some in there.items()}
    return {name: there[name] for name in sorted(there, key=lambda n: -sizes[n]) if sizes[name] >= FEWEST}


def table(found: Found) -> list[Row]:
    everything = courses(found)
    return [
        {
            "gauge": gauge,
            "within a run": _text(within_run(everything, gauge) if long_enough(everything) else None),
            "chosen checkpoint less the last, points": _text(
                gain_over_last(everything, gauge) if long_enough(everything) else None
            ),
            **{f"runs, {name}": _text(between_runs(some, gauge)) for name, some in groups(found).items()},
            "runs of all data sets": _text(between_runs(everything, gauge)),
        }
        for gauge in GAUGES
    ]


def _text(score: Score | None) -> str:
    return "" if score is None else score_text(score)


def notes(found: Found) -> list[str]:
    everything, long = courses(found), long_enough(courses(found))
    counts = ", ".join(
        f"{len([c for c in everything if c.data == data])} of {data}"
        for data in dict.fromkeys(c.data for c in everything)
    )
    lines = [
        f"{len(everything)} runs of {len({c.kind for c in everything})} kinds: {counts}. Numbers are rank correlations "
        "with kNN accuracy unless they say points. Within a run: the mean over kinds of runs with at least "
        f"{FEWEST} evaluations, {len(long)} runs. Runs: the ends of runs that were measured alike and trained for as "
        "long, each kind once."
    ]
    if long:
        most = most_to_gain(everything)
        lines.append(f"The best checkpoint of a run, chosen by labels, is {score_text(most)} points above the last.")
    for name, some in groups(found).items():
        lost = ", ".join(f"{gauge} {lost_by_choice(some, gauge):.1f}" for gauge in GAUGES)
        lines.append(f"Points of kNN that are lost by choosing a kind of run by a gauge alone ({name}): {lost}.")
    return [*lines, _keep_best(found)]


def _keep_best(found: Found) -> str:
    good = [gauge for gauge in GAUGES if _is_worth_it(found, gauge) == HELD]
    if good:
        return f"Good enough to keep a checkpoint by: {', '.join(good)}."
    return (
        "No gauge is good enough to keep a checkpoint by, so `flatclr train` has no option for that: it keeps the last "
        "one."
    )


def _is_worth_it(found: Found, gauge: str) -> str:
    everything = courses(found)
    if not long_enough(everything):
        return OPEN
    gain = gain_over_last(everything, gauge)
    gains = FAILED if gain.high <= 0 else above(gain)  # the last one itself, chosen every time, gains nothing
    return together([above(within_run(everything, gauge), GOOD), gains])


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(8.4, 2.8)
    for axes, gauge in zip(figure.subplots(1, len(GAUGES), sharey=True), GAUGES, strict=True):
        for (name, some), colour in zip(groups(found).items(), COLOURS, strict=False):
            gauges, accuracies = ends(some, gauge)
            axes.plot(gauges, [100 * value for value in accuracies], "o", color=colour, markersize=3, label=name)
        axes.set_xlabel(gauge if gauge != "alignment + uniformity" else "minus (alignment + uniformity)")
    figure.axes[0].set_ylabel("kNN % at the end")
    if groups(found):
        figure.axes[-1].legend(fontsize=5, loc="lower left")
    return {"figure": figure}


def judge_runs(gauge: str) -> Callable[[Found], Verdict]:
    def judge(found: Found) -> Verdict:
        largest = next(iter(groups(found).items()), None)
        if largest is None:
            return Verdict(OPEN, "Too few kinds of runs were measured alike: --set kept=FOLDER takes run directories.")
        name, some = largest
        score = between_runs(some, gauge)
        return Verdict(above(score, GOOD), f"Over {len(ends(some, gauge)[0])} kinds of runs ({name}).", score)

    return judge


def judge_checkpoints(found: Found) -> Verdict:
    everything = courses(found)
    if not long_enough(everything):
        return Verdict(OPEN, f"No run has {FEWEST} evaluations.")
    words = {gauge: _is_worth_it(found, gauge) for gauge in GAUGES}
    gains = {gauge: gain_over_last(everything, gauge) for gauge in GAUGES}
    best = max(GAUGES, key=lambda gauge: (words[gauge] == HELD, gains[gauge].value))
    shown = "; ".join(f"{gauge} {score_text(gains[gauge])}" for gauge in GAUGES)
    most = score_text(most_to_gain(everything))
    says = f"kNN points of the chosen checkpoint less the last: {shown}; of one chosen by labels {most}."
    return Verdict(words[best], says, gains[best], "points")


def needs_kept(run: Run) -> bool:
    return run.arm.startswith(KEPT)


def _run_claims() -> Iterator[Claim]:
    for source, gauge, words in (
        (RANK_ME, "RankMe", "RankMe ranks"),
        (F_MICL, "alignment + uniformity", "Alignment and uniformity together rank"),
        (THIS, "pool MI", "MI against a large pool ranks"),
        (THIS, "ESS", "The ESS of the negatives ranks"),
    ):
        yield Claim(
            source,
            f"{words} runs by accuracy, without labels.",
            f"rank correlation with kNN at the end above {GOOD:g}, of runs measured alike and trained for as long",
            judge_runs(gauge),
            needs_kept,
        )


STUDY = Study(
    name=NAME,
    title="Choosing a model without labels",
    source=f"{RANK_ME}; {F_MICL}; {THIS}",
    experiment=(
        "Four gauges that need no labels: MI against a large pool, RankMe (the effective rank of the features), minus "
        "alignment plus uniformity, and the ESS of the negatives. How each ranks checkpoints of a run, and runs, "
        f"against kNN accuracy: over all runs that are kept, and {len(TRAINED)} small ones on the embedded images. "
        "Runs that learn from labels are left out."
    ),
    changed=(
        "kept runs were made for other questions, and each data set has few kinds of them. Accuracy is that of the "
        "evaluations along training. Runs that differ in their seeds count once; intervals are over kinds, and none is "
        "corrected for the number of correlations shown. The criteria were written before these numbers, but not "
        "blindly: pages on mutual information and on alignment had shown some of the same runs. One rule came after "
        "the kept runs were looked at: a gain of exactly 0 is no gain, where it read 'cannot be told here' before. The "
        "claim of the ESS was added when its correlation was known, by the criterion of the others."
    ),
    claims=(
        *_run_claims(),
        Claim(
            THIS,
            "A gauge that needs no labels chooses a better checkpoint than the last.",
            f"for one of the four: rank correlation with kNN within a run above {GOOD:g}, and kNN of the checkpoint "
            "that it chooses less that of the last above 0",
            judge_checkpoints,
            needs_kept,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="about 15 minutes on two cores",
    options={"kept": "results/cifar10/runs", "studies": "results/studies"},
    notes=notes,
    brackets="95 % intervals over kinds of runs",
)
