"""What `--help` says: sentences, in panels, with the defaults that hold."""

import re

import click
import pytest
import typer
from typer.testing import CliRunner

from flatclr.cli.main import app, main
from flatclr.objectives import OBJECTIVES
from flatclr.training import describe_settings

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SETTINGS = {row.name: row for row in describe_settings()}
OPTIONS = [
    pytest.param(command, option, id=f"{command}-{option.name}")
    for command, described in COMMANDS.items()
    for option in described.params
]
PANELS = {
    "train": ["Start", "Data", "Network", "Objective", "Optimisation", "Hardware", "Output", "Other settings"],
    "eval": ["Measurement", "Data", "Weights from elsewhere", "Hardware", "Output"],
    "mi": ["Data", "Estimate", "Benchmark", "Output"],
    "negatives": ["Data", "Estimate", "Output"],
    "study": ["Size", "Hardware", "Output"],
    "report": ["Output"],
    "watch": ["Address", "Output"],
    "sweep": ["Grid", "Data", "Hardware", "Output"],
    "doctor": ["Metrics from elsewhere", "Output"],
    "export": ["Output"],
    "settings": ["Output"],
    "check-loss": ["Loss", "Output"],
    "finetune": ["Optimisation", "Data", "Weights from elsewhere", "Hardware", "Output"],
    "embed": ["Measurement", "Data", "Weights from elsewhere", "Hardware", "Output"],
    "neighbours": ["Measurement", "Data", "Weights from elsewhere", "Hardware", "Output"],
}
IN_BENCHMARK = {"benchmark", "task_set", "tasks", "rows", "seeds", "out", "workers"}


def help_page(*command: str, columns: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.rich_utils.MAX_WIDTH", columns)
        shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    return shown.output


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_option_is_described_by_a_sentence(command: str, option: click.Parameter) -> None:
    assert re.fullmatch(r"[A-Z][^\n]+\.", option.help)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_stand_in_panels(command: str) -> None:
    options = [option for option in COMMANDS[command].params if option.param_type_name == "option"]

    assert list(dict.fromkeys(option.rich_help_panel for option in options)) == PANELS[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_short_help_and_can_be_quiet_or_speak_json(command: str) -> None:
    flags = {flag for option in COMMANDS[command].params for flag in option.opts}

    assert {"--quiet", "-q", "--json"} <= flags
    assert CliRunner().invoke(app, [command, "-h"]).exit_code == 0


def test_benchmark_options_of_mi_stand_apart() -> None:
    assert {o.name for o in COMMANDS["mi"].params if o.rich_help_panel == "Benchmark"} == IN_BENCHMARK


def test_train_says_of_a_setting_what_the_table_of_settings_says() -> None:
    described = [option for option in COMMANDS["train"].params if option.name in SETTINGS]
    assert len(described) > 20
    for option in described:
        row = SETTINGS[option.name]
        assert option.rich_help_panel == row.group.capitalize()
        if option.name not in ("ess_target", "epochs", "views_per_image"):  # which have other forms on the command line
            text, _, otherwise = row.help.removesuffix(".").partition("; None: ")
            assert option.help == f"{text}."
            assert otherwise == "" or option.show_default == otherwise
        if row.default is not None:
            assert type(row.default)(option.show_default) == row.default


def test_every_objective_and_every_other_setting_can_be_read_on_the_help_page() -> None:
    page = re.sub(r"[\s│]+", " ", help_page("train", columns=120))

    assert [
        name for name in (*OBJECTIVES, *SETTINGS) if f"{name.replace('_', '-')}" not in page.replace("_", "-")
    ] == []


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_a_help_page_fits_the_terminal(command: tuple[str, ...], columns: int) -> None:
    page = help_page(*command, columns=columns)

    assert max(len(line) for line in page.splitlines()) <= columns
    assert "…" not in page
    assert "default: (" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--nonsense"], "No such option: --nonsense"),
        (["train", "--batch-size", "abc"], "Invalid value for '--batch-size'"),
        (["eval"], "Missing argument"),
        (["foo"], "No such command 'foo'"),
        (["train", "--data", "nodir"], "data must be an existing path"),
        (["eval", "nodir"], "which does not exist"),
        (["eval", "nodir", "--json"], "which does not exist"),
        (["mi", "table.csv", "--x", "a", "--y", "c", "--rows", "9000"], "--rows must go with --benchmark, got 9000"),
        (["mi", "table.csv", "--benchmark"], "a data file must not go with --benchmark, got 'table.csv'"),
    ],
)
def test_a_wrong_call_is_answered_by_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["flatclr", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("flatclr: ")
    assert message in said.err


def test_without_a_command_the_help_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["flatclr"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert "train" in said.out + said.err
    assert "Encoders" in said.out + said.err
