"""Does ESS control spare the choice of a temperature? Accuracy against temperature, from runs that studies share."""

from __future__ import annotations

from matplotlib.figure import Figure

from flatclr.plots import COLOURS, new_figure
from flatclr.studies.accuracies import OF_ALL_ARMS, all_above, best_arm, has_stopped, percent
from flatclr.studies.judging import OPEN, Verdict, below, pooled_spread, score_text
from flatclr.studies.literature import FLATNCE, THIS
from flatclr.studies.methods import FLAT_ESS, FLAT_NCE, INFO_NCE, SIG_LIP, TUNING_EPOCHS, Method
from flatclr.studies.study import FILLED_BY, Claim, Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS_CHANGE

NAME, BATCHES = "temperature-free", (32, 256)
METHODS = (INFO_NCE, FLAT_NCE, SIG_LIP)
OUTER = (0.05, 1.0)  # beyond the temperatures that equal-footing tries
TEMPERATURES = tuple(sorted((*INFO_NCE.values, *OUTER)))
ROOM = 0.5  # points


def plan(of: Plan) -> list[Run]:
    """The temperatures that equal-footing tries come first."""
    batches = BATCHES[:1] if of.quick else BATCHES
    temperatures = INFO_NCE.values[:2] if of.quick else (*INFO_NCE.values, *OUTER)
    return [
        method.held_out_run(value, batch, quick=of.quick, seed=seed)
        for seed in of.seeds
        for batch in batches
        for method, values in ((FLAT_ESS, (FLAT_ESS.default,)), *((method, temperatures) for method in METHODS))
        for value in values
    ]


def arm_of(method: Method, value: float, batch: int) -> str:
    return method.held_out_arm(value, batch)


def controlled(batch: int) -> str:
    return arm_of(FLAT_ESS, FLAT_ESS.default, batch)


def tried(found: Found, method: Method, batch: int) -> dict[float, str]:
    """The arms that are there, by temperature."""
    arms = {value: arm_of(method, value, batch) for value in TEMPERATURES}
    return {value: arm for value, arm in arms.items() if found.of(arm)}


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for batch in BATCHES:
        for method in METHODS:
            arms = tried(found, method, batch)
            shown = {f"{t:g}": percent(found, arms[t], "knn") if t in arms else "empty" for t in TEMPERATURES}
            rows.append({"method": method.name, "batch": str(batch), **shown})
        there = bool(found.of(controlled(batch)))
        value = percent(found, controlled(batch), "knn") if there else "empty"
        name = f"{FLAT_ESS.name} {FLAT_ESS.default:g}"
        rows.append({"method": name, "batch": str(batch), "without a temperature": value})
    return rows


def empty(found: Found) -> list[Row]:
    rows: list[Row] = []
    for batch in BATCHES:
        arms = {f"{m.name} {t:g}": arm_of(m, t, batch) for m in METHODS for t in TEMPERATURES}
        arms[f"{FLAT_ESS.name} {FLAT_ESS.default:g}"] = controlled(batch)
        lacking = [name for name, arm in arms.items() if not found.of(arm)]
        if lacking:
            rows.append({"batch": str(batch), "empty": ", ".join(lacking), FILLED_BY: f"`flatclr study {NAME}`"})
    return rows


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(8.4, 3.2)
    for axes, batch in zip(figure.subplots(1, 2, sharey=True), BATCHES, strict=True):
        for method, colour in zip(METHODS, COLOURS[1:], strict=False):
            arms = tried(found, method, batch)
            accuracy = [100 * found.mean(arm, "knn").value for arm in arms.values()]
            axes.plot(list(arms), accuracy, "o-", color=colour, label=method.name)
        if found.of(controlled(batch)):
            height = 100 * found.mean(controlled(batch), "knn").value
            axes.axhline(height, color=COLOURS[0], label=f"{FLAT_ESS.name} {FLAT_ESS.default:g}")
        axes.set_xscale("log")
        axes.set_xlabel("temperature")
        axes.set_title(f"batch {batch}")
        axes.legend(fontsize=6)
    figure.axes[0].set_ylabel(f"held-out kNN %, {TUNING_EPOCHS:g} epochs")
    return {"figure": figure}


