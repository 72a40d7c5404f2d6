"""FlatNCE paper, Fig. 3 and 7: does FlatNCE at a small batch equal InfoNCE at a large one?"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from flatclr.studies.accuracies import knn_figure, percent
from flatclr.studies.judging import HELD, OPEN, Verdict, above, below, score_text
from flatclr.studies.literature import FLATNCE
from flatclr.studies.methods import EPOCHS, TUNING_EPOCHS, shared_run
from flatclr.studies.study import Claim, Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS_CHANGE

SMALL, LARGE = 32, 256
ROOM = -0.005  # "equals": not worse by more than half a point
INFO: dict[str, dict[str, Any]] = {f"InfoNCE {t:g}": {"objective": "infonce", "temperature": t} for t in (0.5, 0.2)}
FLAT = {"FlatNCE, ESS 0.25": {"objective": "flatnce", "ess_target": 0.25}}
LATER = {
    "InfoNCE 0.1": {"objective": "infonce", "temperature": 0.1},
    "FlatNCE 0.1": {"objective": "flatnce", "temperature": 0.1},
}
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.6)
TARGET_EPOCHS = 50.0
ESS_FLAT = next(iter(FLAT))


def arm_of(name: str, batch: int) -> str:
    return f"{name}, batch {batch}"


def target_arm(target: float) -> str:
    return f"ESS target {target:g}"


def held_out_arm(name: str, batch: int) -> str:
    return f"held out: {arm_of(name, batch)}"


def plan(of: Plan) -> list[Run]:
    """First what the main claim needs, then the others; temperatures are chosen on held-out images, one seed each."""

    def run(arm: str, own: dict[str, Any], batch: int, seed: int, epochs: float, *, held_out: bool = False) -> Run:
        return shared_run(arm, seed, own, batch=batch, epochs=epochs, quick=of.quick, held_out=held_out)

    batches, info = (SMALL, LARGE), dict(list(INFO.items())[-1:]) if of.quick else INFO
    first = [(name, own, batch) for name, own in {**info, **FLAT}.items() for batch in batches]
    runs = [run(arm_of(name, b), own, b, seed, EPOCHS) for seed in of.seeds for name, own, b in first]
    chosen = [] if of.quick else [(name, own, b) for name, own in info.items() for b in batches]
    runs += [run(held_out_arm(name, b), own, b, 0, TUNING_EPOCHS, held_out=True) for name, own, b in chosen]
    later = [(name, own, b) for name, own in ({} if of.quick else LATER).items() for b in batches]
    later += [("InfoNCE 0.2", INFO["InfoNCE 0.2"], 128), (ESS_FLAT, FLAT[ESS_FLAT], 16)]
    runs += [run(arm_of(name, b), own, b, seed, EPOCHS) for seed in of.seeds for name, own, b in later]
    targets = {t: {"objective": "flatnce", "ess_target": t} for t in (TARGETS[:2] if of.quick else TARGETS)}
    runs += [run(target_arm(t), own, SMALL, s, TARGET_EPOCHS) for s in of.seeds for t, own in targets.items()]
    return runs


def table(found: Found) -> list[Row]:
    return [
        {
            "run": arm,
            "kNN %": percent(found, arm, "knn"),
            "linear %": percent(found, arm, "linear"),
            "ESS at the end": f"{found.one(arm).numbers['log'][-1]['ess']:.2f}",
            "minutes": f"{found.mean(arm, 'minutes').value:.1f}",
            "seeds": str(len(found.of(arm))),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    return {"figure": knn_figure(found, [arm for arm in found.arms if "held out" not in arm and "target" not in arm])}


def best_info_nce(found: Found, batch: int) -> str:
    """By held-out kNN; in a smoke test, which has none, the first."""
    tried = [name for name in INFO if found.of(held_out_arm(name, batch))]
    there = next(name for name in INFO if found.of(arm_of(name, batch)))
    return max(tried, key=lambda name: found.mean(held_out_arm(name, batch), "knn").value, default=there)


def judge_main(found: Found) -> Verdict:
    small, large = (arm_of(best_info_nce(found, batch), batch) for batch in (SMALL, LARGE))
    lost = {number: found.difference(small, large, number) for number in ("knn", "linear")}
    kept = {number: found.difference(arm_of(ESS_FLAT, SMALL), large, number) for number in ("knn", "linear")}
    shown = "; ".join(
        f"{number}: {small} less {large} {score_text(lost[number], 4)}, {arm_of(ESS_FLAT, SMALL)} less it "
        f"{score_text(kept[number], 4)}"
        for number in lost
    )
    if any(below(score) != HELD for score in lost.values()):
        return Verdict(OPEN, f"No saving to show: {shown}.", lost["knn"])
    words = {above(score, ROOM) for score in kept.values()}
    return Verdict(words.pop() if len(words) == 1 else OPEN, f"{shown}.", kept["knn"])


def judge_smaller(found: Found) -> Verdict:
    score = found.difference(arm_of(ESS_FLAT, 16), arm_of("InfoNCE 0.2", 128), "knn")
    return Verdict(above(score, ROOM), f"kNN, share of 1: {score_text(score, 4)}.", score)


def judge_target(found: Found) -> Verdict:
    tried = [target for target in TARGETS if found.of(target_arm(target))]
    best = max(tried, key=lambda target: found.mean(target_arm(target), "knn").value)
    rivals = [target for target in tried if not 0.2 <= target <= 0.4]
    score = min((found.difference(target_arm(best), target_arm(t), "knn") for t in rivals), key=lambda s: s.value)
    word = above(score) if 0.2 <= best <= 0.4 else OPEN
    return Verdict(word, f"The best of {', '.join(map(str, tried))} is {best:g}.", score)


def needs_main(run: Run) -> bool:
    return any(run.arm.endswith(arm_of(name, b)) for name in (*INFO, *FLAT) for b in (SMALL, LARGE))


STUDY = Study(
    name="small-batches",
    title="Small batches on CIFAR-10",
    source=f"{FLATNCE}, Fig. 3 and 7",
    experiment=(
        f"ResNet-18, CIFAR-10, {EPOCHS:g} epochs: InfoNCE at temperature 0.5 and 0.2 and FlatNCE with the ESS held at "
        f"0.25, at batch {SMALL} and {LARGE}; then temperature 0.1, batch 16 and 128, and ESS targets at "
        f"{TARGET_EPOCHS:g} epochs. kNN along, kNN and linear probe on test images at the end."
    ),
    changed=(
        f"ResNet-18 instead of 50 and {SMALL_VIEWS_CHANGE}, so that it fits one GPU; "
        "learning rates by batch from held-out images with views of 32 pixels, the same for all objectives; InfoNCE's "
        "temperature chosen by held-out kNN of runs of 30 epochs; 100 epochs, since the paper says that models are "
        "alike before epoch 50."
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
            "kNN of FlatNCE with ESS at 16 less InfoNCE at 128: lower end above -0.5 points",
            judge_smaller,
            lambda run: run.arm in (arm_of(ESS_FLAT, 16), arm_of("InfoNCE 0.2", 128)),
        ),
        Claim(
            f"{FLATNCE}, Fig. 7",
            "The best ESS target is 0.2 to 0.4.",
            "the best target by kNN is there, and is above those outside, interval above 0",
            judge_target,
            lambda run: run.arm.startswith("ESS target"),
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 1 GPU hour with --jobs 8 that share the GPU, less where equal-footing was run",
)
