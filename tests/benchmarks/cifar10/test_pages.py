"""The pages of CIFAR-10: what held, what did not, and what was not run."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from benchmarks.cifar10 import __main__ as command
from benchmarks.cifar10 import kept, pages, plan, runs, summary
from benchmarks.cifar10.pages import common, information, rates
from benchmarks.cifar10.pages.batches import batch_page
from benchmarks.cifar10.pages.divergences import divergence_page
from benchmarks.cifar10.plan import FULL, SIMCLR, STAGES, planned
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.results import TRAINED
from tests.support.cifar10 import (
    accuracy_where_small_batches_hurt_info_nce,
    launch_here,
    leave_rates,
    leave_run,
    page,
    table_row,
)


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
    assert f"The loss of {common.spoken(SIMCLR)}, InfoNCE at temperature" in text
    assert "shows by kNN and linear: another objective could win it back." in text
    assert "cannot say" not in text
    assert "the 200 nearest by cosine voting with weight exp(cosine / 0.07) among all 50,000 training images" in text
    assert "the bound cannot pass about 0.46 of its ceiling at batch 32" in text
    assert "InfoNCE ran at 2, 5 and 10 only" in text
    between = next(line for line in text.splitlines() if "Across batch sizes" in line)
    assert "FlatNCE at ESS 0.25 and batch 32 shows no clear difference by kNN (" in between
    assert ") or linear (" in between
    assert " against InfoNCE at temperature" in between
    assert re.search(r"exclude a loss of more than 0\.\d kNN points and 0\.\d linear points\.$", between)


def test_where_info_nce_loses_nothing_the_page_says_that_the_question_stays_open(tmp_path: Path) -> None:
    for run in planned(["grid"], FULL, FULL.starting_rates):
        leave_run(tmp_path / "results", run, 0.7 + 0.002 * run.settings["seed"])
    book = pages.Book(FULL, kept.kept_runs(tmp_path / "results"))

    text = batch_page(book).text
    assert f"No loss is shown for {common.spoken(SIMCLR)} and InfoNCE at temperature 0.1 at the small batch" in text
    assert "cannot say whether another objective saves a factor of 8 in batch size" in text
    assert "shows no loss at batch 32 either: no saving is shown." in text


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

    assert (
        f"The loss of {common.spoken(SIMCLR)} and InfoNCE at temperature 0.1 shows by kNN, but not by linear." in text
    )


def test_one_seed_of_each_gives_no_verdict(tmp_path: Path) -> None:
    for run in planned(["grid"], FULL, FULL.starting_rates):
        if run.settings["seed"] == 0:
            leave_run(tmp_path / "results", run, accuracy_where_small_batches_hurt_info_nce(run))
    text = batch_page(pages.Book(FULL, kept.kept_runs(tmp_path / "results"))).text

    assert f"{common.spoken(SIMCLR)} and InfoNCE at temperature 0.1: too few seeds for a verdict." in text
    assert "cannot say" not in text
    assert "The loss of" not in text
    assert "Seeds of each cell: 1." in text


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
    assert "Not told apart from SimCLR: KL (+0.0 [-0." in text


def test_every_page_says_what_held_what_did_not_and_what_it_cannot_show(home: Path) -> None:
    for name in pages.PAGES:
        findings = page(home, name).partition("## Findings")[2]
        table, _, cannot = findings.partition("## What these runs cannot show")
        assert re.search(r"^\| \w.*\. \| (held|did not hold|cannot be told here)", table, re.MULTILINE), name
        assert cannot.strip().endswith("."), name


def test_minutes_to_a_goal_are_named_with_their_run(home: Path) -> None:
    text = page(home, "time_to_accuracy")

    assert table_row(text, "fast-e80-s0")[-2] != "not reached"
    assert [cell[:4] for cell in table_row(text, "fast-e80-s0")[5:8]] == ["90.0", "95.0", "91.0"]
    assert "was the first at 80 % by kNN, after" in text
    assert "The shortest run that ends at or above it is fast-e80-s0" in text
    assert "| fast-e180-s0 and fast-e80-s0 end above 80 % by kNN. | held |" in text
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
    with pytest.raises(ValueError, match="the page must hold the lines"):
        pages.with_headline("nothing", table)


@pytest.mark.parametrize("name", pages.PAGES)
def test_pages_show_what_the_kept_runs_give(name: str) -> None:
    book = pages.Book(FULL, kept.kept_runs(kept.HOME))

    assert (kept.HOME / f"{name}.md").read_text() == pages.PAGES[name](book).text


def test_the_page_of_benchmarks_shows_what_the_results_give() -> None:
    text = pages.BENCHMARKS.read_text()

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
