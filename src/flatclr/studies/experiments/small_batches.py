"""FlatNCE paper, Fig. 3 and 7: does FlatNCE at a small batch equal InfoNCE at a large one?"""

from __future__ import annotations

from matplotlib.figure import Figure

from flatclr.evaluation.intervals import Score
from flatclr.studies.accuracies import OF_ALL_ARMS, best_arm, has_stopped, is_held_out, knn_figure, less, percent
from flatclr.studies.judging import HELD, NOT_RUN, OPEN, Verdict, above, below, score_text, together
from flatclr.studies.literature import FLATNCE
from flatclr.studies.methods import EPOCHS, FLAT_ESS, FLAT_NCE, INFO_NCE, TUNING_EPOCHS, shared_run
from flatclr.studies.study import Claim, Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS_CHANGE

SMALL, LARGE = 32, 256
HALVES = (16, 128)  # the paper's other pair
ROOM = 0.5  # points: "equals"
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.6)
BEST_TARGETS = (0.2, 0.4)  # the paper's, from and to
TARGET_EPOCHS = 50.0
OURS = FLAT_ESS.arm(FLAT_ESS.default, SMALL)
THIRD = 2  # the seed that is added while an interval holds the threshold


def target_arm(target: float) -> str:
    return f"ESS target {target:g}"


def plan(of: Plan) -> list[Run]:
    """Temperatures are chosen on held-out images, one seed each; then comes what the main claim compares."""
    batches, values = (SMALL, LARGE), INFO_NCE.values[:1] if of.quick else INFO_NCE.values
    runs = [INFO_NCE.held_out_run(value, batch, quick=of.quick) for batch in batches for value in values]
    best = {batch: INFO_NCE.best(of.found, batch, values) for batch in batches}
    tuned = {batch: value for batch, value in best.items() if value is not None}

    def of_seed(seed: int) -> list[Run]:
        ours = FLAT_ESS.run(FLAT_ESS.default, SMALL, seed, quick=of.quick)
        return [ours, *(INFO_NCE.run(value, batch, seed, quick=of.quick) for batch, value in tuned.items())]

    runs += [run for seed in of.seeds for run in of_seed(seed)]
    for seed in of.seeds:
        runs += [FLAT_ESS.run(FLAT_ESS.default, HALVES[0], seed, quick=of.quick)]
        runs += [INFO_NCE.run(tuned[LARGE], HALVES[1], seed, quick=of.quick)] if LARGE in tuned else []
        runs += [
            shared_run(
                target_arm(target),
                seed,
                FLAT_ESS.settings(target),
                batch=SMALL,
                epochs=TARGET_EPOCHS,
                quick=of.quick,
            )
            for target in (TARGETS[:2] if of.quick else TARGETS)
        ]
        runs += [] if of.quick else [method.run(value, b, seed, quick=False) for method, value, b in LATER]
    # at the end: how far seeds lie apart is not known before, and what is known later would take the wish back
    if len(of.seeds) == THIRD and all(run.name in of.found for run in runs) and is_close(of.found.first(THIRD)):
        runs += of_seed(THIRD)
    return list({run.name: run for run in runs}.values())  # each where it is named first


LATER = [
    *((INFO_NCE, value, batch) for value in reversed(INFO_NCE.values) for batch in (SMALL, LARGE)),
    *((FLAT_NCE, FLAT_NCE.default, batch) for batch in (SMALL, LARGE)),
    (FLAT_ESS, FLAT_ESS.default, LARGE),
]


