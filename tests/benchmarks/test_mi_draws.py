"""Benches of mutual information: their tasks share what they say, and draws accumulate."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    mi_bmi,
    mi_calibration,
    mi_certified,
    mi_device,
    mi_draws,
    mi_few,
    mi_images,
    mi_independence,
    mi_mutinfo,
)
from flatclr.files import read_json_lines
from flatclr.mi import estimate, tasks


@pytest.mark.parametrize("name", mi_mutinfo.DISTRIBUTIONS)
def test_a_distribution_of_mutinfo_shares_what_it_says(name: str):
    for nats in (0.4, 1.0, 2.0):  # of independent columns it is the sum
        task = mi_mutinfo.DISTRIBUTIONS[name](nats, 1)
        assert task is not None
        assert task.mi_nats == pytest.approx(nats)
        found = estimate(*task.sample(4000, seed=0), "mixed_ksg" if name == "quantized" else "ksg")
        assert abs(found.nats - nats) < 4 * found.standard_error + 0.03


def test_the_published_table_has_every_distribution():
    published = json.loads((mi_mutinfo.FOLDER / "published.json").read_text())

    assert set(published["mean_absolute_error"]) == set(mi_mutinfo.DISTRIBUTIONS)
    assert all(len(v) == 11 for rows in published["mean_absolute_error"].values() for v in rows.values())


def test_twelve_cells_of_sixty_draws_go_round():
    draws = list(mi_calibration.draws())

    assert len(draws) == 720
    assert len({draw.cell for draw in draws[:12]}) == 12
    assert {draw.task.dim_x for draw in draws} == {1, 5, 20}


def test_draws_go_on_where_they_were_stopped(tmp_path: Path):
    pair = tasks.gaussian_pairs(1, pairs=1)
    wanted = [mi_draws.Draw("pair", pair, 100, seed, 5.0) for seed in range(3)]
    path = tmp_path / "draws.jsonl"
    assert len(list(mi_draws.accumulate(wanted[:2], path, seconds=60))) == 2
    assert len(list(mi_draws.accumulate(wanted, path, seconds=60))) == 1

    rows = list(read_json_lines(path))
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert all(row["environment"]["commit"] for row in rows)
    told = mi_calibration.summary([{**row, "cell": "gaussian, 100 rows, 1 columns"} for row in rows])
    assert "| gaussian | 3 |" in told


def test_shards_at_work_together_make_every_draw_once(tmp_path: Path):
    pair = tasks.gaussian_pairs(1, pairs=1)

    def run(shard: str) -> None:
        wanted = (mi_draws.Draw("pair", pair, 60, seed, 5.0, "gaussian") for seed in range(40))
        given = mi_draws.parser(None).parse_args(["--shard", shard, "--folder", str(tmp_path)])
        mi_draws.go_on(wanted, tmp_path / "not here", lambda rows: f"{len(rows)} rows", given)

    with ThreadPoolExecutor() as shards:
        list(shards.map(run, ["1/3", "2/3", "3/3"]))

    lines = (tmp_path / "draws.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines) == list(range(40))
    assert (tmp_path / "README.md").read_text() == "40 rows"
    assert not (tmp_path / "not here").exists()


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/x", "-1/2"])
def test_a_shard_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        mi_draws.parser(None).parse_args([f"--shard={text}"])

    assert stopped.value.code == 2
    assert "expected I/N with 1 <= I <= N" in capsys.readouterr().err


def test_a_page_names_every_machine_that_its_rows_are_from():
    here, there = {"cpu": "A", "cores": 2, "commit": "1a"}, {"cpu": "B", "cores": 16, "commit": "2b"}
    rows = [{"environment": here}, {"environment": there}, {"environment": {**there, "commit": "3c"}}]

    assert mi_draws.measured_on(rows[:1]) == "Measured on cpu A, cores 2; commits 1a."
    assert mi_draws.measured_on(rows) == (
        "Measured on cpu B, cores 16 (2 rows); cpu A, cores 2 (1 rows); commits 1a, 2b, 3c."
    )


def test_the_worst_read_cells_of_mutinfo_are_looked_at_longer():
    rows = list(read_json_lines(mi_mutinfo.FOLDER / "draws.jsonl"))
    longest = [draw for draw in mi_device.draws() if draw.budget_seconds == mi_device.LONG_SECONDS]
    errors = {row["cell"]: mi_device.off(row) for row in rows}

    cells = [draw.cell.removesuffix("; cuda") for draw in longest]
    assert sorted(errors.values())[-mi_device.HARDEST :] == [errors[cell] for cell in reversed(cells)]
    assert {draw.device for draw in longest} == {"cuda"}


def test_numbers_of_two_devices_stand_side_by_side():
    cell = next(mi_device.cells())
    row = {"nats": 1.0, "true_nats": 1.0, "standard_error": 0.5, "method": "infonce", "wall_seconds": 2.0}
    row["environment"] = {"cpu": "A", "commit": "1a"}
    numbers = {"cuda": 1.0, "cpu": 1.25, "cuda again": 1.0}

    page = mi_device.summary([{**row, "cell": f"{cell.cell}; {name}", "nats": v} for name, v in numbers.items()])

    assert "| 1.000 +- 0.500 | 1.250 +- 0.500 | 0.50 | infonce | infonce | 2.0 | 2.0 | yes |" in page


def test_an_estimate_without_an_error_covers():
    row = {"nats": 3.0, "true_nats": 10.0, "standard_error": None}

    assert mi_calibration.covers(row)
    assert not mi_calibration.covers({**row, "standard_error": 0.1})
    centre, half = mi_calibration.wilson(57, 60)
    assert centre - half == pytest.approx(0.863, abs=0.001)


def test_no_cell_of_a_bent_family_is_a_gaussian_in_disguise():
    for dim in (1, 5, 20):
        task = mi_calibration.task_of("bent", dim)
        assert (task.dim_x, task.dim_y) == (dim, dim)
        seen = estimate(*task.sample(4_000, seed=0), "gaussian").nats
        assert seen < 0.9 * task.mi_nats


def test_few_rows_are_drawn_as_published():
    drawn = [next(mi_few.draws())]
    grid = {draw.rows for draw, _ in zip(mi_few.draws(), range(13 * 20), strict=False)}
    assert len(grid) == 20
    assert (min(grid), max(grid)) == (10, 500)
    assert drawn[0].task.sample(drawn[0].rows, 0)[0].shape[1] == drawn[0].task.dim_x
    covariance = mi_few.latent_covariance(3, 2, common=0, strength=2.0, own=0, rest=2.0)
    correlation = mi_few.correlation_of(covariance)
    assert correlation[0, 3] == pytest.approx(0.8)
    assert correlation[2, 5] == 0
    assert tasks.gaussian(correlation, 3).mi_nats == pytest.approx(tasks.gaussian_pairs(3, correlation=0.8).mi_nats)
    full = mi_few.latent_covariance(2, 1, common=1.0, strength=2.0, own=3.0, rest=0.5)
    assert full[0].tolist() == [1 + 9 + 4 + 1, 1 + 9, 1 + 4, 1]


def test_bounds_above_the_truth_are_counted():
    normal = mi_certified.count("normal, correlation 0.99", rows=20, draws=20)

    assert normal["too_high"] <= 4
    assert 0.5 < normal["mean_lower_nats"] < normal["mean_nats"] < 2.5
    assert "| on a folded line | 0.81 | 5.0%, 0.10 | 0.0%, 0.00 | 0.9" in mi_certified.markdown(
        [
            {"law": law, "rows": rows, "draws": 200, "too_high": high, "mean_lower_nats": high / 100}
            for law in mi_certified.LAWS
            for rows, high in ((12, 10), (20, 0))
        ]
    )


def test_parts_of_images_have_the_relations_they_are_for():
    images = np.random.default_rng(0).uniform(size=(2 * mi_images.ROWS, 8, 8))
    pairs = mi_images.pairs_of(images)
    x, y = pairs["value"]
    assert set(pairs) == set(mi_images.PARTS)
    np.testing.assert_array_equal(x[:, :32], y)
    np.testing.assert_array_equal(pairs["masking"][1], y[:, :16])
    processed = pairs["data processing"][1]
    np.testing.assert_allclose(processed[:, 32:40], y[:, 8:16] - y[:, :8])
    both_x, both_y = pairs["additivity"]
    np.testing.assert_array_equal(both_y[:, 32:], pairs["independence"][1])
    assert both_x.shape[1] == 2 * x.shape[1]


def test_a_method_that_looks_at_no_clock_is_given_up():
    def long() -> None:
        given_up = time.monotonic() + 60
        with mi_images.patience(0.05):
            while time.monotonic() < given_up:
                pass

    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TimeoutError, match="no answer"):
        long()
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_information_where_there_is_none_is_counted():
    row = {"nats": 0.25, "standard_error": 0.1}
    assert mi_independence.above(row, 2)
    assert not mi_independence.above(row, 3)
    assert not mi_independence.above({**row, "standard_error": None}, 2)


def test_tasks_that_both_lists_of_bmi_have_are_the_same_and_stand_in_both_tables():
    first, second = mi_bmi.first_list(), tasks.mixture_tasks()
    row = {"true_nats": 1.0, "nats": 0.75, "standard_error": 0.1, "method": "ksg", "cpu_seconds": 1.0}
    row["environment"] = {"commit": "0abc"}

    shared = first.keys() & second.keys()
    page = mi_bmi.summary([{**row, "cell": f"{name}; auto"} for name in shared])

    assert len(first) == 39
    assert len(shared) == 13
    assert all(first[name].mi_nats == pytest.approx(second[name].mi_nats) for name in shared)
    assert page.count("auto 0.250 (13 tasks)") == 2
