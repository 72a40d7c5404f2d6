"""The settings of a run as a table, and what each of them refuses."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flatclr.objectives import OBJECTIVES
from flatclr.training.config import TrainConfig, describe_settings
from flatclr.training.settings import GROUPS, Setting, setting

TABLE = describe_settings()


def test_every_field_of_the_config_is_described_once() -> None:
    assert sorted(row.name for row in TABLE) == sorted(field.name for field in fields(TrainConfig))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_description_is_a_sentence_of_one_line(row: Setting) -> None:
    assert re.fullmatch(r"[A-Z][^\n]{10,220}\.", row.help)
    assert row.default == getattr(TrainConfig(), row.name)
    assert row.type


def test_settings_are_listed_group_by_group() -> None:
    assert list(dict.fromkeys(row.group for row in TABLE)) == list(GROUPS)
    groups = [GROUPS.index(row.group) for row in TABLE]
    assert groups == sorted(groups)


def test_the_objectives_of_the_package_are_named_in_their_setting() -> None:
    (row,) = [row for row in TABLE if row.name == "objective"]
    assert all(name in row.help for name in OBJECTIVES)


def test_configs_do_not_share_their_mappings() -> None:
    assert TrainConfig().views is not TrainConfig().views


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"group must be one of .*, got 'netwrok'; did you mean 'network'"):
        setting(1, "netwrok", "Of no use.")


NUMBER, COUNT, OPTIONAL = "must be a finite number > 0, got", "must be a whole number >= 1, got", ", or leave it out"
REFUSED: dict[str, tuple[Any, str]] = {
    "data": (3, "must be a path, got 3; put it in quotes"),
    "data_dir": (3, "must be a path, got 3; put it in quotes"),
    "labels": ("folder", "must be one of 'auto', 'folders', 'none', got 'folder'; did you mean 'folders'?"),
    "image_size": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "views": ([], "must be named values, got []; for example {width: 64}"),
    "views_per_image": (1, "must be a whole number >= 2, got 1; an anchor needs another view of its image"),
    "view_sizes": ([[2, 24], [6]], "must be [[views, pixels], ...], got [[2, 24], [6]]; say [[2, 24], [6, 16]] for"),
    "size_schedule": ([[5, 16]], "must begin at epoch 0 and go on in order of time, got [[5, 16]]; say [[0, 16]"),
    "view_size": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "workers": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "shards_at_once": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "resident_gib": (-1.0, "must be a finite number > -1e-12, got -1.0; pass 0 or more"),
    "max_bad_images": (1.5, "max_bad_images must be a finite number"),
    "encoder_options": (3, "must be named values, got 3"),
    "init": (3, "must be a path, got 3; put it in quotes"),
    "head_layers": (7, "must be a whole number >= 1 and <= 3, got 7; 1 is a linear head"),
    "encoder": (3, "must be text, got 3; say 'resnet18'"),
    "device": (3, "must be text, got 3; say 'cpu', 'cuda' or 'cuda:1'"),
    "wandb": (3, "must be text, got 3; say the name of a project"),
    "head_width": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "recalibrate": (1, "must be true or false, got 1; pass one of these"),
    "embedding": (1.5, f"{COUNT} 1.5; pass a larger whole number."),
    "objective": ("flatnc", "did you mean 'flatnce'?"),
    "objective_options": ("x", "must be named values, got 'x'"),
    "ess_target": (1.0, "must be a finite number > 0 and < 1, got 1.0"),
    "ess_per_anchor": (1, "must be true or false, got 1; pass one of these"),
    "temperature": (0.0, f"{NUMBER} 0.0"),
    "positives": ("classes", "did you mean 'class'?"),
    "halves": ("left-rigth", "did you mean 'left-right'?"),
    "towers": ("share", "did you mean 'shared'?"),
    "pairing": ("corss", "did you mean 'cross'?"),
    "negatives_per_anchor": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "prefixes": ([64, 32], "must be whole numbers in rising order, got [64, 32]; say [32, 64]"),
    "queue": (1.5, "must be a whole number >= 0, got 1.5; pass 0 for none"),
    "momentum": (1.0, "must be a finite number > 0 and < 1, got 1.0"),
    "batch_size": (True, f"{COUNT} True; pass a larger whole number."),
    "micro_batch": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "epochs": (0, f"{NUMBER} 0"),
    "steps": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "optimizer": ("adam", "did you mean 'adamw'?"),
    "learning_rate": (float("nan"), f"{NUMBER} nan"),
    "lr_scaling": ("lineer", "did you mean 'linear'?"),
    "weight_decay": (-1e-4, "got -0.0001; pass 0 or more"),
    "warmup_epochs": (-1, "got -1; pass 0 or more"),
    "clip_norm": (0.0, f"{NUMBER} 0.0"),
    "precision": ("fp61", "did you mean 'fp16'?"),
    "max_bad_steps": (0, f"{COUNT} 0; pass a larger whole number."),
    "graph": ("yes", "must be true or false, got 'yes'; pass one of these"),
    "compile": (None, "must be true or false, got None; pass one of these"),
    "seed": (1.0, "must be a whole number, got 1.0; pass one, say 0"),
    "out": (3, "must be a path, got 3; put it in quotes"),
    "log_every": (0, f"{COUNT} 0; pass a larger whole number."),
    "eval_every": (0, f"{COUNT} 0; pass a larger whole number."),
    "eval_start": (1, "must be true or false, got 1; pass one of these"),
    "eval_samples": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "checkpoint_every": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
    "checkpoint_minutes": (0.0, f"{NUMBER} 0.0"),
    "keep_checkpoints": ("every:0", "must be every:N with a whole number N >= 1, got 'every:0'; say every:1000"),
    "probe_every": (0, f"{COUNT} 0; pass a larger whole number{OPTIONAL}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_a_setting_cannot_have_is_refused(name: str) -> None:
    value, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as raised:
        TrainConfig(**{name: value})
    assert str(raised.value).startswith(f"{name} must ")


def test_no_setting_goes_unchecked_unnoticed() -> None:
    assert {row.name for row in TABLE} == REFUSED.keys()


def test_what_may_be_left_out_may_be_left_out() -> None:
    optional = [row.name for row in TABLE if row.type.endswith("None")]
    assert len(optional) > 15
    TrainConfig(**dict.fromkeys(optional))


def test_the_table_has_the_types_and_defaults_of_the_code() -> None:
    rows = {row.name: (row.type, row.default, row.group) for row in TABLE}
    assert rows["steps"] == ("int | None", None, "optimisation")
    assert rows["views"] == ("Mapping[str, Any]", {}, "data")
    assert rows["precision"] == ("str", "fp32", "hardware")


def test_a_path_becomes_text(tmp_path: Path) -> None:
    assert TrainConfig(out=tmp_path).to_dict()["out"] == str(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("batchsize", "did you mean 'batch_size'"),
        ("learning-rate", "did you mean 'learning_rate'"),
        ("xyz", "see flatclr.training.describe_settings() for all of them."),
    ],
)
@pytest.mark.parametrize("make", [lambda **s: TrainConfig().changed(**s), lambda **s: TrainConfig.from_dict(s)])
def test_an_unknown_setting_is_answered_by_the_nearest_and_not_by_all(make: Any, name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {name!r}; {advice}")) as raised:
        make(**{name: 3})
    assert len(str(raised.value)) < 140


def test_an_ess_target_and_a_temperature_are_not_changed_together() -> None:
    with pytest.raises(ValueError, match=r"only one of ess_target and temperature must be changed, got 0\.3 and 0\.1"):
        TrainConfig().changed(ess_target=0.3, temperature=0.1)
    assert TrainConfig().changed(ess_target=None, temperature=0.1).temperature == 0.1


@pytest.mark.parametrize("queue", [-1, True, 1.0])
def test_a_queue_is_none_or_a_whole_number(queue: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"queue must be a whole number >= 0, got {queue}"):
        TrainConfig(queue=queue)
