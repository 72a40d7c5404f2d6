"""Judges of studies on made-up numbers: each can say that its claim held, that it did not, and that it cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import flatclr
from flatclr.evaluation.finetune import PAPER, RECIPES
from flatclr.studies import Found, Kept, Run, Study, load_study
from flatclr.studies.accuracies import is_held_out, less
from flatclr.studies.experiments import gradient_noise, imagenet_style, large_batches, nine_methods, small_batches
from flatclr.studies.experiments.equal_footing import STUDY as EQUAL_FOOTING
from tests.support.evaluation import small_data, small_encoder
from tests.support.made_up import NOISE, accuracies, finished, kept_of, planned, verdicts

HELD, FAILED, OPEN, NOT_RUN = "held", "did not hold", "cannot be told here", "not run"


def by_start(table: Mapping[str, float], default: float = 0.8) -> Callable[[Run], float]:
    """The accuracy of the first name that an arm starts with."""
    return lambda run: next((value for name, value in table.items() if run.arm.startswith(name)), default)


def words(study: Study, of: Callable[[Run], float], *names: str, seeds: int | None = None) -> list[str]:
    return [verdict.word for verdict in verdicts(study, finished(study, accuracies(of, *names), seeds=seeds))]


# of batch 32 less 256: what InfoNCE loses, what FlatNCE is above it, both shares of 1
@pytest.mark.parametrize(
    ("loses", "gains", "word"),
    [(0.03, 0.002, HELD), (0.03, -0.02, FAILED), (0.0, 0.0, OPEN), (0.03, -0.005, OPEN), (math.nan, 0.0, OPEN)],
)
def test_small_batches_on_batch_32(loses: float, gains: float, word: str) -> None:
    study = load_study("small-batches")
    table = {
        "held out: InfoNCE 0.2": 0.7,
        "held out": 0.6,
        "InfoNCE 0.2, batch 32": 0.8 - loses,
        "FlatNCE, ESS 0.25, batch 32": 0.8 + gains,
    }
    found = finished(study, accuracies(by_start(table), "knn", "linear"))
    verdict = verdicts(study, found)[0]
    assert verdict.word == word
    thirds = {run.arm for run in planned(study, found) if run.seed == 2}
    close = {"InfoNCE 0.2, batch 32", "InfoNCE 0.2, batch 256", "FlatNCE, ESS 0.25, batch 32"}
    assert thirds == (close if word == OPEN else set())


@pytest.mark.parametrize("luck", range(6))
def test_small_batches_never_takes_a_third_seed_back(luck: int) -> None:
    """Run by run, as a study is made: how far seeds lie apart is known better with every run that ends."""
    import random

    study, draw = load_study("small-batches"), random.Random(luck)
    table = by_start({"held out: InfoNCE 0.2": 0.7, "held out": 0.6, "InfoNCE 0.2, batch 32": 0.77})
    found: list[Any] = []
    while run := next((r for r in planned(study, Found(found)) if r.name not in Found(found)), None):
        accuracy = table(run) + draw.gauss(0, 0.0015)
        found.append(kept_of(run, {**accuracies(table, "knn", "linear")(run), "knn": accuracy, "linear": accuracy}))
    assert {kept.run for kept in found} == {run.name for run in planned(study, Found(found))}
    assert verdicts(study, Found(found))[0].word != NOT_RUN


def test_a_third_seed_that_parts_the_arms_does_not_take_itself_back() -> None:
    study = load_study("small-batches")
    table = {"held out: InfoNCE 0.2": 0.7, "held out": 0.6, "InfoNCE 0.2, batch 32": 0.77, small_batches.OURS: 0.7945}
    third = {small_batches.OURS: -0.003, "InfoNCE 0.2, batch 256": 0.003}

    def numbers(run: Run) -> dict[str, Any]:
        parts = third.get(run.arm, 0.0) if run.seed == small_batches.THIRD else 0.0
        return accuracies(lambda _: by_start(table)(run) + parts, "knn", "linear")(run)

    found = finished(study, numbers)
    assert len(found.of(small_batches.OURS)) == 3
    assert verdicts(study, found)[0].word == FAILED


def test_small_batches_tunes_before_it_compares_and_waits_for_seeds() -> None:
    study = load_study("small-batches")
    first = planned(study, Found())
    assert [is_held_out(run.arm) for run in first[:6]] == [True] * 6
    assert {run.settings["config"]["temperature"] for run in first[:6]} == {0.1, 0.2, 0.5}
    found = finished(study, accuracies(by_start({"held out: InfoNCE 0.5": 0.7, "held out": 0.6}), "knn", "linear"))
    assert "InfoNCE 0.5, batch 128" in found.arms
    without = Found([kept for kept in found if (kept.arm, kept.seed) != ("InfoNCE 0.5, batch 256", 1)])
    assert small_batches.judge_main(without).word == NOT_RUN


@pytest.mark.parametrize(
    ("gains", "linear", "word"),
    [(0.0, 0.0, HELD), (-0.02, 0.0, FAILED), (-0.005, 0.0, OPEN), (0.0, -0.02, FAILED)],
)
def test_small_batches_on_batch_16(gains: float, linear: float, word: str) -> None:
    study, ours = load_study("small-batches"), "FlatNCE, ESS 0.25, batch 16"

    def numbers(run: Run) -> dict[str, Any]:
        found = accuracies(by_start({ours: 0.8 + gains}), "knn", "linear")(run)
        return {**found, "linear": found["linear"] + (linear - gains if run.arm == ours else 0.0)}

    assert verdicts(study, finished(study, numbers))[1].word == word


@pytest.mark.parametrize(("best", "word"), [("ESS target 0.3", HELD), ("ESS target 0.6", FAILED), ("none", OPEN)])
def test_small_batches_on_the_best_target(best: str, word: str) -> None:
    assert words(load_study("small-batches"), by_start({best: 0.82}), "knn", "linear")[2] == word


PUBLISHED = {name: accuracy for name, (accuracy, _) in nine_methods.METHODS.items()}


@pytest.mark.parametrize(
    ("accuracy", "word"),
    [
        ({name: 0.8 + (value - PUBLISHED["SimCLR"]) / 10 for name, value in PUBLISHED.items()}, HELD),
        ({name: 0.8 - (value - PUBLISHED["SimCLR"]) / 10 for name, value in PUBLISHED.items()}, FAILED),
        ({}, OPEN),
        ({"SimCLR": math.nan}, OPEN),
    ],
    ids=["as published", "the other way round", "all alike", "one stopped"],
)
def test_nine_methods(accuracy: Mapping[str, float], word: str) -> None:
    assert words(load_study("nine-methods"), by_start(accuracy), "knn", "linear") == [word]


def test_of_nine_equal_methods_one_in_twenty_at_most_is_said_not_to_be() -> None:
    """By chance one of eight differences is often below 0 by its own interval."""
    import random

    study, failed, trials = load_study("nine-methods"), 0, 60
    runs = planned(study, finished(study, accuracies(lambda _: 0.5, "knn", "linear")))
    for trial in range(trials):
        draw = random.Random(trial)
        found = Found([kept_of(run, dict.fromkeys(("knn", "linear"), 0.8 + draw.gauss(0, 0.003))) for run in runs])
        failed += nine_methods.judge(found).word == FAILED
    assert failed <= 6  # of 60 with 5 % each, 7 or more come once in 30


KERNELS = {"untrained": 0.4, "vlc, raw_cosine": 0.39}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (KERNELS, [HELD, HELD]),
        ({**KERNELS, "js, raw_cosine": math.nan}, [HELD, FAILED]),
        ({**KERNELS, "kl, gaussian": 0.75}, [FAILED, HELD]),
        ({**KERNELS, "kl, gaussian": math.nan}, [FAILED, HELD]),
        ({**KERNELS, "kl, gaussian": 0.795}, [OPEN, HELD]),
        ({**KERNELS, "vlc, gaussian": math.nan}, [OPEN, HELD]),
        ({"untrained": 0.4}, [HELD, FAILED]),
    ],
    ids=["held", "another fails", "worse", "the Gaussian fails", "close", "both fail", "none fails"],
)
def test_gaussian_or_cosine(table: Mapping[str, float], expected: list[str]) -> None:
    assert words(load_study("gaussian-or-cosine"), by_start(table), "knn", "linear") == expected


@pytest.mark.parametrize("divergence", ["vlc", "js"])
def test_a_kernel_that_fails_in_one_seed_does_not_hide_what_the_others_show(divergence: str) -> None:
    study, arm = load_study("gaussian-or-cosine"), f"{divergence}, raw_cosine"
    table = KERNELS if divergence == "js" else {"untrained": 0.4}

    def numbers(run: Run) -> dict[str, Any]:
        lost = run.arm == arm and run.seed == 1
        return accuracies(lambda _: 0.1 if lost else by_start(table)(run), "knn", "linear")(run)

    kernels, failures = verdicts(study, finished(study, numbers))
    assert (kernels.word, failures.word) == (HELD, OPEN)
    assert f"In some seeds only: {divergence}" in failures.says


def swept(table: Mapping[str, float]) -> Callable[[Run], Mapping[str, Any]]:
    """Of align-uniform, whose first run reads the runs of other experiments."""
    points = [[0.1 * place, -0.1 * place, 0.5 + 0.01 * place] for place in range(9)]
    trained = accuracies(by_start(table), "knn")

    def numbers(run: Run) -> Mapping[str, Any]:
        if run.arm == "kept runs":
            return {"points": points, "runs": 9}
        found = trained(run)
        return {**found, "knn": found["knn"] + (0.002 * (-1) ** run.seed if run.arm.startswith("direct") else 0.0)}

    return numbers


@pytest.mark.parametrize(("gains", "word"), [(0.0, HELD), (-0.02, FAILED), (-0.005, OPEN), (math.nan, OPEN)])
def test_align_uniform_chooses_on_held_out_images(gains: float, word: str) -> None:
    study = load_study("align-uniform")
    best = "direct, uniformity x 2, alpha 1, t 4"
    table = {f"held out: {best}": 0.7, "held out: InfoNCE, temperature 0.2": 0.7, "held out": 0.6, best: 0.8 + gains}
    found = finished(study, swept(table))
    assert {arm for arm in found.arms if not is_held_out(arm)} == {"kept runs", best, "InfoNCE, temperature 0.2"}
    assert len(found.of(best)) == study.seeds
    before = Found([kept for kept in found if kept.arm == "kept runs"])
    assert verdicts(study, found)[0] == verdicts(study, before)[0]  # of the kept runs alone
    assert verdicts(study, found)[1].word == word


def times(minutes: Mapping[int, float], *, jobs: int = 1) -> Found:
    """Of large-batches: 70 % is passed half way between two evaluations, so that `minutes` are those to it."""
    study = load_study("large-batches")

    def numbers(run: Run) -> dict[str, Any]:
        spent = minutes.get(run.settings["config"]["batch_size"], 1.0) * math.exp(NOISE[run.seed])
        rows = [{"epoch": e, "minutes": spent * share, "knn": knn} for e, share, knn in ((1, 0.5, 0.6), (2, 1.5, 0.8))]
        return {"evaluations": rows, "log": [], "knn": 0.8, "minutes": 2.0}

    found = finished(study, numbers)
    return Found([kept_of_jobs(kept, jobs) for kept in found])


@pytest.mark.parametrize(
    ("minutes", "word"), [(9.0, FAILED), (0.5, OPEN)], ids=["longer than the batch before", "shorter"]
)
def test_a_batch_that_never_reaches_the_goal_refutes_where_it_had_the_time(minutes: float, word: str) -> None:
    def never(kept: Kept) -> Kept:
        rows = [{"epoch": epoch, "minutes": 0.1, "knn": 0.65} for epoch in (1, 2)]
        return replace(kept, numbers={**kept.numbers, "evaluations": rows, "minutes": minutes})

    found = Found([never(kept) if kept.arm == "batch 1024" else kept for kept in times(FALLING)])
    (verdict,) = verdicts(load_study("large-batches"), found)
    assert verdict.word == word
    assert verdict.says.startswith("batch 1024 did not reach 70% in every seed")


def kept_of_jobs(kept: Kept, jobs: int) -> Kept:
    return replace(kept, environment={"jobs": jobs})


FALLING = {batch: 10 / place for place, batch in enumerate(large_batches.BATCHES, start=1)}


@pytest.mark.parametrize(
    ("minutes", "jobs", "word"),
    [
        (FALLING, 1, HELD),
        ({**FALLING, 1024: 3.0}, 1, FAILED),
        ({**FALLING, 1024: FALLING[512]}, 1, OPEN),
        (FALLING, 8, OPEN),
    ],
    ids=["falling", "rising at the end", "alike at the end", "shared device"],
)
def test_large_batches(minutes: Mapping[int, float], jobs: int, word: str) -> None:
    found = times(minutes, jobs=jobs)
    epoch, seconds = large_batches.reached(found.one("batch 64")) or (0, 0)
    assert (epoch, seconds) == pytest.approx((1.5, 600), rel=1e-3)
    assert [verdict.word for verdict in verdicts(load_study("large-batches"), found)] == [word]


@pytest.mark.parametrize(("number", "place"), [(name, place) for place, name in enumerate(imagenet_style.CLAIMS)])
@pytest.mark.parametrize(("gains", "word"), [(0.02, HELD), (-0.02, FAILED), (0.0, OPEN)])
def test_imagenet_style(number: str, place: int, gains: float, word: str) -> None:
    study, numbers = load_study("imagenet-style"), accuracies(lambda _: 0.8, *imagenet_style.NUMBERS)

    def changed(run: Run) -> dict[str, Any]:
        found = numbers(run)
        return {**found, number: found[number] + gains} if run.arm == imagenet_style.FLATCLR else found

    found = verdicts(study, finished(study, changed))
    assert found[place].word == word
    assert {verdict.word for verdict in (*found[:place], *found[place + 1 :])} == {OPEN}


def test_the_numbers_of_imagenet_style_are_those_that_its_evaluation_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, PAPER, replace(RECIPES[PAPER], epochs=1, batch_size=200))
    data = small_data()
    study = load_study("imagenet-style")
    (settings, *_) = (run.settings for run in planned(study, Found()))
    found = flatclr.evaluate(
        small_encoder(),
        data,
        settings["protocols"],
        recipe=settings["evaluation_recipe"],
        random_row=False,
        transfer_data=data,
        draws=2,
    )
    names = {", ".join(filter(None, (row.protocol, row.variant))) for row in found.rows}
    assert set(imagenet_style.NUMBERS) < names


def noise(small: float, large: float, width: float) -> Found:
    """Of gradient-noise: quotients at both batch sizes, with intervals of this half width, among many of the double."""
    (run,) = planned(load_study("gradient-noise"), Found())
    ends = {"alone": [-width, width], "among": [-2 * width, 2 * width]}
    rows, nearer = [], []
    for step in run.settings["at"]:
        for precision in run.settings["precisions"]:
            for batch, quotient in ((32, small), (512, large)):
                around = {count: [quotient + low, quotient + high] for count, (low, high) in ends.items()}
                row = {"step": step, "precision": precision, "batch": batch, "info": 2.0, "flat": 1.0}
                rows.append({**row, "quotient": quotient, "layers": {"a": quotient}, **around})
            moved = abs(large - 1) - abs(small - 1)
            around = {count: [moved + low, moved + high] for count, (low, high) in ends.items()}
            nearer.append({"step": step, "precision": precision, "value": moved, **around})
    return Found([kept_of(run, {"rows": rows, "nearer": nearer})])


@pytest.mark.parametrize(
    ("quotients", "expected"),
    [
        ((2.0, 1.1, 0.05), [HELD, HELD]),
        ((0.8, 1.5, 0.05), [FAILED, FAILED]),
        ((1.02, 1.01, 0.05), [OPEN, OPEN]),
        ((1.08, 1.005, 0.05), [HELD, HELD]),  # each by its own interval
        ((0.92, 1.155, 0.05), [OPEN, OPEN]),  # but not refuted unless among so many
    ],
)
def test_gradient_noise(quotients: tuple[float, float, float], expected: list[str]) -> None:
    assert [verdict.word for verdict in verdicts(load_study("gradient-noise"), noise(*quotients))] == expected


def test_the_ends_of_a_number_among_many_are_further_apart() -> None:
    import torch

    ends = gradient_noise.ends_of(torch.arange(1000, dtype=torch.float64), 6)
    assert ends["among"][0] < ends["alone"][0] < ends["alone"][1] < ends["among"][1]


@pytest.mark.parametrize(
    ("flat", "info", "control", "expected"),
    [
        ((0.78, 0.80), (0.70, 0.80), 0.80, [HELD, HELD]),
        ((0.70, 0.80), (0.78, 0.80), 0.75, [FAILED, FAILED]),
        ((0.78, 0.80), (0.78, 0.80), 0.795, [OPEN, OPEN]),
    ],
)
def test_temperature_free(
    flat: tuple[float, float], info: tuple[float, float], control: float, expected: list[str]
) -> None:
    ranges = {"held out: FlatNCE 0.05": flat[0], "held out: FlatNCE ": flat[1], "held out: InfoNCE 0.05": info[0]}
    table = {"held out: FlatNCE, ESS": control, **ranges, "held out: InfoNCE ": info[1], "held out: SigLIP": 0.5}
    assert words(load_study("temperature-free"), by_start(table), "knn") == expected


def test_a_temperature_at_which_a_method_stops_is_not_left_out_of_its_range() -> None:
    table = {"held out: FlatNCE 0.05": math.nan, "held out: InfoNCE 0.05": 0.7}
    assert words(load_study("temperature-free"), by_start(table), "knn")[1] == OPEN


def test_a_second_seed_that_parts_two_cells_does_not_take_itself_back() -> None:
    """Else what is planned and what is found would ask for each other without end."""

    def apart_with_the_second(run: Run) -> float:
        close = run.arm.startswith("SogCLR 0.1, batch 32")
        return by_start({"held out": 0.5})(run) + (0.05 if close and run.seed else 0.0)

    found = finished(EQUAL_FOOTING, accuracies(apart_with_the_second, "knn", "linear"))
    assert len(found.of("SogCLR 0.1, batch 32")) == 2
    assert less(found, "SogCLR 0.1, batch 32", "FlatNCE, ESS 0.25, batch 32", "knn").value > 1


def of_arm(arm: str, *values: float, epochs: float = 100.0) -> list[Kept]:
    settings = {"config": {"epochs": epochs}}
    return [Kept(f"{arm}-s{s}", arm, s, settings, {"knn": value}, 1.0, {}) for s, value in enumerate(values)]


@pytest.mark.parametrize(
    "other",
    [
        of_arm("held out: c", 0.7, 0.8),
        of_arm("c", 0.7, 0.8, epochs=50.0),
        of_arm("c", 0.1, 0.8),
        of_arm("c", 0.1, 0.1),
        of_arm("c", math.nan, 0.8),
    ],
    ids=["held out", "shorter", "failed once", "failed", "stopped"],
)
def test_an_interval_is_of_the_spread_of_arms_that_are_alike(other: list[Kept]) -> None:
    alike = [*of_arm("a", 0.80, 0.81), *of_arm("b", 0.77, 0.76)]
    without, beside = (less(Found(kept), "a", "b", "knn") for kept in (alike, [*alike, *other]))
    assert beside == without
    wider = less(Found([*alike, *of_arm("c", 0.7, 0.8)]), "a", "b", "knn")
    assert wider.low < without.low
    assert less(Found([*alike, *of_arm("c", 0.7, 0.8)]), "a", "b", "knn", apart=["c"]) == without


def courses(info: tuple[float, float], flat: tuple[float, float]) -> Found:
    """Of ess-evolution: kept runs that go from one ESS to another, two seeds of each at two batch sizes."""
    study = load_study("ess-evolution")
    runs = [
        {"arm": arm, "batch": batch, "seed": seed, "log": [{"step": n, "epoch": 20 * n, "ess": e + NOISE[seed]} for n, e in enumerate(ends)]}
        for arm, ends in (("InfoNCE", info), ("FlatNCE", flat))
        for batch in (32, 256)
        for seed in (0, 1)
    ]  # fmt: skip
    log = [{"step": n, "epoch": n, "ess": 0.2 - 0.1 * n, "ess_with_positive": 0.2 - 0.1 * n} for n in (0, 1)]
    return finished(study, lambda run: {"runs": runs} if run.arm == "kept runs" else {"log": log, "knn": 0.5})


@pytest.mark.parametrize(
    ("info", "flat", "expected"),
    [
        ((0.1, 0.12), (0.1, 0.23), [HELD, HELD]),
        ((0.1, 0.12), (0.2, 0.08), [FAILED, FAILED]),
        ((0.1, 0.1), (0.1, 0.1005), [OPEN, OPEN]),
    ],
)
def test_ess_evolution_is_judged_by_kept_runs(
    info: tuple[float, float], flat: tuple[float, float], expected: list[str]
) -> None:
    own, *others = verdicts(load_study("ess-evolution"), courses(info, flat))
    assert own.word == OPEN
    assert [verdict.word for verdict in others] == expected


def test_the_kept_runs_of_ess_evolution_are_long_ones_at_the_temperature_of_the_claims() -> None:
    from pathlib import Path

    from flatclr.studies import Job
    from flatclr.studies.experiments.ess_evolution import measure_kept

    kept = Path(__file__).parents[3] / "results" / "cifar10" / "runs"
    found = measure_kept(Job({"kept": str(kept)}, 0, "cpu", Path()))["runs"]
    assert sorted((run["arm"], run["batch"], run["seed"]) for run in found) == [
        (arm, batch, seed) for arm in ("FlatNCE", "InfoNCE") for batch in (32, 256) for seed in (0, 1)
    ]
    assert {run["log"][-1]["epoch"] for run in found} == {20.0}
