"""Equal footing, on made-up accuracies: what is planned next, what is empty, and what the sentences say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from flatclr.studies import Found, Job, Kept, Plan, Run, load_study
from flatclr.studies.accuracies import less
from flatclr.studies.experiments.equal_footing import FIRST, SECOND, STUDY
from flatclr.studies.methods import FLAT_NCE, PER_ANCHOR, SOG_CLR, Method
from flatclr.studies.pages import judge
from flatclr.studies.training_runs import config_of
from flatclr.training.build_objective import build_objective

HELD_OUT = {  # by arm: InfoNCE is best at 0.2 at the small batch, others at their default
    "held out: InfoNCE 0.1, batch 32": 0.60,
    "held out: InfoNCE 0.2, batch 32": 0.70,
    "held out: InfoNCE 0.5, batch 32": 0.65,
}


def planned(found: Found = Found(), tier: int = 1, seeds: int = 1) -> list[Run]:  # noqa: B008
    """Those that are asked for or there, as the frame has them."""
    runs = STUDY.plan(Plan(range(seeds), False, found, {"tier": tier}))
    return [run for run in runs if run.asked or run.name in found]


def finished(runs: list[Run], accuracies: Mapping[str, float]) -> Found:
    """The planned runs with these accuracies; 0.5 on held-out images, 0.8 on test images, where none is given."""

    def kept(run: Run) -> Kept:
        value = accuracies.get(run.arm, 0.5 if run.arm.startswith("held out") else 0.8) + 0.001 * run.seed
        value += 0.01 * run.arm.startswith(("held out: InfoNCE 0.5, batch 256", "held out: FlatNCE, ESS 0.25"))
        return Kept(run.name, run.arm, run.seed, run.settings, {"knn": value, "linear": value}, 1.0, {})

    return Found([kept(run) for run in runs])


def complete(accuracies: Mapping[str, float], tier: int = 1) -> Found:
    """Planned and finished until nothing more is planned."""
    found = Found()
    while True:
        runs = planned(found, tier)
        if len(runs) == len(found):
            return found
        found = finished(runs, accuracies)


def test_what_decides_about_the_small_batch_comes_first() -> None:
    runs = planned()
    assert [run.arm for run in runs[:8]] == [
        *(f"held out: InfoNCE {t:g}, batch {batch}" for batch in (32, 256) for t in (0.1, 0.2, 0.5)),
        "FlatNCE, ESS 0.25, batch 32",
        "FlatNCE, ESS 0.25, batch 256",
    ]
    assert (runs[8].arm, runs[8].seed) == ("FlatNCE, ESS 0.25, batch 32", 1)  # waits for no other run
    found = finished(runs[:6], HELD_OUT)
    both = [("InfoNCE 0.2, batch 32", 0), ("InfoNCE 0.5, batch 256", 0)]
    both += [(arm, 1) for arm in ("InfoNCE 0.2, batch 32", "InfoNCE 0.5, batch 256", "FlatNCE, ESS 0.25, batch 32")]
    assert [(run.arm, run.seed) for run in planned(found)[8:13]] == both


def test_every_tier_has_its_cells_and_no_run_twice() -> None:
    for tier, cells in ((1, 8), (2, 16), (3, 40)):
        runs = planned(tier=tier)
        assert len({run.digest for run in runs}) == 4 * cells  # three values and the default
        assert len(runs) == len({run.name for run in runs}) == 4 * cells + 1  # one of them with a second seed
        assert {run.settings["config"]["epochs"] for run in runs if run.settings["held_out"]} == {30.0}
        assert {run.settings["config"]["epochs"] for run in runs if not run.settings["held_out"]} == {100.0}


def test_a_second_seed_is_planned_for_the_main_arms_and_where_a_sentence_compares_close_cells() -> None:
    apart = {
        **HELD_OUT,
        "InfoNCE 0.2, batch 32": 0.70,
        "InfoNCE 0.5, batch 256": 0.75,
        "FlatNCE, ESS 0.25, batch 32": 0.9,
    }
    others = {f"{name} 0.1, batch 32": 0.5 for name in ("FlatNCE", "SogCLR")}
    main = {"InfoNCE 0.2, batch 32", "InfoNCE 0.5, batch 256", "FlatNCE, ESS 0.25, batch 32"}
    assert {run.arm for run in planned(complete({**apart, **others})) if run.seed} == main
    close = {**apart, **others, "SogCLR 0.1, batch 32": 0.905}
    assert {run.arm for run in planned(complete(close)) if run.seed} == {*main, "SogCLR 0.1, batch 32"}


@pytest.mark.parametrize(
    ("accuracies", "sentence"),
    [
        (
            {"InfoNCE 0.2, batch 32": 0.70, "InfoNCE 0.5, batch 256": 0.75, "FlatNCE, ESS 0.25, batch 32": 0.752},
            '"A batch eight times smaller" survives tuning. ',
        ),
        (
            {"InfoNCE 0.2, batch 32": 0.70, "InfoNCE 0.5, batch 256": 0.75, "FlatNCE, ESS 0.25, batch 32": 0.72},
            '"A batch eight times smaller" does not survive tuning. ',
        ),
        (
            {"InfoNCE 0.2, batch 32": 0.75, "InfoNCE 0.5, batch 256": 0.75, "FlatNCE, ESS 0.25, batch 32": 0.75},
            'Whether "a batch eight times smaller" survives tuning cannot be told from these runs. There is no saving',
        ),
    ],
)
def test_the_sentence_on_the_small_batch_follows_the_numbers(accuracies: Mapping[str, float], sentence: str) -> None:
    found = complete({**HELD_OUT, **accuracies})
    sentences = STUDY.summary(judge(STUDY, planned(found), found))
    assert len(sentences) == 5
    assert sentences[1].startswith(sentence)


def test_with_nothing_run_every_cell_is_empty_with_its_command_and_no_sentence_claims_anything() -> None:
    rows = STUDY.empty(Found())
    assert len(rows) == 40
    assert {row["filled by"] for row in rows} == {f"`flatclr study equal-footing --set tier={n}`" for n in (1, 2, 3)}
    assert all("is not known yet" in sentence for sentence in STUDY.summary(judge(STUDY, planned(), Found())))
    assert len(STUDY.empty(complete({}))) == 32  # tiers 2 and 3


def test_a_tier_that_is_asked_for_keeps_what_there_is_of_others(tmp_path: Path) -> None:
    from flatclr import studies
    from flatclr.studies.keeping import keep

    rival, home = "DHEL 0.1, batch 32", tmp_path / STUDY.name
    accuracies = {**HELD_OUT, rival: 0.9, "FlatNCE, ESS 0.25, batch 32": 0.7}
    whole = complete(accuracies, tier=3)
    for run in planned(whole, tier=3):
        (kept,) = (kept for kept in whole if kept.run == run.name)
        environment = {"device": "cpu", "cores": 2, "cpu": "made up", "torch": "none", "commit": "none"}
        numbers = {**kept.numbers, "log": [], "evaluations": [], "minutes": 1.0}
        keep(home, run, replace(kept, numbers=numbers, environment=environment))
    pages = [
        studies.run(STUDY.name, out=tmp_path, device="cpu", options={"tier": tier}).page.read_text() for tier in (3, 1)
    ]
    assert "DHEL 0.1, batch 32" in pages[0].partition("## Measured")[0]
    assert [page.replace("flatclr study equal-footing --set tier=1", COMMAND) for page in pages] == [pages[0]] * 2


COMMAND = f"flatclr study {STUDY.name}"


def test_a_seed_that_is_to_come_is_waited_for() -> None:
    accuracies = {**HELD_OUT, "InfoNCE 0.2, batch 32": 0.75, "InfoNCE 0.5, batch 256": 0.75}
    found = Found([kept for kept in complete(accuracies) if kept.seed == 0])
    verdict = judge(STUDY, planned(found), found)[0]
    assert (verdict.word, "second seed" in verdict.says) == ("not run", True)
    to_come = {(row["method"], row["batch"], row["empty"]) for row in STUDY.empty(found) if "seed" in row["empty"]}
    assert {("InfoNCE", "32", "second seed at 0.2"), ("InfoNCE", "256", "second seed at 0.5")} <= to_come


def test_an_interval_is_of_the_spread_of_all_arms() -> None:
    found = complete({**HELD_OUT, "InfoNCE 0.2, batch 32": 0.75, "InfoNCE 0.5, batch 256": 0.75})
    score = less(found, "SogCLR 0.1, batch 256", "FlatNCE 0.1, batch 256", "knn")  # one seed each
    assert score.low < score.value < score.high


def test_the_runs_of_the_temperature_figure_and_of_small_batches_are_those_of_equal_footing() -> None:
    ours = {(run.digest, run.seed) for run in planned(tier=2)}
    figure = load_study("temperature-free").plan(Plan(range(1), False, Found(), {}))
    shared = [run.arm for run in figure if (run.digest, run.seed) in ours]
    assert len(shared) == 2 * (3 * 3 + 1)  # of three methods three temperatures, and the controlled one, at two batches
    batches = load_study("small-batches").plan(Plan(range(1), False, Found(), {}))
    assert {run.arm for run in batches if (run.digest, run.seed) in ours} == {
        *(f"held out: InfoNCE {t}, batch {b}" for t in (0.1, 0.2, 0.5) for b in (32, 256)),
        *(f"{name}, batch {b}" for name in ("InfoNCE 0.5", "FlatNCE, ESS 0.25", "FlatNCE 0.1") for b in (32, 256)),
    }


@pytest.mark.parametrize("method", [*FIRST, *SECOND], ids=lambda method: method.name)
def test_the_scalar_of_a_method_reaches_its_objective(method: Method) -> None:
    for value in method.values:
        run = method.run(value, 32, 0, quick=False)
        config = config_of(Job(run.settings, 0, "cpu", Path("folder")))
        objective = build_objective(config)
        held = {
            "temperature": lambda o: 1 / float(o.inverse_temperature),
            "temperature at the start": lambda o: 1 / float(o.inverse_temperature),
            "ESS target": lambda o: o.scale.control.target,
            "variance weight": lambda o: o.variance,
        }[method.scalar](objective)
        assert held == pytest.approx(value)
        assert method.default in method.values
    assert config.ess_per_anchor == (method is PER_ANCHOR)


def test_the_rate_makes_up_for_a_smaller_gradient() -> None:
    """SogCLR's gradient is FlatNCE's times the temperature; with weight decay the steps are then alike."""
    flat, sog = (config_of(Job(m.run(0.2, 32, 0, quick=False).settings, 0, "cpu", Path())) for m in (FLAT_NCE, SOG_CLR))
    assert sog.learning_rate == pytest.approx(flat.learning_rate / 0.2)
    assert sog.learning_rate * sog.weight_decay == pytest.approx(flat.learning_rate * flat.weight_decay)


def test_a_tier_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tier must be 1, 2 or 3, got 4"):
        planned(tier=4)
