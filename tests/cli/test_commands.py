"""The list of commands: quick, and true to the commands themselves."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flatclr
from flatclr.cli.commands import COMMANDS
from flatclr.cli.main import app


def test_the_help_of_flatclr_imports_neither_torch_nor_numpy() -> None:
    code = """
import sys
from typer.testing import CliRunner
from flatclr.cli.main import app
shown = CliRunner().invoke(app, ["-h"])
assert shown.exit_code == 0 and "train" in shown.stdout, shown.output
print(sorted({"torch", "numpy", "scipy", "pandas"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_by_the_first_sentence_of_its_help(name: str) -> None:
    told = " ".join(inspect.cleandoc(COMMANDS[name].loaded().help).split("\n\n")[0].split())

    assert told == COMMANDS[name].summary


def test_h_is_help_for_every_command() -> None:
    shown = [CliRunner().invoke(app, [*command, "-h"]) for command in ((), ("report",))]

    assert [done.exit_code for done in shown] == [0, 0]
    assert "Run directories" in shown[1].stdout


def test_completion_proposes_commands() -> None:
    environment = {"_FLATCLR_COMPLETE": "complete_bash", "COMP_WORDS": "flatclr se", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, prog_name="flatclr", env=environment)

    assert done.stdout.split() == ["settings"]


def test_every_public_name_is_imported_when_asked_for_from_where_types_are_checked() -> None:
    tree = ast.parse(Path(flatclr.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    typed = {(node.module, alias.name) for node in imports for alias in node.names}
    lazy = {(home, name) for home, names in flatclr.HOMES.items() for name in names}

    assert {pair for pair in typed if pair[0] != "flatclr"} == lazy
    assert {name for _, name in typed} == set(flatclr.__all__)
    assert all(getattr(flatclr, name) is not None for name in (*flatclr.__all__, *flatclr.MODULES))
    assert set(flatclr.__all__) <= set(dir(flatclr))
    with pytest.raises(AttributeError, match="module 'flatclr' has no attribute 'trian'"):
        _ = flatclr.trian  # type: ignore[attr-defined]
