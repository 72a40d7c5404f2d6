"""A run directory holds one run, and says where a file of it was damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import flatclr
from flatclr.checkpoint import load_checkpoint, save_checkpoint
from flatclr.cli.main import main
from flatclr.files import UncheckedWarning
from flatclr.models.trained import load_checkpointed_encoder
from flatclr.runs import LEFT_BY_RUNS, RunDirectory
from flatclr.training.config import TrainConfig
from flatclr.training.events import Event, Warned
from flatclr.training.trainer import train
from tests.support.training_worker import config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config(tmp_path_factory.mktemp("finished") / "run", 8)).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def said_by(run: Path) -> list[str]:
    heard: list[Event] = []
    train(TrainConfig(), resume=run, on_event=[heard.append])
    return [event.message for event in heard if isinstance(event, Warned)]


def test_a_folder_with_the_checkpoints_of_another_run_is_refused_and_left_alone(run: Path) -> None:
    (run / "config.yaml").unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(FileExistsError, match=r"must hold nothing of another run, got .*run with environment\.json"):
        train(config(run, 4, seed=1))
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("name", sorted({*LEFT_BY_RUNS} - {"config.yaml"}))
def test_nothing_that_a_run_could_overwrite_may_be_in_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name.replace("*", "1")).write_text("mine")
    with pytest.raises(FileExistsError, match="must hold nothing of another run"):
        train(config(tmp_path, 2))
    assert [file.name for file in tmp_path.iterdir()] == [name.replace("*", "1")]


def test_other_files_may_be_in_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert RunDirectory.create(tmp_path, {"seed": 0}).config() == {"seed": 0}


def test_an_empty_name_is_no_output_directory() -> None:
    with pytest.raises(ValueError, match="out must be a path, got ''"):
        TrainConfig(out="")


def test_a_kill_while_settings_are_written_leaves_a_folder_that_a_run_can_begin_in(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()  # as earlier versions left it
    (tmp_path / ".config.yaml.part").write_text("seed")
    assert train(config(tmp_path, 2)).steps == 2


def test_a_foreign_checkpoint_is_refused_on_resume_and_by_load_network(run: Path, tmp_path: Path) -> None:
    other = train(config(tmp_path / "other", 12, seed=2)).path
    for file in (other / "checkpoint").glob("step-000000012.*"):
        shutil.copy(file, run / "checkpoint")
    for use in (said_by, flatclr.load_network):
        with pytest.raises(ValueError, match=r"step-000000012\.pt must belong to the run .*\(seed 2, here 0\)"):
            use(run)


def test_settings_that_leave_weights_alone_may_be_changed_by_who_removes_the_checksum(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("log_every: 20", "log_every: 10"))
    with pytest.raises(ValueError, match=r"config\.yaml must be as the run wrote it, .* remove its last line"):
        RunDirectory.open(run).config()
    lines = (run / "config.yaml").read_text().splitlines()[:-1]
    (run / "config.yaml").write_text("\n".join(lines) + "\n")
    assert any("could not be checked: " in m and "config.yaml has no checksum" in m for m in said_by(run))


@pytest.fixture
def earlier(run: Path) -> Path:
    """A run as versions without checksums and identity wrote it."""
    document = json.loads((run / "encoder.json").read_text())
    del document["document_sha256"]
    (run / "encoder.json").write_text(json.dumps(document))
    lines = (run / "config.yaml").read_text().splitlines()[:-1]
    (run / "config.yaml").write_text("\n".join(lines) + "\n")
    loaded = load_checkpoint(run / "checkpoint")
    save_checkpoint(run / "checkpoint", loaded.step, loaded.state, identity="")
    return run


@pytest.mark.parametrize("load", [flatclr.load_encoder, flatclr.load_network, flatclr.models.load_head])
def test_a_run_of_an_earlier_version_loads_with_one_line_that_says_so(
    load: Callable[[Path], object], earlier: Path
) -> None:
    with pytest.warns(UncheckedWarning, match="run could not be checked for damage") as seen:
        load(earlier)
    assert len(seen) == 1


@pytest.mark.filterwarnings("always")
def test_a_run_of_an_earlier_version_is_evaluated_with_one_line_that_says_so(
    earlier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (100, 28, 28), dtype=np.uint8)
    np.savez(earlier.parent / "few.npz", images=images, labels=np.arange(100) % 2)
    asked = ("--protocol", "geometry", "--layer", "all", "--no-random-row", "--quiet", "--device", "cpu")
    monkeypatch.setattr(
        "sys.argv", ["flatclr", "eval", str(earlier), "--data", str(earlier.parent / "few.npz"), *asked]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    lines = capsys.readouterr().err.strip().splitlines()
    assert (stopped.value.code, len(lines)) == (0, 1), lines
    assert "could not be checked for damage" in lines[0]


def test_an_encoder_of_an_older_checkpoint_than_the_newest_is_never_loaded_in_silence(run: Path) -> None:
    (run / "encoder.json").unlink()
    (run / "encoder.safetensors").unlink()
    (run / "checkpoint" / "step-000000008.sha256").write_bytes(b"\xff")
    for load in (load_checkpointed_encoder, flatclr.load_network, flatclr.models.load_head):
        with pytest.warns(UserWarning, match=r"passed over a damaged checkpoint of .*run, step-000000008\.pt") as seen:
            load(run)
        assert len(seen) == 1


def test_a_run_of_an_earlier_version_goes_on_with_one_line_that_says_so(earlier: Path) -> None:
    (said,) = [message for message in said_by(earlier) if "earlier version" in message]
    assert said.startswith("the run could not be checked: ")
    assert "has no checksum and the checkpoint of step 8 does not say whose it is" in said


@pytest.mark.parametrize("name", ["config.yaml", "encoder.json"])
def test_no_flipped_bit_changes_what_is_read(name: str, run: Path) -> None:
    """Every bit of every tenth byte: what is read is the same, or the file is named."""

    def read() -> object:
        if name == "config.yaml":
            return RunDirectory.open(run).config()
        encoder = flatclr.load_encoder(run)
        return encoder.description, encoder.normalisation, encoder.spec

    path = run / name
    content, truth = path.read_bytes(), read()
    changed, said = [], []
    for at in range(0, len(content), 10):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at // 10 % 8)
        path.write_bytes(damaged)
        try:
            if read() != truth:
                changed.append(at)
        except ValueError as error:
            said.append(str(error))
        except UncheckedWarning:
            pass  # the name of the checksum was hit
    assert changed == []
    assert all(name in message and "\n" not in message for message in said)


def test_damage_on_the_command_line_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "config.yaml"
    path.write_bytes(path.read_bytes().replace(b"embedding: 16", b"embedding: 17"))
    monkeypatch.setattr("sys.argv", ["flatclr", "train", "--resume", str(run)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err.strip().splitlines()
    assert (stopped.value.code, len(said)) == (2, 1)
    assert "config.yaml" in said[0]


def test_a_run_without_checkpoints_says_that_it_begins_again(run: Path) -> None:
    shutil.rmtree(run / "checkpoint")
    assert any("begins again from its seed" in message for message in said_by(run))


def test_a_checkpoint_whose_state_is_not_a_runs_is_one_line(run: Path) -> None:
    identity = RunDirectory.open(run).identity()
    save_checkpoint(run / "checkpoint", 9, {"step": 9}, identity=identity)
    for use in (said_by, flatclr.load_network):
        with pytest.raises(ValueError, match=r"checkpoint must hold the state of .*; restore it"):
            use(run)