def judge_control(found: Found) -> Verdict:
    rivals = {
        controlled(batch): best_arm(found, [arm for m in METHODS for arm in tried(found, m, batch).values()], "knn")
        for batch in BATCHES
        if found.of(controlled(batch))
    }
    pairs = [(ours, best) for ours, best in rivals.items() if best is not None]
    word, scores = all_above(found, pairs, "knn", -ROOM)
    shown = "; ".join(
        f"{a} less {b}: {score_text(score, 1)} points" for (a, b), score in zip(pairs, scores, strict=True)
    )
    return Verdict(word, f"{shown}.", min(scores, key=lambda score: score.value))


def judge_range(found: Found) -> Verdict:
    """What the worst temperature costs, FlatNCE less InfoNCE, seed by seed and pooled."""

    def cost(method: Method) -> list[float]:
        by_seed = zip(*(found.values(arm, "knn") for arm in tried(found, method, BATCHES[0]).values()), strict=True)
        return [100 * (max(values) - min(values)) for values in by_seed]

    arms = [arm for method in (FLAT_NCE, INFO_NCE) for arm in tried(found, method, BATCHES[0]).values()]
    stopped = [arm for arm in arms if has_stopped(found, arm)]
    if stopped:
        return Verdict(OPEN, f"What the worst temperature costs has no number: {', '.join(stopped)} stopped.")
    flat, info = cost(FLAT_NCE), cost(INFO_NCE)
    score = pooled_spread([flat, info]).difference(flat, info)
    shown = f"from best to worst, FlatNCE {sum(flat) / len(flat):.1f} points, InfoNCE {sum(info) / len(info):.1f}"
    return Verdict(below(score), f"At batch {BATCHES[0]}, {shown}.", score, "points")


STUDY = Study(
    name=NAME,
    title="Accuracy against temperature",
    source=f"{FLATNCE}, where the effective sample size sets the temperature",
    experiment=(
        f"InfoNCE, FlatNCE and SigLIP at temperatures {', '.join(f'{t:g}' for t in TEMPERATURES)} (SigLIP learns its "
        f"own from there), and FlatNCE with the ESS held at {FLAT_ESS.default:g}; ResNet-18, CIFAR-10, batch "
        f"{BATCHES[0]} and {BATCHES[1]}, {TUNING_EPOCHS:g} epochs. kNN on 5,000 training images that are held out. The "
        "runs are those by which equal-footing tunes."
    ),
    changed=(
        f"CIFAR-10, a ResNet-18 and {SMALL_VIEWS_CHANGE}. "
        "The best temperature is chosen by the accuracy that it is judged by, which favours the fixed temperatures. "
        "Below a temperature of 0.1 SigLIP's bias starts at minus its largest score instead of -10. "
        "Intervals are of the spread over seeds of all arms together."
    ),
    claims=(
        Claim(
            THIS,
            "With its ESS controlled, FlatNCE needs no temperature: it equals every method at its best one.",
            f"kNN less the best of all above -{ROOM:g} points, at batch {BATCHES[0]} and {BATCHES[1]}",
            judge_control,
        ),
        Claim(
            THIS,
            f"FlatNCE depends less on the temperature than InfoNCE at batch {BATCHES[0]}.",
            "best less worst temperature, FlatNCE less InfoNCE, below 0",
            judge_range,
            lambda run: run.arm.endswith(f"batch {BATCHES[0]}"),
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=2,
    budget="about 20 GPU minutes with --jobs 8 that share the GPU, a quarter less where equal-footing was run",
    empty=empty,
    brackets=OF_ALL_ARMS,
)
