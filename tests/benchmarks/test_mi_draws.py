"""Benches of mutual information: their tasks share what they say, and draws accumulate."""

import json
from pathlib import Path

import pytest

from benchmarks import mi_calibration, mi_draws, mi_mutinfo
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


def test_an_estimate_without_an_error_covers():
    row = {"nats": 3.0, "true_nats": 10.0, "standard_error": None}

    assert mi_calibration.covers(row)
    assert not mi_calibration.covers({**row, "standard_error": 0.1})
    centre, half = mi_calibration.wilson(57, 60)
    assert centre - half == pytest.approx(0.863, abs=0.001)
