"""The benchmark of estimators: resumes, runs in processes, and says where it ran."""

from pathlib import Path

import pytest

from flatclr.mi import benchmark


def small_cells(methods: tuple[str, ...] = ("gaussian", "ksg")) -> list[benchmark.Cell]:
    return benchmark.cells(methods, rows=200, seeds=2, names=["normal 1", "additive 0.2"])


def test_the_benchmark_resumes_after_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = benchmark.run_benchmark(small_cells(("gaussian",)), tmp_path, workers=1)
    path = tmp_path / benchmark.LINES
    path.write_text(path.read_text() + '{"task": "normal 1", "meth')
    ran = []
    run_cell = benchmark.run_cell
    monkeypatch.setattr(benchmark, "run_cell", lambda cell: ran.append(cell) or run_cell(cell))

    rows = benchmark.run_benchmark(small_cells(), tmp_path, workers=1)

    assert {cell.method for cell in ran} == {"ksg"}
    assert len(ran) == 4
    assert [row for row in rows if row["method"] == "gaussian"] == first
    assert benchmark.run_benchmark(small_cells(), tmp_path, workers=1) == rows
    assert len(ran) == 4


def test_processes_give_the_numbers_of_one(tmp_path: Path):
    alone, together = (
        benchmark.run_benchmark(small_cells(("gaussian",)), tmp_path / str(workers), workers=workers)
        for workers in (1, 2)
    )

    assert [row["nats"] for row in together] == [row["nats"] for row in alone]


def test_mean_absolute_errors_stand_below_the_table():
    row = {"task": "t", "method": "m", "task_set": "s", "true_nats": 1.0, "cpu_seconds": 2.0, "rows": 60, "fast": True}
    table = benchmark.table([{**row, "nats": 1.5, "seed": 0}, {**row, "nats": 0.9, "seed": 1}])

    assert "| t | 1.000 | 1.200 |" in table
    assert "| **mean absolute error** | | 0.3000 |" in table
    assert "| **mean CPU seconds** | | 2.0 |" in table
    assert table.endswith("Task set 's', 60 rows a task, seeds 0, 1, small networks (--fast).\n")


def test_every_machine_and_commit_that_ran_a_part_is_named():
    row = {"task": "t", "method": "m", "task_set": "s", "rows": 60, "seed": 0, "fast": False}
    lines = benchmark.provenance([{**row, "environment": {"commit": name}} for name in ("a", "b", "a")])

    assert lines[1:] == ["Measured with commit a.", "Measured with commit b."]
