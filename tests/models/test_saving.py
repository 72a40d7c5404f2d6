"""Encoders as files: exact round trips, one clear line for every damaged one, never a partial one."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatclr
from flatclr.data.views import apply_views, draw_views, no_augmentation
from flatclr.models import (
    Encoder,
    Normalisation,
    load_encoder,
    save_encoder,
)
from flatclr.models.saving import with_checksum
from tests.support.networks import NORMED, one_line, trained

NORMALISATION = Normalisation(mean=(0.2860,), std=(0.3530,))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_encoder(tmp_path, trained(), description={"data": "fashion", "knn": 0.83}, normalisation=NORMALISATION)
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "encoder.json"
    path.write_text(json.dumps(with_checksum(json.loads(path.read_text()) | changes)))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", NORMED)
def test_an_encoder_comes_back_exactly(name: str, norm: str, tmp_path: Path) -> None:
    encoder = trained(name, norm=norm)
    path = save_encoder(tmp_path / "new" / "folder", encoder, description={"epochs": 3}, normalisation=NORMALISATION)
    loaded = load_encoder(path)
    assert isinstance(loaded, Encoder)
    assert not loaded.training
    assert loaded.spec == encoder.spec
    assert loaded.features == encoder.features
    assert loaded.description == {"epochs": 3}
    assert loaded.normalisation == NORMALISATION
    for key, value in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(loaded(images), encoder.eval()(images))


@pytest.mark.parametrize("file", ["", "encoder.safetensors", "encoder.json"])
def test_folder_weights_and_description_lead_to_the_same_encoder(saved: Path, file: str) -> None:
    assert load_encoder(saved / file).description == {"data": "fashion", "knn": 0.83}
    assert load_encoder(str(saved / file)).description == {"data": "fashion", "knn": 0.83}


def test_a_pair_of_files_may_be_renamed_together(saved: Path) -> None:
    for suffix in (".json", ".safetensors"):
        (saved / f"encoder{suffix}").rename(saved / f"best{suffix}")
    load_encoder(saved / "best.json")
    load_encoder(saved / "best.safetensors")


def test_the_description_names_all_that_is_needed_to_rebuild(saved: Path) -> None:
    document = json.loads((saved / "encoder.json").read_text())
    assert document["encoder"] == {
        "name": "cnn", "channels": 1, "image_size": 28, "options": {"width": 8, "norm": "batch"}
    }  # fmt: skip
    assert document["features"] == 32
    assert document["format_version"] == 1
    assert document["flatclr_version"] == flatclr.__version__
    assert document["normalisation"] == {"mean": [0.2860], "std": [0.3530]}


def test_a_loaded_encoder_can_be_saved_again_without_repeating_its_normalisation(saved: Path, tmp_path: Path) -> None:
    again = load_encoder(save_encoder(tmp_path / "again", load_encoder(saved), description={}))
    assert again.normalisation == NORMALISATION


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_precision_of_the_weights_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    encoder = trained().to(dtype)
    loaded = load_encoder(save_encoder(tmp_path, encoder, description={}))
    for key, value in encoder.state_dict().items():
        assert loaded.state_dict()[key].dtype == value.dtype
        assert torch.equal(loaded.state_dict()[key], value)


def test_channels_last_and_compiled_encoders_are_saved_as_plain_ones(tmp_path: Path) -> None:
    encoder = trained().to(memory_format=torch.channels_last)
    loaded = load_encoder(save_encoder(tmp_path, torch.compile(encoder, backend="eager"), description={}))
    assert loaded.state_dict().keys() == encoder.state_dict().keys()
    assert torch.equal(loaded.state_dict()["layer2.conv.weight"], encoder.state_dict()["layer2.conv.weight"])


def test_loading_leaves_the_random_state_alone(saved: Path) -> None:
    before = torch.random.get_rng_state()
    load_encoder(saved)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_any_module_can_be_saved_and_loaded_into_its_like(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    save_encoder(tmp_path, module, description={"by": "hand"})
    with pytest.raises(ValueError, match=r"not built by name; pass load_encoder\(path, into=module\)"):
        load_encoder(tmp_path)
    other = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    loaded = load_encoder(tmp_path, into=other)
    assert loaded is other
    assert loaded.description == {"by": "hand"}
    assert torch.equal(loaded[1].weight, module[1].weight)
    with pytest.raises(
        ValueError, match=r"weights of this Linear, got 0 of 2 tensors loaded, 2 missing .*; build it"
    ) as e:
        load_encoder(tmp_path, into=nn.Linear(4, 3))
    assert one_line(e)
    with pytest.raises(ValueError, match=r"1 mismatched \(1.weight \[3, 4\] for \[3, 5\]\)"):
        load_encoder(tmp_path, into=nn.Sequential(nn.Flatten(), nn.Linear(5, 3)))


def test_shared_weights_are_saved_like_any_other(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    save_encoder(tmp_path, module, description={})
    assert torch.equal(load_encoder(tmp_path, into=module)[1].weight, module[0].weight)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "longer"])
@pytest.mark.parametrize("at", [0, 0.01, 0.5, 1])
def test_damaged_weights_are_refused_in_one_line(saved: Path, damage: str, at: float) -> None:
    path = saved / "encoder.safetensors"
    data = bytearray(path.read_bytes())
    place = int(at * (len(data) - 1))
    if damage == "flipped":
        data[place] ^= 1
    data = {"truncated": data[:place], "flipped": data, "empty": bytearray(), "longer": data + b"\0"}[damage]
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=r"must have sha256 .*\.\.\., got .*; it is damaged or belongs to another"
    ) as e:
        load_encoder(saved)
    assert one_line(e)


BAD_DOCUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "onnx"}, "must be written by save_encoder, got another kind of JSON"),
    "newer": ({"format_version": 2, "flatclr_version": "9.9"}, "format_version 1, got 2; .* flatclr 9.9: install"),
    "no version": ({"format_version": None}, "format_version 1, got None"),
    "no checksum": ({"sha256": None}, "valid field 'sha256', got None"),
    "encoder type": ({"encoder": "cnn"}, "valid field 'encoder', got 'cnn'"),
    "no fields": ({"encoder": {"name": "cnn"}}, "field of .*encoder.json must be one of 'name', got 'channels'"),
    "normalisation": ({"normalisation": {"mean": 0.5}}, "normalisation with mean and std, got"),
    "unknown name": (
        {"encoder": {"name": "cmn", "channels": 1, "image_size": 28, "options": {}}},
        "encoder must be one of .* did you mean 'cnn'",
    ),
    "unknown option": (
        {"encoder": {"name": "cnn", "channels": 1, "image_size": 28, "options": {"depth": 3}}},
        "option of encoder cnn must be one of",
    ),
    "other architecture": (
        {"encoder": {"name": "cnn", "channels": 3, "image_size": 28, "options": {"width": 8}}},
        r"weights of this SmallCNN, got .* 1 mismatched \(layer1.conv.weight \[8, 1, 3, 3\] for \[8, 3, 3, 3\]\)",
    ),
    "reaches for a file": (
        {"encoder": {"name": "timm:x", "channels": 1, "image_size": 28, "options": {"checkpoint_path": "evil.pt"}}},
        "must name an architecture only, got 'timm:x' with",
    ),
    "reaches for a hub": (
        {"encoder": {"name": "timm:hf-hub:evil/model", "channels": 1, "image_size": 28, "options": {}}},
        "must name an architecture only",
    ),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_a_description_that_does_not_fit_is_refused_in_one_line(saved: Path, case: str) -> None:
    changes, message = BAD_DOCUMENTS[case]
    edit(saved, **changes)
    with pytest.raises(ValueError, match=message) as e:
        load_encoder(saved)
    assert one_line(e)


@pytest.mark.parametrize("field", ["encoder", "normalisation", "sha256", "description"])
def test_a_description_without_one_of_its_fields_is_refused_in_one_line(saved: Path, field: str) -> None:
    document = json.loads((saved / "encoder.json").read_text())
    del document[field]
    (saved / "encoder.json").write_text(json.dumps(with_checksum(document)))
    with pytest.raises(ValueError, match=f"must have a valid field '{field}', got none; copy it again") as e:
        load_encoder(saved)
    assert one_line(e)


def test_a_description_with_numbers_for_keys_comes_back(tmp_path: Path) -> None:
    save_encoder(tmp_path, trained(), description={10: "ten", 9: "nine"})
    assert load_encoder(tmp_path).description == {"10": "ten", "9": "nine"}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"null", b"[" * 100_000])
def test_a_description_that_is_no_json_is_refused_in_one_line(saved: Path, text: bytes) -> None:
    (saved / "encoder.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"encoder\.json must be") as e:
        load_encoder(saved)
    assert one_line(e)


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(FileNotFoundError, match=r"got no .*nothing/encoder\.json; copy both files"):
        load_encoder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="which does not exist; check the path"):
        load_encoder(saved / "other.safetensors")
    with pytest.raises(ValueError, match=r"a folder, a \.safetensors or a \.json file, got .*encoder\.pt"):
        load_encoder(saved / "encoder.pt")
    (saved / "encoder.safetensors").rename(saved / "lonely.safetensors")
    with pytest.raises(FileNotFoundError, match=r"must come with its description, got no .*lonely\.json"):
        load_encoder(saved / "lonely.safetensors")
    with pytest.raises(FileNotFoundError, match=r"must have its weights, got no .*encoder\.safetensors"):
        load_encoder(saved)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_save_that_fails_leaves_what_was_there(saved: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        with pytest.raises(OSError, match="No space left"):
            save_encoder(saved, trained(), description={"run": "second"})
        with pytest.raises(OSError, match="No space left"):
            save_encoder(saved / "new", trained(), description={})
    assert {path.name: path.read_bytes() for path in saved.iterdir() if path.is_file()} == before
    assert list((saved / "new").iterdir()) == []
    load_encoder(saved)


def test_what_a_kill_left_behind_is_cleared_by_the_next_save(saved: Path) -> None:
    (saved / ".encoder.safetensors.part").write_bytes(b"half a fi")
    save_encoder(saved, trained(), description={})
    assert {path.name for path in saved.iterdir()} == {"encoder.json", "encoder.safetensors"}


@pytest.mark.parametrize("value", [float("nan"), Path("x"), torch.zeros(1), {1, 2}])
def test_a_description_that_is_no_json_is_refused_before_anything_is_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"must be plain JSON, got .*; convert") as e:
        save_encoder(tmp_path / "run", trained(), description={"value": value})
    assert one_line(e)
    assert not (tmp_path / "run").exists()


def test_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> str:
            return "text"

    with pytest.raises(TypeError, match="must be tensors, got str for '_extra_state'; keep"):
        save_encoder(tmp_path, Odd(), description={})


def test_a_loaded_encoder_normalises_images_as_evaluation_does() -> None:
    images = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    how = Normalisation((0.1, 0.2, 0.3), (0.5, 0.25, 0.2))
    views = no_augmentation(mean=how.mean, std=how.std)
    drawn = draw_views(views, 3, height=8, width=8, generator=torch.Generator())
    torch.testing.assert_close(how(images), apply_views(images, drawn, views))
    torch.testing.assert_close(how(images.double() / 255).float(), how(images))
    for wrong in (images[:, :1], images[0]):
        with pytest.raises(ValueError, match=r"images must have shape \[N, 3, H, W\], got .*; pass a batch"):
            how(wrong)
    with pytest.raises(
        TypeError, match=r"images must be uint8, or floating point in \[0, 1\], got torch.int64; convert"
    ):
        how(images.long())
