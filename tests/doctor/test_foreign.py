"""Metrics of other libraries: tables, TensorBoard folders, embeddings."""

from __future__ import annotations

import gzip
import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import flatclr
from flatclr.doctor import Diagnosis
from flatclr.doctor.foreign import embedding_row, foreign_rows


def test_a_csv_of_lightning_is_read_with_its_names(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    lines = [
        "epoch,step,train/loss,grad_norm,knn_acc",
        *(f"0,{i},{2.5 - 0.1 * i},1.0," for i in range(10)),
        "0,10,,,71.5",
    ]
    path.write_text("\n".join(lines))
    rows = foreign_rows(path)
    assert rows[0] == {"step": 0.0, "kind": "log", "epoch": 0.0, "loss": 2.5, "gradient_norm": 1.0}
    assert rows[-1] == {"step": 10.0, "kind": "evaluation", "epoch": 0.0, "knn": 0.715}
    assert flatclr.examine(metrics=path).healthy


def test_a_loss_that_rises_is_found_in_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "\n".join(f"{i},{2 + 0.1 * i}" for i in range(20)))
    assert [f.name for f in flatclr.examine(metrics=path).findings] == ["learning_rate_too_high"]


def test_a_folder_of_tensorboard_is_read(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(10):
            writer.add_scalar("train_loss", 0.01, step)
    found = flatclr.examine(metrics=tmp_path, negatives=30).findings
    assert [f.name for f in found] == ["bound_saturated"]
    assert found[0].command is None
    assert found[0].code == "objective = flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25))"
    assert found[0].code in Diagnosis("", healthy=False, findings=tuple(found))._repr_html_()


def test_a_rate_that_was_logged_is_lowered_or_raised_to_a_number() -> None:
    rises = [{"step": i, "loss": 2 + 0.1 * i, "lr": 0.3} for i in range(20)]
    (found,) = flatclr.examine(metrics=rises).findings
    assert "to about 0.03" in found.remedy
    assert found.code == "for group in optimizer.param_groups: group['lr'] = 0.03"
    (found,) = flatclr.examine(metrics=[{**row, "lr": None} for row in rises]).findings
    assert found.code == "for group in optimizer.param_groups: group['lr'] *= 0.1"


def test_the_saturation_of_a_foreign_loss_is_one_less_its_share_of_the_ceiling() -> None:
    (row,) = foreign_rows([{"step": 3, "loss": 1.2}], negatives=255)
    assert row["ceiling_nats"] == math.log(256)
    assert row["saturation"] == pytest.approx(1 - 1.2 / math.log(256))


def test_json_lines_are_read_and_losses_of_validation_are_not_taken_for_those_of_training(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"global_step": i, "val_loss": 9.0, "loss": 1.0}) + "\n" for i in (2, 1)))
    rows = foreign_rows(path)
    assert [row["step"] for row in rows] == [1.0, 2.0]
    assert {row["loss"] for row in rows} == {1.0}


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_collapsed_embeddings_of_a_file_are_found(suffix: str, tmp_path: Path) -> None:
    z = 1 + 1e-3 * np.random.default_rng(0).normal(size=(50, 8))
    path = tmp_path / f"z{suffix}"
    if suffix == ".npy":
        np.save(path, z)
    elif suffix == ".npz":
        np.savez(path, features=z, labels=np.arange(50))
    else:
        np.savetxt(path, z, delimiter=",", header=",".join("abcdefgh"), comments="")
    assert flatclr.examine(embeddings=path).findings[0].name == "collapse"


def test_embeddings_of_few_dimensions_are_found_and_even_ones_are_sound() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(400, 2, generator=generator) @ torch.randn(2, 32, generator=generator)
    assert [f.name for f in flatclr.examine(embeddings=flat).findings] == ["dimensional_collapse"]
    assert flatclr.examine(embeddings=torch.randn(400, 32, generator=generator)).healthy


def test_a_row_of_embeddings_holds_what_formulas_say() -> None:
    z = np.random.default_rng(1).normal(size=(40, 5))
    row = embedding_row(z, step=7)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    assert row["embedding_std"] == pytest.approx(math.sqrt(5) * unit.std(0).mean(), rel=1e-5)
    singular = np.linalg.svd(z - z.mean(0), compute_uv=False)
    shares = singular / singular.sum()
    assert row["head_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)
    assert row["step"] == 7


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.csv", None, "which is none; check the path"),
        ("odd.csv", b"apples,pears\n1,2\n", "a column that is known, such as loss, got apples, pears"),
        ("bytes.csv", b"\xff\xfe\x00", "must be a table with a header"),
        ("empty", "folder", "must hold TensorBoard events"),
        ("pipe.csv", "pipe", "which is neither; copy it into a file"),
        ("pipe.jsonl", "pipe", "which is neither; copy it into a file"),
    ],
)
def test_bad_metrics_are_refused(name: str, content: bytes | str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        flatclr.examine(metrics=path)


def test_bad_embedding_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "z.npy").write_bytes(b"no array")
    np.savez(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n5,6\n"))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (250000000000, 1)}\n"
    for version in (b"\x01\x00" + struct.pack("<H", len(header)), b"\x03\x00" + struct.pack("<I", len(header))):
        (tmp_path / "claims.npy").write_bytes(b"\x93NUMPY" + version + header + bytes(8))
        with pytest.raises(
            ValueError, match=r"claims\.npy .* a header that claims 1,000,000,000,000 bytes where 8 fol"
        ):
            flatclr.examine(embeddings=tmp_path / "claims.npy")
    for name in ("z.npy", "none.npz", "cut.npz", "z.csv.gz"):
        with pytest.raises(ValueError, match=rf"^{name} must .*; write it again\.$"):
            flatclr.examine(embeddings=tmp_path / name)
    with pytest.raises(FileNotFoundError, match="embeddings must be a file"):
        flatclr.examine(embeddings=tmp_path / "gone.npy")
