"""`flatclr mi`: files in, numbers out, one line for bad input."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from flatclr.cli import main as cli
from flatclr.files import read_json_lines
from flatclr.mi import FAST, METHODS, benchmark, estimate, tasks
from flatclr.mi.tables import read_table

TASK = tasks.gaussian_dense(2, 1)
X, Y = TASK.sample(300, seed=0)

JUNK = {
    "junk_npz": b"not an archive",
    "junk_npy": b"not an array",
    "junk_parquet": b"not a table",
    "empty_csv": b"",
    "header_csv": b"a,b\n",
    "latin_csv": "größe,b\n1,2\n".encode("latin-1"),
    "ragged_csv": b"a,b\n1,2\n3,4,5\n",
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    frame = pd.DataFrame(
        {
            "a": X[:, 0],
            "b": X[:, 1],
            "c": Y[:, 0],
            "d": Y[:, 0] + X[:, 0],
            "name": ["q", "r", "s"] * 100,
            "who": [f"p{i}" for i in range(300)],
            "gap": [np.nan if i % 10 == 0 else i for i in range(300)],
        }
    )
    paths = {kind: tmp_path / f"table.{kind}" for kind in ("csv", "parquet", "npy", "npz", "txt")}
    frame.to_csv(paths["csv"], index=False)
    frame.to_parquet(paths["parquet"])
    np.save(paths["npy"], np.hstack([X, Y]))
    np.savez(paths["npz"], x=X, y=Y, other=Y)
    paths["txt"].write_text("1 2")
    paths["pickled"], paths["renamed"] = tmp_path / "pickled.npz", tmp_path / "renamed.npy"
    np.savez(paths["pickled"], x=np.array([{}] * 60), y=Y[:60])
    paths["renamed"].write_bytes(paths["npz"].read_bytes())
    for name, junk in JUNK.items():
        paths[name] = tmp_path / name.replace("_", ".")
        paths[name].write_bytes(junk)
    return paths


def run_json(*arguments: str) -> list[Any]:
    done = CliRunner().invoke(cli.app, ["mi", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("csv", ["--x", "a,b", "--y", "c"]),
        ("parquet", ["--x", "a, b", "--y", "c"]),
        ("npy", ["--x", "0,1", "--y", "2"]),
        ("npz", []),
        ("npz", ["--x", "x", "--y", "other"]),
    ],
)
def test_every_file_gives_the_number_of_the_arrays(files: dict[str, Path], kind: str, columns: list[str]):
    (found,) = run_json(str(files[kind]), *columns, "--method", "gaussian")

    assert found["nats"] == pytest.approx(estimate(X, Y, "gaussian").nats)
    assert found["kind"] == "neither"


def test_conditioning_columns_are_passed_on(files: dict[str, Path]):
    (found,) = run_json(str(files["csv"]), "--x", "a", "--y", "c", "--given", "b", "--method", "gaussian")

    assert found["nats"] == pytest.approx(estimate(X[:, 0], Y, "gaussian", given=X[:, 1]).nats)


def test_all_methods_are_run_on_request(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(
        "flatclr.cli.mi.estimate", lambda x, y, name, *_, **__: asked.append(name) or estimate(x, y, "gaussian")
    )

    found = run_json(str(files["npz"]), "--method", "all")

    assert asked == [row["asked"] for row in found] == list(METHODS)


def test_the_table_for_people_has_the_number_the_kind_and_the_limit(files: dict[str, Path]):
    arguments = ["mi", str(files["npz"]), "--method", "gaussian", "--detail"]
    done = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "80"})

    assert done.exit_code == 0
    for text in (f"{estimate(X, Y, 'gaussian').nats:.4f}", "neither", "5.70", "300 rows are few"):
        assert text in done.stdout


def test_the_reason_of_the_default_fits_a_narrow_terminal(files: dict[str, Path]):
    arguments = ["mi", str(files["npz"]), "--fast"]
    done = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "80"})
    result = estimate(X, Y, settings=FAST)

    shown = " ".join(done.stdout.split())
    assert f"auto: {result.reason}" in shown
    assert "…" not in shown


def test_each_method_has_its_own_limits_in_the_table(files: dict[str, Path]):
    arguments = ["mi", str(files["npz"]), "--method", "gaussian,js", "--fast", "--detail"]
    lines = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "80"}).stdout.splitlines()
    js = estimate(X, Y, "js", settings=FAST)
    cells = {
        row[0].strip(): [cell.strip() for cell in row[1:]] for row in (line.strip("│").split("│") for line in lines)
    }

    assert cells["ln N"] == ["5.70", "4.09"]  # of 300 rows, and of the 60 that were held out
    assert cells["NWJ variance"][1] == f"{math.expm1(js.nats) / (60 * 59):.2g}"


def test_columns_may_be_named_in_one_option_or_in_several(files: dict[str, Path]):
    (together,) = run_json(str(files["csv"]), "--x", "a,b", "--y", "c", "--method", "gaussian")
    (apart,) = run_json(str(files["csv"]), "--x", "a", "--x", "b", "--y", "c", "--method", "gaussian")

    assert apart == together


def test_the_methods_can_be_listed():
    listed = CliRunner().invoke(cli.app, ["mi", "--method", "list"]).stdout

    assert all(name in listed for name in METHODS)


BAD = {
    "missing_file": (["no.csv"], "the data file must exist, got no.csv; check the path"),
    "nothing": ([], "a data file or --benchmark must be given, got neither"),
    "suffix": (["{txt}"], "must be .csv, .tsv, .parquet, .npy or .npz, got table.txt; convert it first"),
    "no_columns": (["{csv}"], "--x and --y must name columns of table.csv, got none for x"),
    "missing_column": (["{csv}", "--x", "a,z", "--y", "c"], "columns must be among those of table.csv (a, b, c, d, name, who, gap), got 'z'; check the spelling"),
    "identifier": (["{csv}", "--x", "who", "--y", "c"], "few values in a text column, got 300 in 300 rows of 'who'; leave out"),
    "missing": (["{csv}", "--x", "gap", "--y", "c"], "table.csv must have no missing values in the columns used, got 30 of 300 rows with some, as in 'gap'; pass --drop-missing"),
    "dropping arrays": (["{npz}", "--drop-missing"], "--drop-missing must go with a table, got table.npz"),
    "pair with columns": (["{npy},{npy}", "--x", "0"], "--x must be left out for two files, got 0"),
    "pair that is not there": (["gone.npy,{npy}"], "the data file must exist, got gone.npy"),
    "missing_array": (["{npz}", "--x", "q"], "table.npz must hold an array 'q', got x, y, other; name others"),
    "junk_npz": (["{junk_npz}"], "junk.npz must hold plain arrays as numpy.save and numpy.savez write them, got "),
    "junk_npy": (["{junk_npy}", "--x", "0", "--y", "1"], "junk.npy must hold plain arrays as numpy.save and numpy.savez write them, got "),
    "junk_parquet": (["{junk_parquet}", "--x", "a", "--y", "b"], "junk.parquet must be a parquet table, got what is none"),
    "empty_csv": (["{empty_csv}", "--x", "a", "--y", "b"], "empty.csv must be a csv table, got an empty file; write it again"),
    "pickled_npz": (["{pickled}"], "pickled.npz must hold plain arrays as numpy.save and numpy.savez write them, got "),
    "renamed_npy": (["{renamed}", "--x", "0", "--y", "1"], "renamed.npy must hold what its name says, got the other of .npy and .npz; rename it"),
    "header_csv": (["{header_csv}", "--x", "a", "--y", "b"], "header.csv must have rows below its header, got none"),
    "latin_csv": (["{latin_csv}", "--x", "a", "--y", "b"], "latin.csv must be in UTF-8, got bytes that are not"),
    "ragged_csv": (["{ragged_csv}", "--x", "a", "--y", "b"], "ragged.csv must be a csv table, got what is none (Error tokenizing"),
    "method": (["{npz}", "--method", "knn"], "method must be one of"),
    "budget": (["{npz}", "--budget", "0"], "--budget must be a finite number > 0, got 0.0; 60 is the default"),
    "check_given": (["{csv}", "--x", "a", "--y", "b", "--given", "c", "--check"], "--given must not go with --check"),
    "task": (["--benchmark", "--tasks", "nothing"], "task must be one of"),
    "task_set": (["--benchmark", "--task-set", "all"], "task set must be one of 'benchmark', 'tuning', 'unfamiliar', 'mixtures', got 'all'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    name: str,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    arguments, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["flatclr", "mi", *(a.format(**files) for a in arguments)])

    with pytest.raises(SystemExit) as stopped:
        cli.main()

    lines = capsys.readouterr().err.strip().splitlines()
    assert stopped.value.code == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert sorted(tmp_path.iterdir()) == before


def test_the_benchmark_writes_lines_a_table_and_a_picture(tmp_path: Path):
    found = run_json("--benchmark", "--method", "gaussian,ksg", "--rows", "200", "--tasks", "normal 1,additive 0.2", "--out", str(tmp_path), "--workers", "1")  # fmt: skip

    truth = tasks.benchmark_tasks()["additive 0.2"].mi_nats
    table = (tmp_path / benchmark.TABLE).read_text()
    assert len(found) == 4
    assert f"| additive 0.2 | {truth:.3f} | {found[2]['nats']:.3f} | {found[3]['nats']:.3f} |" in table
    assert "Task set 'benchmark', 200 rows a task, seeds 0, full training." in table
    assert f"torch {torch.__version__}, commit " in table
    assert found[0]["environment"]["threads"] == 1
    assert (tmp_path / benchmark.PICTURE).read_bytes().startswith(b"\x89PNG")
    assert len(read_json_lines(tmp_path / benchmark.LINES)) == 4


def test_a_reason_is_shown_with_its_brackets_and_a_warning_with_its_methods(files: dict[str, Path]) -> None:
    def shown(*arguments: str) -> str:
        return CliRunner().invoke(cli.app, ["mi", str(files["csv"]), *arguments], catch_exceptions=False).stdout

    of_both = shown("--x", "a,b", "--y", "c", "--method", "gaussian,club", "--fast")
    assert "warning of club: it would be an upper bound if" in of_both
    assert "I(x; [y, z]) = " in shown("--x", "a", "--y", "c", "--given", "b", "--fast")


def test_the_laws_of_information_are_tried_on_request(files: dict[str, Path]):
    arguments = [str(files["csv"]), "--x", "a,b", "--y", "c", "--method", "gaussian", "--check"]
    found = said(*arguments)
    (line,) = said(*arguments, "--json").splitlines()

    for law in ("independence", "data processing", "additivity", "laws hold on these rows; trust"):
        assert law in " ".join(found.split())
    assert {test["law"] for test in json.loads(line)["tests"]} == {"independence", "data processing", "additivity"}


def said(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["mi", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_first_line_is_a_sentence_with_the_names_of_the_columns(files: dict[str, Path]):
    result = estimate(X[:, :1], Y, "ksg")
    first, *others = said(str(files["csv"]), "--x", "a", "--y", "c", "--method", "ksg").splitlines()

    assert first == f"I(a; c) = {result.nats:.3f} +- {1.96 * result.standard_error:.3f} nats (95 %)"
    assert not any("NWJ" in line for line in others)
    assert said(str(files["csv"]), "--x", "a", "--y", "c", "--method", "ksg", "--quiet").splitlines() == [first]
    assert said(str(files["npz"]), "--method", "js", "--fast").split("\n")[0].endswith("nats (95 %), a lower bound")


def test_nothing_is_cut_at_80_columns(files: dict[str, Path]):
    methods = "gaussian,ksg,mixed_ksg,js"
    shown = said(str(files["npz"]), "--method", methods, "--fast", "--detail")

    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_text_columns_are_encoded_and_said(files: dict[str, Path]):
    frame = pd.read_csv(files["csv"])
    coded = np.stack([(frame["name"] == level).to_numpy(float) for level in "qrs"], 1)
    (told,) = run_json(str(files["csv"]), "--x", "name", "--y", "c", "--method", "mixed_ksg")
    shown = " ".join(said(str(files["csv"]), "--x", "name", "--y", "c", "--method", "mixed_ksg").split())

    assert told["nats"] == pytest.approx(estimate(coded, Y, "mixed_ksg").nats)
    assert "name is text with 3 values (q, r, s), encoded as 3 columns of 0 and 1." in shown


def test_rows_with_missing_values_are_left_out_and_counted(files: dict[str, Path]):
    keep = np.arange(300) % 10 != 0
    arguments = [str(files["csv"]), "--x", "gap", "--y", "c", "--method", "gaussian", "--drop-missing"]
    (told,) = run_json(*arguments)

    assert told["nats"] == pytest.approx(estimate(np.arange(300.0)[keep], Y[keep], "gaussian").nats)
    assert "30 of 300 rows have missing values and are left out." in " ".join(said(*arguments).split())


def test_two_files_are_x_and_y_as_for_train(files: dict[str, Path], tmp_path: Path):
    np.save(tmp_path / "ages.npy", X)
    np.save(tmp_path / "bmis.npy", Y)
    pair = f"{tmp_path / 'ages.npy'},{tmp_path / 'bmis.npy'}"
    (told,) = run_json(pair, "--method", "gaussian")

    assert told["nats"] == pytest.approx(estimate(X, Y, "gaussian").nats)
    assert said(pair, "--method", "gaussian").startswith("I(ages; bmis) = ")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("semi.csv", {"sep": ";"}),
        ("comma.csv", {"sep": ";", "decimal": ","}),
        ("tab.csv", {"sep": "\t"}),
        ("table.tsv", {"sep": "\t"}),
    ],
)
def test_tables_with_other_separators_and_decimal_commas_hold_the_same_numbers(
    name: str, options: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    frame = pd.read_csv(files["csv"])[["a", "b", "name", "c"]]
    frame.to_csv(tmp_path / name, index=False, **options)
    columns = {"x": ["a", "b"], "y": ["name", "c"]}
    expected, found = read_table(files["csv"], columns), read_table(tmp_path / name, columns)
    assert all(np.array_equal(expected.values[side], found.values[side]) for side in "xy")
