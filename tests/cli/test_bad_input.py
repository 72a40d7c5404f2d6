"""Whatever is wrong with a command line or a file it names: one line, exit code 2, and nothing written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flatclr.cli.main import main
from flatclr.runs import RunDirectory
from flatclr.training.trainer import train
from tests.support.training_worker import config

Run = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The one line that a command ends with."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["flatclr", *arguments])
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as stopped:
            main()
        lines = capsys.readouterr().err.strip().splitlines()
        assert (stopped.value.code, len(lines)) == (2, 1), lines
        assert sorted(tmp_path.rglob("*")) == before
        return lines[0]

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--device", "mps"), "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'mps', which"),
        (("train", "--device", "meta"), "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'meta', which"),
        (("train", "--device", "cpu:3"), "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'cpu:3', which"),
        (("train", "--set", "device=null"), "device must be"),
        (
            ("train", "--set", "queue=100000000000000"),
            "network and queue must fit into memory, got embedding 128, queue 1",
        ),
        (("train", "--set", "embedding=100000000000"), "network and queue must fit into memory, got embedding 1000000"),
        (("train", "--set", "head_width=100000000000"), "network and queue must fit into memory"),
        (("train", "--set", "encoder_options={width: 10000000000}"), "network and queue must fit into memory"),
        (("train", "--seed", "99999999999999999999"), "seed must be a whole number from"),
        (("train", "--set", "objective={a: 1}"), "objective must be one of"),
        (("train", "--objective", "nonsense"), "'vicreg', 'supervised', got 'nonsense'"),
        (("train", "--set", "views=" + "[" * 500), "--set views must have a YAML value"),
        (("train", "--set", "steps=2001-02-30"), "--set steps must have a YAML value"),
        (("train", "--out", ""), "out must be a path, got ''"),
        (("train", "--out", "o\udcff"), "a file or folder to write must have a name in UTF-8, got 'o\\udcff'"),
        (("train", "--data", ""), "data must be a path, got ''"),
        (("train", "--resume", ""), "--resume must name a run directory, got ''"),
        (("train", "--max-bad-images", "2"), "max_bad_images must be a finite number"),
        (("eval", ""), "an encoder must be named, got ''"),
        (("eval", "x", "--image-size", "0"), "image_size must be a whole number >= 1, got 0"),
        (("eval", "x", "--seed", "99999999999999999999"), "seed must be a whole number from"),
        (("export", "x", "--onnx", ""), "must have a name of its own"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: tuple[str, ...], message: str, refused: Run) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    "asked",
    [
        ("export", "x", "--onnx", "notes.txt/o.onnx"),
        ("export", "x", "--folder", "notes.txt/o"),
        ("embed", "x", "--out", "notes.txt/e.npz"),
        ("neighbours", "x", "--outliers", "--out", "notes.txt/n.png"),
        ("finetune", "x", "--out", "notes.txt/f"),
        ("eval", "x", "--out", "notes.txt/e"),
        ("sweep", "--set", "steps=1", "--out", "notes.txt/s"),
        ("study", "cost", "--out", "notes.txt/s"),
        ("train", "--out", "notes.txt/r"),
        ("mi", "--benchmark", "--out", "notes.txt/b"),
    ],
    ids=lambda asked: " ".join(asked[:1] + asked[-2:-1]),
)
def test_what_would_stand_in_a_file_is_refused_before_any_work(
    asked: tuple[str, ...], refused: Run, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "must stand in a folder, got the file" in refused(*asked)


def test_a_sweep_that_cannot_be_ranked_so_is_refused_before_any_run(refused: Run) -> None:
    for by in ("", "apples"):
        assert f"--by must be a number that runs have, got {by!r}" in refused("sweep", "--set", "steps=1", "--by", by)


def claims_much(path: Path) -> None:
    """An array of 10^12 bytes, by its header."""
    np.save(path, np.zeros(4, np.uint8))
    content = path.read_bytes().replace(b"(4,)", b"(1000000000000,)").replace(b" " * 13 + b"\n", b" \n")
    path.write_bytes(content)


def test_arrays_whose_header_claims_more_than_there_is_are_refused(refused: Run, tmp_path: Path) -> None:
    claims_much(tmp_path / "a.npy")
    (tmp_path / "zero.npy").touch()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "x.npy")
        archive.write(tmp_path / "a.npy", "y.npy")
    for name in ("a.npy", "a.npz"):
        assert "a header that claims 1,000,000,000,000 bytes where" in refused("train", "--data", name)
        assert "a header that claims 1,000,000,000,000 bytes where" in refused("mi", name, "--x", "x", "--y", "y")
    for arguments in (("train", "--data", "zero.npy"), ("mi", "zero.npy", "--x", "0", "--y", "1")):
        assert "zero.npy must " in refused(*arguments)


def test_bombs_are_refused_unopened(refused: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatclr.data.unpacking.memory_bytes", lambda: 2**20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(2**22, np.float32), y=np.zeros(2**22, np.float32))
    assert "more than memory holds" in refused("train", "--data", "bomb.npz")
    assert "more than memory holds" in refused("mi", "bomb.npz")
    folder = tmp_path / "mnist"
    folder.mkdir()
    for kind, dimensions in (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1)):
        shape = (2, 2, 2)[:dimensions]
        content = bytes([0, 0, 8, dimensions]) + struct.pack(f">{dimensions}I", *shape) + bytes(2**20)
        (folder / f"{kind}-idx{dimensions}-ubyte.gz").write_bytes(gzip.compress(content, 9))
    assert "= 8 bytes after its header, got more" in refused("train", "--data", "./mnist")


def test_what_packs_gigabytes_into_few_bytes_is_refused_unopened(refused: Run, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "plain.npz", images=np.zeros((9, 8, 8), np.uint8))
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("images.npy", plain.read("images.npy"), zipfile.ZIP_DEFLATED)
        archive.infolist()[0].file_size = 3 * 2**30  # as the directory at its end then says
    (tmp_path / "bomb.pt").write_bytes((tmp_path / "bomb.npz").read_bytes())
    folder = tmp_path / "mnist"
    folder.mkdir()
    for kind, dimensions in (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1)):
        header = bytes([0, 0, 8, dimensions]) + struct.pack(
            f">{dimensions}I", *(3 * 2**30 // 2**8, 16, 16)[:dimensions]
        )
        (folder / f"{kind}-idx{dimensions}-ubyte.gz").write_bytes(gzip.compress(header + bytes(2**10), 9))
    for arguments in (("train", "--data", "bomb.npz"), ("mi", "bomb.npz"), ("train", "--data", "./mnist")):
        assert "3.0 GiB packed into 0.0 MiB, as in files that are made to fill memory" in refused(*arguments)
    assert "3.0 GiB packed into 0.0 MiB" in refused("train", "--init", "bomb.pt", "--encoder", "cnn")


def test_a_table_of_a_constant_that_would_fill_memory_is_refused_unread(
    refused: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = np.zeros(2**19, np.float32)
    parquet.write_table(pyarrow.table({"x": zeros, "y": zeros}), tmp_path / "bomb.parquet")
    monkeypatch.setattr("flatclr.data.unpacking.MOST_HARMLESS", 2**20)
    assert "GiB packed into" in refused("mi", "bomb.parquet", "--x", "x", "--y", "y")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config(tmp_path_factory.mktemp("finished") / "run", 2)).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("damage", [b"", b"3", b"\xff\xfe", b"[" * 500, b'{"a":' * 500, b"[" * 100_000])
def test_damaged_files_of_a_run_are_named_in_one_line(damage: bytes, refused: Run, run: Path) -> None:
    (run / "encoder.json").write_bytes(damage)
    assert "encoder.json" in refused("export", "run", "--folder", "away")
    (run / "config.yaml").write_bytes(damage[:500])
    assert "config.yaml" in refused("report", "run")
    assert "config.yaml" in refused("train", "--resume", "run")


def test_settings_that_name_one_part_many_times_over_are_refused_in_one_line(refused: Run, run: Path) -> None:
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    for text in ("\n".join(laughs), "a: &a [*a]"):
        (run / "config.yaml").write_text(text)
        for command in (("train", "--resume", "run"), ("report", "run"), ("doctor", "run")):
            assert "config.yaml must hold named settings, got a damaged file" in refused(*command)
        value = "{" + text.replace("\n", ", ") + "}"
        assert "--set views must have a YAML value" in refused("train", "--set", f"views={value}")


def test_a_page_that_would_stand_in_a_file_is_refused(refused: Run, run: Path) -> None:
    (run.parent / "notes.txt").write_text("mine")
    assert "must stand in a folder, got the file" in refused("report", "run", "run", "--out", "notes.txt/r.html")


def test_a_pickle_in_a_checkpoint_is_refused_in_one_line(refused: Run, run: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return print, ("run!",)

    for old in (run / "checkpoint").iterdir():
        old.unlink()
    buffer = io.BytesIO()
    torch.save({"train_step": Evil()}, buffer)
    (run / "checkpoint" / "step-000000002.pt").write_bytes(buffer.getvalue())
    (run / "checkpoint" / "step-000000002.sha256").write_text(hashlib.sha256(buffer.getvalue()).hexdigest())
    assert "step-000000002.pt: it holds more than tensors" in refused("train", "--resume", "run")


def test_metrics_that_hold_something_else_are_passed_over(run: Path) -> None:
    lines = ["3", "[1]", '"text"', "null", "[" * 100_000, '{"step": "x"}', json.dumps({"step": 1, "kind": "log"})]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    assert RunDirectory.open(run).metrics() == [{"step": 1, "kind": "log"}]
