"""The plan of CIFAR-10: which runs, how long, with which learning rates."""

from __future__ import annotations

import doctest
import gzip
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.cifar10 import __main__ as command
from benchmarks.cifar10 import claims, kept, plan, summary
from benchmarks.cifar10.plan import FULL, NCE, STAGES, TINY, PlannedRun, planned
from flatclr.cli.main import app
from flatclr.evaluation.intervals import Score
from flatclr.training.config import TrainConfig
from flatclr.training.recipes import RECIPES
from tests.support.cifar10 import ALL, HALF_WIDTH, leave_rates, leave_run, metric_rows, names


@pytest.mark.parametrize("module", [claims, plan, summary])
def test_examples_in_docstrings_are_right(module: ModuleType) -> None:
    found = doctest.testmod(module)

    assert found.attempted > 0
    assert found.failed == 0


def test_every_run_of_the_plan_has_a_name_of_its_own_and_a_valid_config() -> None:
    assert len(set(names(ALL))) == len(ALL)
    for run in ALL:
        assert isinstance(run.config(), TrainConfig)


def test_the_grid_crosses_both_batches_with_four_objectives_and_two_seeds() -> None:
    found = {
        (r.settings["batch_size"], r.objective, r.settings["seed"])
        for r in planned(["grid"], FULL, {32: 0.1, 256: 0.1})
    }

    assert found == {(batch, objective, seed) for batch in (32, 256) for objective in NCE for seed in (0, 1)}


def test_equal_updates_stop_the_small_batch_where_the_large_one_ends() -> None:
    stopped = {run.settings["steps"] for run in ALL if run.stage == "equal-updates"}
    ended = {run.settings["steps"] for run in ALL if run.stage == "grid" and run.settings["batch_size"] == 256}

    assert stopped == ended == {20 * (50_000 // 256)}


def test_every_run_of_the_common_length_is_evaluated_twelve_times() -> None:
    for run in ALL:
        if run.stage in ("grid", "ess", "fdiv", "tau", "grid-more", "fdiv-more"):
            assert math.ceil(run.steps / run.settings["eval_every"]) == 12


def test_every_evaluation_follows_the_log_of_its_step() -> None:
    """Its seconds are counted from there."""
    for run in ALL:
        config = run.config()
        assert config.eval_every % config.log_every == 0 or config.eval_every >= run.steps


def test_learning_rates_are_measured_once_at_the_end() -> None:
    for run in ALL:
        if run.held_out:
            assert run.settings["eval_every"] >= run.steps


def test_learning_rates_are_chosen_without_the_test_images() -> None:
    chosen_on = {run.stage for run in ALL if run.held_out and not run.protocols}

    assert chosen_on == {"lr", "lr-flat", "screen"}
    assert not any(run.held_out for run in ALL if run.stage not in chosen_on)


def test_the_shipped_recipe_is_one_of_those_measured() -> None:
    recipe = RECIPES["cifar10-two-views"]()
    candidates = [run.config() for run in ALL if run.stage == "fast"]

    for config in candidates:
        assert config == recipe.changed(epochs=config.epochs, seed=0)
    assert recipe in candidates


def test_fast_runs_warm_up_for_about_a_fiftieth_and_let_all_images_vote() -> None:
    for config in (run.config() for run in ALL if run.stage in ("fast", "screen")):
        assert plan.FAST_WARMUP_SHARE / 2 < config.warmup_epochs / config.epochs < 1.5 * plan.FAST_WARMUP_SHARE
        assert config.eval_samples >= FULL.images


def test_the_screen_tries_sizes_of_views_that_cost_about_the_same() -> None:
    fast, plain = RECIPES["cifar10-two-views"](), RECIPES["cifar10"]()
    configs = [run.config() for run in ALL if run.stage == "screen"]

    costs = [config.epochs * (config.view_size or 32) ** 2 for config in configs]
    assert max(costs) < 1.05 * min(costs)
    assert fast.view_size in [config.view_size for config in configs], "nobody tried the size of the recipe"
    for config in (*configs, fast):
        assert (config.views, config.head_width, config.encoder_options) == (plain.views, plain.head_width, {})


def test_what_is_kept_is_as_planned_and_gives_the_rate_of_the_recipe() -> None:
    found = kept.kept_runs(kept.HOME)
    rates = kept.measured_rates(found, FULL)

    assert rates is not None
    plan_of = {run.name: run for run in planned(list(STAGES), FULL, rates)}
    assert [kept.planned_otherwise(found[name].config, plan_of[name]) for name in found] == [""] * len(found)
    for name in ("cifar10", "cifar10-infonce"):
        recipe = RECIPES[name]()
        assert recipe.learning_rate == rates[recipe.batch_size]


@pytest.mark.parametrize(
    "run",
    [*ALL[::7], *planned(["screen"], FULL, {}), *planned(["fdiv"], TINY, TINY.starting_rates)[-2:]],
    ids=lambda run: run.name,
)
def test_the_command_line_gives_the_planned_config(run: PlannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[TrainConfig] = []

    def train(config: TrainConfig, **_: Any) -> Any:
        given.append(config)
        raise ValueError("seen")

    monkeypatch.setattr("flatclr.cli.train.train", train)
    with pytest.raises(ValueError, match="seen"):
        app([*run.arguments(data="x.npz"), "--json"], standalone_mode=False)

    assert given == [run.config(data="x.npz")]


def test_the_rate_of_a_batch_between_lies_on_the_power_law_through_the_measured_ones() -> None:
    rates = {32: 0.06, 256: 0.24}
    power = math.log(4) / math.log(8)

    assert plan.scaled_rate(rates, 32) == 0.06
    assert plan.scaled_rate(rates, 256) == 0.24
    assert plan.scaled_rate(rates, 512) == pytest.approx(0.06 * 16**power, rel=5e-3)


def test_the_best_held_out_accuracy_chooses_the_rate_once_all_are_run(tmp_path: Path) -> None:
    leave_rates(tmp_path / "results", {32: 0.03, 256: 0.48})
    found = kept.kept_runs(tmp_path / "results")

    assert kept.measured_rates(found, FULL) == {32: 0.03, 256: 0.48}
    found.pop("lr-b32-0.12-s0")
    assert kept.measured_rates(found, FULL) is None


def test_what_is_kept_names_no_place_of_the_machine_and_survives_a_round_trip(tmp_path: Path) -> None:
    run = ALL[10]
    leave_run(tmp_path / "results", run, 0.7)
    found = kept.KeptRun(tmp_path / "results" / "runs" / run.name)
    texts = [
        gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        for path in found.path.iterdir()
    ]

    assert len(texts) == 5
    assert not any(str(tmp_path) in text or "/somewhere" in text for text in texts)
    assert found.metrics == metric_rows(run, 0.7)
    assert found.score("knn") == Score(0.7, 0.7 - HALF_WIDTH, 0.7 + HALF_WIDTH)
    assert kept.planned_otherwise(found.config, run) == ""


def test_the_plan_is_printed_with_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out

    assert all(name in printed for name in names(ALL))
    total = round(sum(run.gpu_seconds for run in ALL if run.stage == "grid"))
    assert f"16 runs, about {total} GPU seconds" in printed