def table(found: Found) -> list[Row]:
    return [
        {
            "run": arm,
            "kNN %": percent(found, arm, "knn"),
            "linear %": percent(found, arm, "linear"),
            "ESS at the end": "" if has_stopped(found, arm) else f"{found.one(arm).numbers['log'][-1]['ess']:.2f}",
            "minutes": f"{found.mean(arm, 'minutes').value:.1f}",
            "seeds": str(len(found.of(arm))),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    return {
        "figure": knn_figure(
            found, [arm for arm in found.arms if not is_held_out(arm) and arm not in map(target_arm, TARGETS)]
        )
    }


def tuned_arm(found: Found, tuned_at: int, batch: int) -> str | None:
    """InfoNCE at a batch, at the temperature that is best on held-out images at another."""
    tried = tuple(value for value in INFO_NCE.values if found.of(INFO_NCE.held_out_arm(value, tuned_at)))
    best = INFO_NCE.best(found, tuned_at, tried) if tried else None
    return None if best is None else INFO_NCE.arm(best, batch)


def main_scores(found: Found) -> tuple[dict[str, Score], dict[str, Score]] | None:
    """What the small batch costs InfoNCE, and what FlatNCE is less InfoNCE at the large one; None: runs are lacking."""
    small, large = (tuned_arm(found, batch, batch) for batch in (SMALL, LARGE))
    if small is None or large is None or not all(found.of(arm) for arm in (small, large, OURS)):
        return None
    lost, kept = ({number: less(found, one, large, number) for number in ("knn", "linear")} for one in (small, OURS))
    return lost, kept


def is_close(found: Found) -> bool:
    """Whether an interval that decides holds its threshold; asked of the first seeds, whatever a third one says."""
    scores = main_scores(found)
    if scores is None:
        return False
    lost, kept = scores
    return OPEN in {*map(below, lost.values()), *(above(score, -ROOM) for score in kept.values())}


def judge_main(found: Found) -> Verdict:
    scores = main_scores(found)
    if scores is None:
        return Verdict(NOT_RUN, "Not all that it compares is there.")
    lost, kept = scores
    small, large = (tuned_arm(found, batch, batch) for batch in (SMALL, LARGE))
    seeds = [len(found.of(str(arm))) for arm in (small, large, OURS)]
    if min(seeds) < max(seeds) or (min(seeds) == THIRD and is_close(found)):
        return Verdict(NOT_RUN, "Another seed is to come.")
    shown = "; ".join(
        f"{number}: {small} less {large} {score_text(lost[number], 1)} points, {OURS} less it "
        f"{score_text(kept[number], 1)}"
        for number in lost
    )
    if any(below(score) != HELD for score in lost.values()):
        return Verdict(OPEN, f"No saving to show: {shown}.", lost["knn"], "points")
    return Verdict(together([above(score, -ROOM) for score in kept.values()]), f"{shown}.", kept["knn"], "points")


def judge_smaller(found: Found) -> Verdict:
    ours, theirs = FLAT_ESS.arm(FLAT_ESS.default, HALVES[0]), tuned_arm(found, LARGE, HALVES[1])
    if theirs is None or not len(found.of(ours)) == len(found.of(theirs)) > 0:
        return Verdict(NOT_RUN, "Not all that it compares is there.")
    scores = {number: less(found, ours, theirs, number) for number in ("knn", "linear")}
    shown = ", ".join(f"{score_text(score, 1)} points of {number}" for number, score in scores.items())
    word = together([above(score, -ROOM) for score in scores.values()])
    return Verdict(word, f"{ours} less {theirs}: {shown}.", scores["knn"], "points")


def judge_target(found: Found) -> Verdict:
    """The best within the paper's range less the best outside it."""
    low, high = BEST_TARGETS
    tried = [target for target in TARGETS if found.of(target_arm(target))]
    inside, outside = (
        best_arm(found, [target_arm(t) for t in tried if (low <= t <= high) == within], "knn")
        for within in (True, False)
    )
    if inside is None or outside is None:
        return Verdict(OPEN, "No run within the range, or none outside it, has an accuracy.")
    score = less(found, inside, outside, "knn")
    return Verdict(above(score), f"{inside} less {outside}: {score_text(score, 1)} points of kNN.", score, "points")


def needs_main(run: Run) -> bool:
    """Temperatures are among what it needs; which full runs follow from them, the judge says."""
    return run.arm == OURS or run.arm in [INFO_NCE.held_out_arm(t, b) for t in INFO_NCE.values for b in (SMALL, LARGE)]


STUDY = Study(
    name="small-batches",
    title="Small batches on CIFAR-10",
    source=f"{FLATNCE}, Fig. 3 and 7",
    experiment=(
        f"ResNet-18, CIFAR-10, {EPOCHS:g} epochs: InfoNCE, its temperature chosen from 0.1, 0.2 and 0.5 at each batch, "
        f"and FlatNCE with the ESS held at 0.25, at batch {SMALL} and {LARGE}; then batch {HALVES[0]} and {HALVES[1]}, "
        f"ESS targets at {TARGET_EPOCHS:g} epochs, the other temperatures and FlatNCE at 0.1. kNN along, kNN and "
        "linear probe on test images at the end."
    ),
    changed=(
        f"ResNet-18 instead of 50 and {SMALL_VIEWS_CHANGE}, so that it fits one GPU; "
        "learning rates by batch from held-out images with views of 32 pixels, the same for all objectives; InfoNCE's "
        f"temperature chosen by held-out kNN of runs of {TUNING_EPOCHS:g} epochs; at batch {HALVES[1]} it is that of "
        f"{LARGE}; {EPOCHS:g} epochs, since the paper says that models are alike before epoch 50. Intervals are of the "
        "spread over seeds of all arms of one length together; a third seed is added where, all other runs made, one "
        f"holds the threshold of the main claim. InfoNCE is not run at batch {HALVES[0]}, so that the claim of "
        f"{HALVES[0]} and {HALVES[1]} does not ask whether there was a loss to win back."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 3",
            "FlatCLR at batch 32 equals SimCLR at batch 256.",
            "(a) InfoNCE at 32 below InfoNCE at 256, interval below 0, by kNN and linear; (b) FlatNCE with ESS at 32 "
            "less InfoNCE at 256: lower end above -0.5 points. Both: held; (a) not shown: no saving to show",
            judge_main,
            needs_main,
        ),
        Claim(
            f"{FLATNCE}, Fig. 3",
            "FlatCLR at batch 16 equals SimCLR at batch 128.",
            "FlatNCE with ESS at 16 less InfoNCE at 128, by kNN and linear: lower end above -0.5 points",
            judge_smaller,
            lambda run: run.arm == FLAT_ESS.arm(FLAT_ESS.default, HALVES[0]),
        ),
        Claim(
            f"{FLATNCE}, Fig. 7",
            "The best ESS target is 0.2 to 0.4.",
            "kNN of the best target there less the best outside, interval above 0",
            judge_target,
            lambda run: run.arm in map(target_arm, TARGETS),
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 1 GPU hour with --jobs 8 that share the GPU, less where equal-footing was run",
    brackets=OF_ALL_ARMS,
)
