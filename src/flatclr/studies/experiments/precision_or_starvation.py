"""FlatNCE paper, abstract, section 2, equation 2: is it rounding that stops InfoNCE at log K?"""

from __future__ import annotations

from matplotlib.figure import Figure

from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies.gaussian_pairs import CROSS_ENTROPY, GaussianPairs, measure
from flatclr.studies.judging import Verdict, above, mean_score, score_text
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Plan, Row, Run, Study

BATCH, BETA, STEPS = 8, 30.0, 2500
PLAIN, SINGLE, DOUBLE, FLAT = "cross-entropy, float32", "InfoNCE, float32", "InfoNCE, float64", "FlatNCE, float32"
ARMS = {
    PLAIN: {"objective": CROSS_ENTROPY, "precision": "float32"},
    SINGLE: {"objective": "infonce", "precision": "float32"},
    DOUBLE: {"objective": "infonce", "precision": "float64"},
    FLAT: {"objective": "flatnce", "precision": "float32"},
}


def plan(of: Plan) -> list[Run]:
    common = {
        "batch": BATCH,
        "beta": BETA,
        "steps": 20 if of.quick else STEPS,
        "readings": 2 if of.quick else 10,
        "quick": of.quick,
    }
    return [Run(arm, seed, measure, {**own, **common}) for seed in of.seeds for arm, own in ARMS.items()]


def table(found: Found) -> list[Row]:
    return [
        {
            "loss": arm,
            "batch bound": score_text(found.mean(arm, "batch_mi_nats")),
            "pool MI": score_text(found.mean(arm, "pool_mi_nats")),
            "of it above plain cross-entropy": score_text(found.difference(arm, PLAIN, "pool_mi_nats")),
        }
        for arm in found.arms
    ]


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    for arm, colour in zip(found.arms, COLOURS, strict=False):
        for number, kept in enumerate(found.of(arm)):
            curve = kept.numbers["curve"]
            steps, nats = [row["step"] for row in curve], [row["pool_mi_nats"] for row in curve]
            axes.plot(steps, nats, color=colour, linewidth=1, label=arm if number == 0 else None)
    axes.axhline(GaussianPairs.mi_nats, color=MUTED, linestyle=":", label="true MI")
    axes.set_xlabel("step")
    axes.set_ylabel("pool MI (nats)")
    axes.set_title(f"What is learned at K = {BATCH}, beta {BETA:g}, by loss and precision")
    axes.legend()
    return {"figure": figure}


def judge(found: Found) -> Verdict:
    closed = found.differences(DOUBLE, PLAIN, "pool_mi_nats")
    gaps = found.differences(FLAT, PLAIN, "pool_mi_nats")
    beyond_half = mean_score([own - whole / 2 for own, whole in zip(closed, gaps, strict=True)])
    share = mean_score(closed).value / mean_score(gaps).value
    gap = score_text(mean_score(gaps))
    says = f"float64 closes {share:.0%} of the gap of {gap} nats to FlatNCE; the number is what it closes beyond half."
    return Verdict(above(beyond_half), says, beyond_half, "nats")


STUDY = Study(
    name="precision-or-starvation",
    title="Rounding, or a gradient that vanishes?",
    source=f"{FLATNCE}, abstract, section 2 and equation (2)",
    experiment=(
        f"Gaussian pairs of {GaussianPairs.mi_nats:g} nats in {GaussianPairs.dimensions} dimensions, K = {BATCH}, beta "
        f"{BETA:g}, {STEPS:,} Adam steps of two MLPs. InfoNCE in float64, in float32, and as a plain cross-entropy; "
        "FlatNCE in float32. Pool MI is InfoNCE against 4,096 fresh negatives at a beta chosen on other pairs."
    ),
    changed="the paper shows images; here the information is known. In float64 the network computes in it too.",
    claims=(
        Claim(
            f"{FLATNCE}, abstract and section 2",
            "Numerical rounding is the primary cause of the log-K curse.",
            "float64 closes more than half of the gap in pool MI from plain cross-entropy to FlatNCE",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=5,
    budget="about 4 minutes on one core",
)
