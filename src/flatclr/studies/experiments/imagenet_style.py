"""FlatNCE paper, Tables 1, 2 and S3: linear accuracy along training, transfer and few labels, on Imagenette."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from flatclr.evaluation.finetune import PAPER
from flatclr.studies.accuracies import OF_ALL_ARMS, accuracy_rows, knn_figure, less
from flatclr.studies.judging import OPEN, Verdict, above, score_text
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import training_run

ARMS: dict[str, dict[str, Any]] = {
    "SimCLR": {"objective": "infonce", "temperature": 0.1},
    "FlatCLR": {"objective": "flatnce", "ess_target": 0.25},
    "supervised": {"objective": "supervised"},
}
SIMCLR, FLATCLR, SUPERVISED = ARMS
IMAGES, BATCH, EPOCHS = 9_469, 64, 100.0
EPOCH = IMAGES // BATCH
BY_PAPER = f"{PAPER} recipe"
NUMBERS = (
    "linear",
    *(
        f"{name}, {BY_PAPER}"
        for name in ("transfer, linear", "transfer, finetune", "semi, 1% of the labels", "semi, 10% of the labels")
    ),
)


def plan(of: Plan) -> list[Run]:
    schedule = {"batch_size": BATCH, "epochs": EPOCHS, "learning_rate": 0.12, "log_every": EPOCH}
    looks = {"eval_every": 10 * EPOCH, "probe_every": 10 * EPOCH}
    network = {"encoder": "resnet18", "embedding": 256, "image_size": 96}
    config = {**network, **schedule, **({"probe_every": 2} if of.quick else looks)}
    if of.quick:
        del config["image_size"]
    return [
        training_run(
            arm,
            seed,
            {**own, **config},
            data=str(of.options["data"]),
            protocols=["knn", "linear", "transfer", "semi"],
            transfer=str(of.options["transfer_data"]),
            evaluation_recipe=PAPER,
            quick=of.quick,
        )
        for seed in of.seeds
        for arm, own in ARMS.items()
    ]


def table(found: Found) -> list[Row]:
    return accuracy_rows(found, found.arms, NUMBERS)


def draw(found: Found) -> dict[str, Figure]:
    return {"figure": knn_figure(found, found.arms, "linear")}


def judge_by(number: str) -> Any:
    """A judge of the difference of one accuracy."""

    def judge(found: Found) -> Verdict:
        if any(number not in kept.numbers for arm in (FLATCLR, SIMCLR) for kept in found.of(arm)):
            return Verdict(OPEN, f"{number} was not measured.")
        score = less(found, FLATCLR, SIMCLR, number, apart=[SUPERVISED])
        return Verdict(
            above(score), f"FlatCLR less SimCLR: {score_text(score, 1)} points, on Imagenette.", score, "points"
        )

    return judge


CLAIMS = {
    "linear": ("Table 1", "At 100 epochs FlatCLR is 2.61 points of linear top-1 above SimCLR (here on Imagenette)."),
    f"transfer, linear, {BY_PAPER}": (
        "Table 2",
        "Transferred, FlatCLR is 0.18 points above by linear probe (here to CIFAR-10).",
    ),
    f"transfer, finetune, {BY_PAPER}": (
        "Table 2",
        "Transferred, FlatCLR is 0.89 points above fine-tuned (here to CIFAR-10).",
    ),
    f"semi, 1% of the labels, {BY_PAPER}": (
        "Table S3",
        "With 1 % of the labels FlatCLR is 2.91 points above (here on Imagenette).",
    ),
    f"semi, 10% of the labels, {BY_PAPER}": (
        "Table S3",
        "With 10 % of them FlatCLR is 1.89 points above (here on Imagenette).",
    ),
}

STUDY = Study(
    name="imagenet-style",
    title="The ImageNet tables, on Imagenette",
    source=f"{FLATNCE}, Tables 1, 2 and S3",
    experiment=(
        f"SimCLR (InfoNCE at 0.1), FlatCLR (FlatNCE, ESS 0.25) and a supervised run of equal length, ResNet-18, 256 "
        f"features, batch {BATCH}, "
        f"{EPOCHS:g} epochs on Imagenette-96; linear probe every 10 epochs; then a linear probe and fine-tuning on "
        "CIFAR-10, and fine-tuning with 1 % and 10 % of the labels."
    ),
    changed=(
        "Imagenette, not ImageNet: ten classes, 9,469 images of 96 pixels, and ResNet-18. Transfer and few labels go "
        "by `flatclr eval --recipe paper` (Adam, no penalty, 100 epochs, bicubic); learning rates that the paper "
        "leaves open are ours. The supervised run beside them sees all labels and is no part of a claim."
    ),
    claims=tuple(
        Claim(
            f"{FLATNCE}, {place}",
            statement,
            "difference above 0, its interval of the spread over seeds of both arms together",
            judge_by(number),
            needs=lambda run: run.arm in (SIMCLR, FLATCLR),
        )
        for number, (place, statement) in CLAIMS.items()
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="by estimate half a GPU hour, less with --jobs 6 that share the GPU; 6 before fine-tuning was captured",
    options={"data": "imagenette", "transfer_data": "cifar10"},
    brackets=OF_ALL_ARMS,
)
