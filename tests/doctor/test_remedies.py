from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main

from flatclr.cli.main import app
from flatclr.cli.options import parsed_setting
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.remedies import WITH_OPTION, train_command
from flatclr.doctor.rules import RULES
from flatclr.training.config import TrainConfig
from tests.doctor.test_rules import EDGES

PHOTOS = {**TrainConfig().to_dict(), "data": "my photos", "objective": "infonce", "temperature": 0.1, "out": "runs/a"}


def options_of_train() -> set[str]:
    command: Any = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in parameter.opts}


def test_settings_with_an_option_are_those_of_flatclr_train() -> None:
    flags = options_of_train()
    assert {f"--{name.replace('_', '-')}" for name in WITH_OPTION} <= flags


def test_a_command_has_what_differs_from_the_defaults_and_the_changes() -> None:
    command = train_command(Evidence([], PHOTOS), ess_target=0.25)
    assert command == "flatclr train --data 'my photos' --objective infonce --ess-target 0.25"


def test_what_was_left_to_the_run_is_left_to_the_next() -> None:
    evidence = Evidence(
        [], {**PHOTOS, "data": "fashion", "image_size": 28}, left_open=frozenset({"data", "image_size"})
    )
    assert (
        train_command(evidence, batch_size=64) == "flatclr train --objective infonce --temperature 0.1 --batch-size 64"
    )


def test_what_came_from_python_has_no_command() -> None:
    for settings in ({"data": None}, {"encoder": "own"}, {"objective": "own"}):
        assert train_command(Evidence([], {**PHOTOS, **settings}), batch_size=64) is None


@pytest.mark.parametrize("name", sorted(RULES))
def test_commands_of_findings_are_understood(name: str) -> None:
    """Each option exists, and the settings make a config."""
    tripped = next(tripped for tried, tripped, _ in EDGES if tried == name)
    found = RULES[name].look(tripped)
    assert found is not None
    if found.command is None:
        return
    program, command, *words = shlex.split(found.command)
    assert program == "flatclr"
    if command != "train":
        assert command == "neighbours"
        return
    flags = options_of_train()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert set(given) <= flags
    settings = [parsed_setting(given.pop("--set"))] if "--set" in given else []
    settings += [parsed_setting(f"{flag[2:]}={value}") for flag, value in given.items()]
    TrainConfig().changed(**dict(settings))
