"""The plan, runs and tables of CIFAR-10, with stand-ins for the GPU and its hours."""

from __future__ import annotations

import doctest
import gzip
import io
import json
import math
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import scipy.stats
import torch
import yaml

from benchmarks.cifar10 import __main__ as command
from benchmarks.cifar10 import claims, kept, pages, plan, runs, summary
from benchmarks.cifar10.pages import common, information, rates
from benchmarks.cifar10.pages.batches import batch_page
from benchmarks.cifar10.pages.divergences import divergence_page
from benchmarks.cifar10.plan import FULL, NCE, SIMCLR, STAGES, TINY, PlannedRun, planned
from flatclr.cli.main import app
from flatclr.diagnostics import gradient_snr
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import RANDOM, TRAINED, Evaluation, Row
from flatclr.training.config import TrainConfig
from flatclr.training.instruments import SNR_FLOOR
from flatclr.training.recipes import RECIPES

ALL = planned(list(STAGES), FULL, FULL.starting_rates)
TINY_GRID = planned(["grid"], TINY, TINY.starting_rates)
HALF_WIDTH = 0.008  # of the synthetic intervals over test images
EVALUATION_SECONDS = 0.5


def names(items: list[PlannedRun]) -> list[str]:
    return [run.name for run in items]


def metric_rows(run: PlannedRun, knn: float) -> list[dict[str, Any]]:
    """Accuracy and pool MI grow together over eight evaluations; the batch's MI stays where it is."""
    steps, every = run.steps, max(1, math.ceil(run.steps / 8))
    rows: list[dict[str, Any]] = []
    for step in [*range(every, steps, every), steps]:
        common = {"step": step, "epoch": 20 * step / steps}
        gauges = {"ess": 0.2, "saturation": 0.9, "beta": 10.0, "gradient_snr": 0.5, "images_per_second": 1000.0}
        rows.append({**common, "kind": "log", "mi_nats": 3.0 + 0.01 * (step % 3), **gauges})
        grown = knn * (0.5 + 0.5 * step / steps)
        rows.append({**common, "kind": "evaluation", "knn": grown, "pool_mi_best_nats": 10 * grown})
    return rows


def scores_around(value: float) -> dict[str, Score]:
    shifted = {"top1": value, "top1_k10": value + 0.01}
    return {name: Score(at, at - HALF_WIDTH, at + HALF_WIDTH) for name, at in shifted.items()}


def leave_run(home: Path, run: PlannedRun, knn: float) -> None:
    """Keep a run directory as a run of this name would have left it."""
    folder = home.parent / "made" / run.name
    (folder / "evaluation").mkdir(parents=True)
    settings = run.config(out=str(folder), data="/somewhere/cifar10", data_dir="/somewhere/else")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings.to_dict()))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.11.0", "python": "3.12.3"}))
    rows = metric_rows(run, knn)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = {
        "kind": "process",
        "does": "train",
        "beside": 4,
        "gpu": "a GPU",
        "cpu": "a CPU",
        "cores": 16,
        "commit": "c0ffee",
    }
    lasts = {"log": 0.0, "evaluation": EVALUATION_SECONDS}
    clock = [{**began, "seconds": 0.0}] + [
        {"kind": row["kind"], "step": row["step"], "seconds": 10.0 + row["step"] + lasts[row["kind"]]} for row in rows
    ]
    (folder / "clock.jsonl").write_text("".join(json.dumps(row) + "\n" for row in clock))
    found = [
        Row(name, 1, "", "cifar10", "output", weights, "top1", scores_around(at))
        for name, shift in (("knn", 0.0), ("linear", 0.05))
        for weights, at in ((TRAINED, knn + shift), (RANDOM, 0.3 + shift))
        if name in run.protocols
    ]
    (folder / "evaluation" / "results.json").write_text(json.dumps(Evaluation(str(folder), "", tuple(found)).to_dict()))
    kept.keep(folder, home)


