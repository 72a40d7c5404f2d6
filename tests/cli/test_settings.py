"""`flatclr settings`."""

import json

import pytest
from typer.testing import CliRunner

from flatclr.cli.main import app
from flatclr.training import describe_settings


def listed(*names: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(app, ["settings", *names, "--json"], catch_exceptions=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_setting_is_listed_with_default_and_meaning() -> None:
    rows = {row["name"]: row for row in listed()}

    assert list(rows) == [row.name for row in describe_settings()]
    assert all(rows[row.name]["help"] == row.help for row in describe_settings())


def test_settings_and_groups_are_picked_by_name() -> None:
    assert [row["name"] for row in listed("batch-size", "hardware")][:2] == ["batch_size", "precision"]
    with pytest.raises(ValueError, match="did you mean 'hardware'"):
        listed("hardwear")


def test_the_table_is_not_cut_at_80_columns() -> None:
    shown = CliRunner().invoke(app, ["settings"], env={"COLUMNS": "80"}).stdout

    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
