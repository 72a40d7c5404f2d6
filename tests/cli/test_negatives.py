"""`flatclr negatives`"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flatclr.cli.main import app, main
from flatclr.studies.latent_classes import class_prior
from flatclr.studies.useful_negatives import useful_negatives


def test_equal_classes_need_one_negative() -> None:
    shown = CliRunner().invoke(app, ["negatives", "--classes", "3", "--most", "4"])
    assert shown.exit_code == 0
    assert "1 negative is enough" in shown.output


def test_json_has_a_row_for_each_number_of_negatives() -> None:
    shown = CliRunner().invoke(app, ["negatives", "--prior", "90,5,5", "--most", "2", "--json"])
    content = json.loads(shown.output)
    assert content["useful"] is None
    assert [row["negatives"] for row in content["rows"]] == [1, 2]
    assert content["rows"][0]["together"] == [[1, 2]]


def test_an_answer_that_could_not_be_told_is_withheld() -> None:
    arguments = ["negatives", "--prior", "0.999999,0.0000005,0.0000005", "--most", "1"]
    shown = CliRunner().invoke(app, [*arguments, "--quiet"])
    assert shown.exit_code == 1
    assert "could not be told: the minimisation did not converge at k = 1" in shown.output
    assert "enough" not in shown.output


def test_harm_of_more_is_not_told_from_what_did_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    found = useful_negatives(class_prior([2, 1]), most=2)
    shaky = replace(found, rows=(found.rows[0], replace(found.rows[1], converged=False)))
    monkeypatch.setattr("flatclr.cli.negatives.useful_negatives", lambda *_, **__: shaky)
    shown = CliRunner().invoke(app, ["negatives", "--prior", "2,1", "--quiet"])
    assert shown.exit_code == 0
    assert "1 negative is enough" in shown.output
    assert "Whether more hurt could not be told." in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "classes must be known, got neither --classes nor --prior"),
        (("--classes", "1"), "classes must be a whole number >= 2"),
        (("--classes", "3", "--prior", "1,2"), "prior must have a frequency for each of 3 classes, got 2"),
        (("--prior", "1;2"), "prior must be numbers separated by commas"),
        (("--prior", "1,-2"), "a frequency of a class must be a finite number > 0"),
        (("--classes", "3", "--most", "0"), "most must be a whole number >= 1"),
        (("--classes", "3", "--within", "2"), "within must be a finite number > 0 and < 1"),
    ],
)
def test_bad_input_ends_with_one_line(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["flatclr", "negatives", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    lines = capsys.readouterr().err.strip().splitlines()
    assert (stopped.value.code, len(lines)) == (2, 1)
    assert message in lines[0]