def leave_rates(home: Path, best: Mapping[int, float]) -> None:
    for run in planned(["lr"], FULL, {}):
        batch, rate = run.settings["batch_size"], run.settings["learning_rate"]
        leave_run(home, run, 0.5 - 0.05 * abs(math.log2(rate / best[batch])))


def accuracy_where_small_batches_hurt_info_nce(run: PlannedRun) -> float:
    loses = 0.1 if run.config().objective == "infonce" and run.batch < 256 else 0.0
    return float(0.7 - loses + 0.002 * run.settings["seed"] + 0.2 * (run.stage == "fast"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run of the plan, and its pages."""
    made = tmp_path_factory.mktemp("cifar10") / "results"
    rates = {32: 0.06, 256: 0.24}
    leave_rates(made, rates)
    for run in planned([stage for stage in STAGES if stage != "lr"], FULL, rates):
        leave_run(made, run, accuracy_where_small_batches_hurt_info_nce(run))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "RESAMPLES", 50)  # enough for intervals that are tested elsewhere
        pages.write(made)
    return made


def page(home: Path, name: str) -> str:
    return (home / f"{name}.md").read_text()


def table_row(text: str, *starts: str) -> list[str]:
    """The cells of the first row that begins so."""
    begins = "| " + " | ".join(starts) + " |"
    return next(line for line in text.splitlines() if line.startswith(begins)).strip("| ").split(" | ")


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
    recipe = RECIPES["cifar10-fast"]()
    candidates = [run.config() for run in ALL if run.stage == "fast"]

    for config in candidates:
        assert config == recipe.changed(epochs=config.epochs, seed=0)
    assert recipe in candidates


def test_fast_runs_warm_up_for_about_a_fiftieth_and_let_all_images_vote() -> None:
    for config in (run.config() for run in ALL if run.stage in ("fast", "screen")):
        assert plan.FAST_WARMUP_SHARE / 2 < config.warmup_epochs / config.epochs < 1.5 * plan.FAST_WARMUP_SHARE
        assert config.eval_samples >= FULL.images


def test_the_screen_tries_sizes_of_views_that_cost_about_the_same() -> None:
    fast, plain = RECIPES["cifar10-fast"](), RECIPES["cifar10"]()
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


class Started:
    """Stands in for a process: says its lines, then ends, by itself or when it is told to."""

    def __init__(self, code: int, lines: list[str], told: bool = False) -> None:
        self.code, self.signalled = code, threading.Event()
        self.stdout = self._say(lines, told)

    def _say(self, lines: list[str], told: bool) -> Iterator[str]:
        yield from lines
        if told:
            assert self.signalled.wait(30)

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def send_signal(self, _: int) -> None:
        self.signalled.set()


def site(folder: Path) -> runs.Site:
    return runs.Site(TINY, folder / "runs", folder / "results", commit="c0ffee")


def later() -> float:
    return time.monotonic() + 600


def launch_here(arguments: list[str], stderr: IO[str], environment: Mapping[str, str]) -> Started:
    """The same command within this process, which saves the start of another."""
    with redirect_stdout(io.StringIO()) as printed:
        app([*arguments, "--json"], standalone_mode=False)
    return Started(0, printed.getvalue().splitlines(keepends=True))


def test_a_run_is_trained_and_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(TINY_GRID[0], settings={**TINY_GRID[0].settings, "steps": 2}, protocols=("knn",))
    monkeypatch.setattr(runs, "launch", launch_here)

    first = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)
    second = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    found = kept.kept_runs(tmp_path / "results")[run.name]
    assert first.by_run == {run.name: "done"}
    assert second.by_run == {run.name: "kept"}
    assert [process["does"] for process in found.processes] == ["train", "eval"]
    for protocol in run.protocols:
        for score in (found.score(protocol), found.score(protocol, name="top1_k10"), found.untrained(protocol)):
            assert score is not None
            assert 0 <= score.low <= score.value <= score.high <= 1


def test_a_process_trains_on_images_that_leave_some_out(tmp_path: Path) -> None:
    run = planned(["lr"], TINY, {})[0]

    outcome = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    found = kept.kept_runs(tmp_path / "results")[run.name]
    assert outcome.by_run == {run.name: "done"}
    assert found.config.data == "held-out.npz"
    assert found.processes[0]["commit"] == "c0ffee"
    assert 0 <= kept.held_out_knn(found) <= 1
    (end,) = summary.times(found)
    assert 0 < end.training < end.wall
    with np.load(tmp_path / "runs" / "held-out.npz") as images:
        counts = {name: len(images[name]) for name in ("train_images", "test_images")}
    assert counts == {"train_images": TINY.images - TINY.held_out, "test_images": TINY.held_out}


def test_one_failure_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = TINY_GRID[:2]

    def launch(arguments: list[str], stderr: IO[str], environment: Mapping[str, str]) -> Started:
        if any(bad.name in argument for argument in arguments):
            stderr.write("flatclr: a batch must fit\n")
            return Started(1, [])
        folder = tmp_path / "runs" / good.name
        (folder / "encoder.safetensors").touch()
        (folder / "evaluation").mkdir(exist_ok=True)
        rows = [{"protocol": name} for name in good.protocols]
        (folder / "evaluation" / "results.json").write_text(json.dumps({"rows": rows}))
        (folder / "config.yaml").write_text(yaml.safe_dump(good.config(data="tiny.npz").to_dict()))
        for name in ("environment.json", "metrics.jsonl"):
            (folder / name).write_text("{}")
        return Started(0, [])

    monkeypatch.setattr(runs, "launch", launch)
    outcome = runs.execute([bad, good], site(tmp_path), deadline=later(), parallel=2, say=lambda _: None)

    assert outcome.by_run == {bad.name: "failed: flatclr: a batch must fit (exit code 1)", good.name: "done"}
    assert outcome.failed == [bad.name]


def test_at_the_deadline_processes_are_told_to_stop_and_nothing_new_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Started] = []

    def launch(*_: Any) -> Started:
        started.append(Started(130, ['{"kind": "start", "step": 0}\n'], told=True))
        return started[-1]

    def clock() -> float:
        """An hour passes once both processes are there, however slow the machine."""
        return time.monotonic() + (3600 if len(started) == 2 else 0)

    monkeypatch.setattr(runs, "launch", launch)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(runs, "REPORT_SECONDS", 0.05)
    outcome = runs.execute(TINY_GRID[:3], site(tmp_path), deadline=later(), parallel=2, say=lambda _: None)

    assert len(started) == 2
    assert all(process.signalled.is_set() for process in started)
    assert list(outcome.by_run.values()) == ["stopped", "stopped", "not started"]
    assert not outcome.complete
    assert not outcome.failed


def test_whole_runs_only_are_not_started_when_they_cannot_end_in_time(tmp_path: Path) -> None:
    long = replace(TINY_GRID[0], gpu_seconds=10_000.0)

    outcome = runs.execute([long], site(tmp_path), deadline=later(), whole=True, say=lambda _: None)

    assert outcome.by_run == {long.name: "not started"}


def test_a_run_that_was_begun_is_resumed_unless_the_plan_has_changed(tmp_path: Path) -> None:
    run, at = TINY_GRID[0], site(tmp_path)
    folder = tmp_path / "runs" / run.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config(out=str(folder)).to_dict()))

    assert runs.train_arguments(run, at) == ["train", "--resume", str(folder)]
    changed = replace(run, settings={**run.settings, "learning_rate": 0.5})
    with pytest.raises(ValueError, match=r"learning_rate 0\.5 \(was 0\.03\); remove it"):
        runs.train_arguments(changed, at)


def test_kept_runs_of_another_plan_are_not_taken_for_this_one(tmp_path: Path) -> None:
    run = replace(TINY_GRID[0], settings={**TINY_GRID[0].settings, "learning_rate": 0.5})
    leave_run(tmp_path / "results", TINY_GRID[0], 0.7)

    outcome = runs.execute([run], site(tmp_path), deadline=later(), say=lambda _: None)

    assert outcome.by_run[run.name].startswith("failed: planned with learning_rate 0.5 (was 0.03); remove")


def test_a_second_command_is_refused_while_the_first_has_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--plan", "tiny", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]

    with runs.alone_in(tmp_path / "runs"):
        assert command.main(["run", *places, "--stage", "lr"]) == 2

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert f"{tmp_path / 'runs'} must be used by one command at a time, got a second" in told[0]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]


def test_the_lock_ends_with_the_last_process_that_was_started_under_it(tmp_path: Path) -> None:
    with runs.alone_in(tmp_path):
        left_behind = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with pytest.raises(ValueError, match="one command at a time"), runs.alone_in(tmp_path):
            pass
    finally:
        left_behind.kill()
        left_behind.wait()
    with runs.alone_in(tmp_path):
        pass


def test_a_process_notes_whether_it_shares_the_gpu_by_the_service_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))

    assert not runs.has_multi_process_service()
    (tmp_path / "control").touch()
    assert runs.has_multi_process_service()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--stage", "grid"], "all runs of the stage lr must be in"),
        (["run", "--stage", "lr", "--data", "nowhere"], "cifar10 must stand in a data folder"),
        (["run", "--stage", "lr", "--minutes", "0"], "--minutes must be a finite number > 0"),
        (["run", "--stage", "lr", "--only", "lr-b32"], "--only must be one of"),
        (["run", "--stage", "lr", "--parallel", "0"], "parallel must be a whole number >= 1"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]

    assert command.main([*arguments, *places]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_plan_is_printed_with_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out

    assert all(name in printed for name in names(ALL))
    total = round(sum(run.gpu_seconds for run in ALL if run.stage == "grid"))
    assert f"16 runs, about {total} GPU seconds" in printed


def cell_of(values: list[float], *, batch: int = 32) -> summary.Cell:
    """A cell whose runs have these accuracies, and intervals of no width."""

    class Known(kept.KeptRun):
        def score(self, protocol: str, weights: str = TRAINED, *, name: str | None = None) -> Score:
            value = float(self.path.name)
            return Score(value, value, value)

    return summary.Cell("an objective", batch, 1, (), tuple(Known(Path(repr(value))) for value in values))


def test_a_difference_of_two_cells_has_the_interval_of_the_two_sample_t_test() -> None:
    a, b = [0.71, 0.72, 0.74], [0.69, 0.70]
    one, other = cell_of(a), cell_of(b)

    found = summary.difference(one, other, "knn", summary.pooled_spread([one, other], "knn"))

    known = scipy.stats.ttest_ind(a, b).confidence_interval()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-5)


def test_the_mean_of_a_cell_has_the_interval_of_the_t_test() -> None:
    values = [0.71, 0.72, 0.74]
    cell = cell_of(values)

    found = summary.mean_accuracy(cell, "knn", summary.pooled_spread([cell], "knn"))

    known = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx(
        (statistics.fmean(values), known.low, known.high), abs=1e-5
    )


def test_differences_that_are_read_together_have_intervals_that_hold_together() -> None:
    one, other, third = (cell_of(values) for values in ([0.71, 0.72], [0.69, 0.70], [0.65, 0.68]))
    spread = {name: summary.pooled_spread([one, other, third], name) for name in ("knn", "linear")}
    judge = summary.Judge.over([(one, other), (one, third), (other, cell_of([]))], spread)
    rng = np.random.default_rng(0)
    deviation, seeds, freedom = 1.0, 2, spread["knn"].freedom
    means = rng.normal(size=(4000, 8, 2)) * deviation / math.sqrt(seeds)
    found = deviation * np.sqrt(rng.chisquare(freedom, size=4000) / freedom)
    half = summary.Spread(1.0, freedom).half_width(seeds, seeds, comparisons=8)

    assert judge.comparisons == 4
    single, together = (judge_of.difference(one, other, "knn") for judge_of in (summary.Judge(spread, 1), judge))
    assert single is not None
    assert together is not None
    assert together.low < single.low < single.high < together.high
    wrong = (np.abs(means[..., 0] - means[..., 1]).max(1) > half * found).mean()
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("truth", [0.0, 0.3, 1.0])
def test_signal_to_noise_loses_its_floor(truth: float) -> None:
    rng, size = torch.Generator().manual_seed(0), 2000
    signal = torch.zeros(size)
    signal[0] = truth * math.sqrt(size)  # noise has a norm of about sqrt(size)
    drawn = [gradient_snr(signal + torch.randn(8, size, generator=rng)) for _ in range(60)]
    run: Any = SimpleNamespace(logs=[{"step": 1}], metrics=[{"step": 1, "gradient_snr": value} for value in drawn])

    found = summary.signal_to_noise([run])

    assert found is not None
    assert found**2 == pytest.approx(truth**2, abs=0.005 + 0.02 * truth)
    if truth == 0:
        assert statistics.fmean(value for value in drawn if value is not None) == pytest.approx(SNR_FLOOR, rel=0.01)


def test_one_seed_gives_no_interval_of_a_difference() -> None:
    one, other = cell_of([0.7]), cell_of([0.6])

    found = summary.difference(one, other, "knn", summary.pooled_spread([one, other], "knn"))

    assert found is not None
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def random_checkpoints(copies: int = 1) -> list[summary.Checkpoint]:
    rng = np.random.default_rng(0)
    points = []
    for run in range(12):
        start = rng.normal()
        for _ in range(4):
            x, y, noise = start + rng.normal(size=3)
            points += copies * [summary.Checkpoint(str(run), f"objective {run}", 32, 1, 2, y, x, noise)]
    return points


def test_correlations_are_those_of_scipy() -> None:
    points = random_checkpoints()
    x, y = ([getattr(p, name) for p in points] for name in ("pool_mi_nats", "knn"))

    found = summary.correlation(points, "pool_mi_nats")

    assert found is not None
    assert found.pearson.value == pytest.approx(scipy.stats.pearsonr(x, y).statistic)
    assert found.spearman.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert found.pearson.low < found.pearson.value < found.pearson.high


def test_more_checkpoints_of_the_same_runs_do_not_narrow_the_interval_of_a_correlation() -> None:
    once, often = (summary.correlation(random_checkpoints(copies), "pool_mi_nats") for copies in (1, 5))

    assert once is not None
    assert often is not None
    assert (often.pearson.low, often.pearson.high) == pytest.approx((once.pearson.low, once.pearson.high))


def test_few_cells_give_a_correlation_without_an_interval() -> None:
    points = [replace(point, objective="one") for point in random_checkpoints()]

    found = summary.correlation(points, "pool_mi_nats")

    assert found is not None
    assert found.runs == 12
    assert math.isfinite(found.pearson.value)
    assert math.isnan(found.pearson.low)
    assert summary.correlation(points[:8], "pool_mi_nats") is None


def test_what_correlates_by_time_alone_does_not_at_equal_epochs() -> None:
    rng = np.random.default_rng(0)
    points = [
        summary.Checkpoint(str(run), f"objective {run}", 32, number, 12, *(number + rng.normal(size=3)))
        for run in range(16)
        for number in range(1, 13)
    ]
    all_, equal = (summary.correlation(group, "pool_mi_nats") for group in (points, summary.at_equal_epochs(points)))

    assert all_ is not None
    assert equal is not None
    assert all_.pearson.low > 0.85
    assert abs(equal.pearson.value) < 3 / math.sqrt(len(points))
    assert equal.points == len(points)


def test_minutes_are_those_of_the_clock_with_and_without_evaluations(tmp_path: Path) -> None:
    run = planned(["fast"], FULL, FULL.starting_rates)[0]
    leave_run(tmp_path / "results", run, 0.9)
    found = summary.times(kept.kept_runs(tmp_path / "results")[run.name])

    assert found[-1].wall == 10.0 + run.steps + EVALUATION_SECONDS
    assert found[-1].training == pytest.approx(found[-1].wall - 8 * EVALUATION_SECONDS)
    reached = summary.first_reaching(found, 0.80)
    assert reached is not None
    assert reached == next(time for time in found if 0.9 * (0.5 + 0.5 * time.epoch / 20) >= 0.80)
    assert summary.first_reaching(found, 0.95) is None
    assert summary.ending_at(found, 0.80) == found[-1]
    assert summary.ending_at([*found[:-1], replace(found[-1], knn=0.79)], 0.80) is None


def test_the_wall_counts_what_a_stopped_process_spent() -> None:
    rows = [
        {"kind": "process", "does": "train", "seconds": 0.0},
        {"kind": "log", "step": 5, "seconds": 18.0},
        {"kind": "evaluation", "step": 5, "seconds": 20.0},
        {"kind": "log", "step": 7, "seconds": 30.0},
        {"kind": "process", "does": "train", "seconds": 0.0},
        {"kind": "log", "step": 10, "seconds": 11.0},
        {"kind": "evaluation", "step": 10, "seconds": 12.0},
        {"kind": "process", "does": "eval", "seconds": 0.0},
        {"kind": "row", "seconds": 15.0},
    ]

    assert summary._spent(rows) == {5: (20.0, 2.0), 10: (42.0, 3.0)}


def test_every_page_has_its_figures_its_command_and_its_hardware(home: Path) -> None:
    for name in pages.PAGES:
        text = page(home, name)
        assert "python -m benchmarks.cifar10 run --stage" in text
        assert "```sh\nflatclr train --recipe cifar10" in text
        assert "On a GPU, 16 cores of a CPU; PyTorch 2.11.0; commit c0ffee, seed" in text
        drawn = [line[line.index("(") + 1 : -1] for line in text.splitlines() if line.startswith("![")]
        assert drawn
        for picture in drawn:
            assert (home / picture).read_bytes().startswith(b"\x89PNG")


def test_the_page_of_rates_says_what_was_chosen_and_the_rule(home: Path) -> None:
    text = page(home, "learning_rate")

    assert table_row(text, "32", "0.06")[-1] == "chosen"
    assert "rate(B) = 0.06 (B / 32)^0.67" in text
    assert "end of the range" not in text
    assert "fit powers from 0.7 to 0.7" in text  # of the rates here, one is clearly best at each batch
    assert "the 20 nearest by cosine" in text
    assert """--set 'data="held-out.npz"'""" in text
    assert table_row(text, "256", "0.12") != table_row(text[text.index("around these rates") :], "256", "0.12")


def test_rates_that_are_not_told_apart_leave_the_power_open() -> None:
    scores = {0.03: Score(0.52, 0.51, 0.53), 0.06: Score(0.53, 0.52, 0.54), 0.12: Score(0.50, 0.49, 0.51)}

    without, seeds = summary.Spread(0.0, 0), summary.Spread(0.01, 4)
    told = rates._rate_rule({32: 0.06, 256: 0.06}, {32: scores, 256: scores}, without)

    assert common.alike_to(0.06, scores, without) == [0.03]
    assert common.alike_to(0.06, scores, seeds) == [0.03, 0.12]  # 2.78 sqrt(2) 0.01 is more than the 0.03 between them
    assert "fit powers from -0.3 to 0.3" in told


def test_the_page_of_batches_begins_with_info_nce_against_itself(home: Path) -> None:
    text = page(home, "batch_size")
    first = table_row(text, SIMCLR, "kNN")

    assert text.index("## InfoNCE: the small batch") < text.index("## All objectives")
    assert first[2].startswith("60.1 ± 0.1 [")
    assert first[3].startswith("70.1 ± 0.1 [")
    assert first[4].startswith("-10.0 [-10.")
    assert f"by kNN and linear, so that another objective has something to win back: {SIMCLR}, InfoNCE" in text
    assert "cannot be answered" not in text
    assert "the 200 nearest by cosine voting with weight exp(cosine / 0.07) among all 50,000 training images" in text
    assert "the bound cannot pass about 0.46 of its ceiling at batch 32" in text
    assert "InfoNCE ran at 2, 5 and 10 only" in text
    between = next(line for line in text.splitlines() if "Points between batches" in line)
    assert "FlatNCE, ESS 0.25 at batch 32 less InfoNCE, temperature" in between
    assert between.count("by kNN, not told apart") == between.count("by linear, not told apart") == 1
    assert re.search(r"more than 0\.\d points by kNN and 0\.\d points by linear is excluded\.$", between)


def test_where_info_nce_loses_nothing_the_page_says_that_the_question_stays_open(tmp_path: Path) -> None:
    for run in planned(["grid"], FULL, FULL.starting_rates):
        leave_run(tmp_path / "results", run, 0.7 + 0.002 * run.settings["seed"])
    book = pages.Book(FULL, kept.kept_runs(tmp_path / "results"))

    text = batch_page(book).text
    assert "Not shown to be worse at the small batch, which makes 8 times the updates" in text
    assert f"saves a factor of 8 in batch size cannot be answered at this length: {SIMCLR} and InfoNCE" in text
    assert "at batch 32 is not shown to lose either, so that this shows no saving" in text


def test_where_the_protocols_disagree_on_the_batch_size_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = planned(["grid"], FULL, FULL.starting_rates)
    for run in grid:
        leave_run(tmp_path / "results", run, 0.7 + 0.002 * run.settings["seed"])
    batches = {run.name: run.batch for run in grid}

    def score(self: kept.KeptRun, protocol: str, weights: str = TRAINED, *, name: str | None = None) -> Score:
        value = 0.7 - 0.1 * (protocol == "knn" and batches[self.name] == 32) + 0.002 * self.config.seed
        return Score(value, value, value)

    monkeypatch.setattr(kept.KeptRun, "score", score)
    text = batch_page(pages.Book(FULL, kept.kept_runs(tmp_path / "results"))).text

    assert f"Worse at the small batch by kNN, which linear does not show: {SIMCLR} and InfoNCE" in text


def test_one_seed_of_each_gives_no_verdict(tmp_path: Path) -> None:
    for run in planned(["grid"], FULL, FULL.starting_rates):
        if run.settings["seed"] == 0:
            leave_run(tmp_path / "results", run, accuracy_where_small_batches_hurt_info_nce(run))
    text = batch_page(pages.Book(FULL, kept.kept_runs(tmp_path / "results"))).text

    assert f"Too few seeds for a verdict: {SIMCLR} and InfoNCE" in text
    assert "cannot be answered" not in text
    assert "Worse at" not in text
    assert "seeds for each cell: 1;" in text


def test_the_sweep_shares_its_middle_with_the_grid_and_judges_the_literature(home: Path) -> None:
    text = page(home, "ess")

    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| 0.")] == [
        f"| {target}" for target in ("0.05", "0.15", "0.25", "0.4", "0.7")
    ]
    assert "0.2 to 0.4 is neither confirmed nor refuted" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_divergences_page_names_the_stages_it_shows_and_the_spread_it_assumes(seeds: int, tmp_path: Path) -> None:
    apart = {"grid": 0.002, "fdiv": 0.02, "fdiv-more": 0.02}  # from seed to seed
    for run in planned([*apart][: 1 + seeds], FULL, FULL.starting_rates):
        leave_run(tmp_path / "results", run, 0.7 + apart[run.stage] * run.settings["seed"])
    text = divergence_page(pages.Book(FULL, kept.kept_runs(tmp_path / "results"))).text

    assert (" fdiv-more " in text) == (seeds == 2)
    assumed, own = (f"{100 * deviation / math.sqrt(2):.1f}" for deviation in (0.002, 0.02))
    said = f"no larger (it is {own} against {assumed} points by kNN and" if seeds == 2 else "no larger."
    assert said in text


def test_what_has_no_bound_is_left_out_of_correlations(home: Path) -> None:
    text = page(home, "mi_accuracy")
    without, with_rpc = table_row(text, "all"), table_row(text, "all and RPC")

    rpc = [run for run in planned(["fdiv", "fdiv-more"], FULL, FULL.starting_rates) if run.objective == "RPC"]
    assert int(with_rpc[2]) - int(without[2]) == len(rpc)
    assert len(with_rpc) < len(without)  # no mini-batch MI
    assert f"over all {without[1]} checkpoints" in text


def test_the_first_and_last_evaluations_are_those_of_runs_of_full_length() -> None:
    points = [
        summary.Checkpoint(f"run of {of}", SIMCLR, 32, number, of, 0.5, 1.0, 1.0)
        for of in (2, 12)
        for number in range(1, of + 1)
    ]
    groups = information._groups_of(points, FULL)

    assert len(groups["all"]) == 14
    assert [(p.number, p.of) for name in ("first evaluation", "last evaluation") for p in groups[name]] == [
        (1, 12),
        (12, 12),
    ]


def test_accuracy_that_grows_with_pool_mi_correlates_with_it_fully(home: Path) -> None:
    pool, _, batch, _ = table_row(page(home, "mi_accuracy"), "all")[3:]

    assert pool == "1.00 [1.00, 1.00]"
    assert abs(float(batch.split()[0])) < 0.5


def test_every_divergence_stands_beside_simclr(home: Path) -> None:
    text = page(home, "f_divergences")

    for objective in (SIMCLR, *plan.OTHERS):
        assert table_row(text, objective)[4].startswith("70.1 ±")
    assert "not told apart from SimCLR: KL (+0.0 [-0." in text


def test_every_page_says_what_held_what_did_not_and_what_it_cannot_show(home: Path) -> None:
    for name in pages.PAGES:
        findings = page(home, name).partition("## Findings")[2]
        assert re.search(r"(Held|Did not hold|Not told): .*\. Cannot be shown here: ", findings), name


def test_minutes_to_a_goal_are_named_with_their_run(home: Path) -> None:
    text = page(home, "time_to_accuracy")

    assert table_row(text, "fast-e80-s0")[-2] != "not reached"
    assert [cell[:4] for cell in table_row(text, "fast-e80-s0")[5:8]] == ["90.0", "95.0", "91.0"]
    assert "80 % by kNN took" in text
    assert "the shortest run that ends at or above it is fast-e80-s0" in text
    assert "Held: fast-e180-s0 and fast-e80-s0 ending above 80 % by kNN" in text
    assert table_row(text, "screen-1-s0", "24", "21")[-1].startswith("70.0 [")
    assert "The recipe takes 20 pixels." in text


def test_what_was_not_run_is_said_to_be_so(tmp_path: Path) -> None:
    pages.write(tmp_path)

    for name in pages.PAGES:
        text = page(tmp_path, name)
        assert "not run" in text
        assert "![" not in text
    assert not list(tmp_path.glob("*.png"))


def test_the_headline_replaces_what_is_between_its_marks_alone(home: Path) -> None:
    table = pages.headline(pages.Book(FULL, kept.kept_runs(home)))
    text = pages.with_headline(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n", table)

    assert text == f"before\n{pages.BEGIN}\n{table}\n{pages.END}\nafter\n"
    assert table_row(table, SIMCLR)[1].startswith("60.1 ± 0.1")
    with pytest.raises(ValueError, match="README must hold the lines"):
        pages.with_headline("nothing", table)


@pytest.mark.parametrize("name", pages.PAGES)
def test_pages_show_what_the_kept_runs_give(name: str) -> None:
    book = pages.Book(FULL, kept.kept_runs(kept.HOME))

    assert (kept.HOME / f"{name}.md").read_text() == pages.PAGES[name](book).text


def test_readme_shows_what_the_results_give() -> None:
    text = pages.README.read_text()

    assert text == pages.with_headline(text, pages.headline(pages.Book(FULL, kept.kept_runs(kept.HOME))))


@pytest.mark.slow
def test_the_whole_plan_in_small_makes_every_page_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "launch", launch_here)
    torch.set_num_threads(1)
    places = ["--plan", "tiny", "--results", str(tmp_path / "results")]

    assert command.main(["run", *places, "--runs", str(tmp_path / "runs"), "--parallel", "1", "--minutes", "60"]) == 0
    assert command.main(["tables", *places]) == 0

    for name in pages.PAGES:
        shown = page(tmp_path / "results", name).replace("not reached", "")
        assert "not run" not in shown
        assert "![" in shown
