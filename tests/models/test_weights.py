"""State dicts from elsewhere: prefixes, what fits and what does not, and no code that runs."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from flatclr.models import (
    build_encoder,
    load_weights,
)
from tests.support.networks import one_line, trained


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.encoder.", "_orig_mod.module.model."])
def test_known_prefixes_are_stripped(prefix: str, suffix: str, tmp_path: Path) -> None:
    source, target = trained(), trained()
    state = {f"{prefix}{key}": value for key, value in source.state_dict().items()}
    state |= {f"{prefix}fc.weight": torch.zeros(10, 32), "head.bias": torch.zeros(3)}
    path = tmp_path / f"weights{suffix}"
    safetensors.torch.save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    report = load_weights(target, path)
    assert set(report.loaded) == source.state_dict().keys()
    assert report.complete
    assert set(report.unexpected) == {f"{prefix}fc.weight", "head.bias"}
    assert str(report).startswith("24 of 24 tensors loaded, 2 unexpected (")
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value)


def test_one_of_several_networks_of_a_file_is_taken_by_its_prefix(tmp_path: Path) -> None:
    query, key, target = trained(), trained(), trained()
    state = {f"module.encoder_q.{name}": value for name, value in query.state_dict().items()}
    state |= {f"module.encoder_k.{name}": value for name, value in key.state_dict().items()}
    torch.save({"epoch": 3, "arch": "cnn", "state_dict": state}, tmp_path / "moco.pth")
    with pytest.raises(
        ValueError, match=r"must have keys such as 'layer1.conv.weight' .* got 'module.encoder_q.*; pass"
    ) as e:
        load_weights(target, tmp_path / "moco.pth")
    assert one_line(e)
    report = load_weights(target, tmp_path / "moco.pth", prefix="module.encoder_k.")
    assert report.complete
    assert len(report.unexpected) == len(query.state_dict())
    assert torch.equal(target.layer1.conv.weight, key.layer1.conv.weight)


def test_two_networks_that_fit_equally_well_are_not_chosen_between(tmp_path: Path) -> None:
    state = {f"{p}.{key}": value for p in ("backbone", "encoder") for key, value in trained().state_dict().items()}
    torch.save(state, tmp_path / "two.pt")
    with pytest.raises(ValueError, match=r"got 2 that fit, under 'backbone\.', 'encoder\.'; pass prefix="):
        load_weights(trained(), tmp_path / "two.pt")


def test_missing_and_misshapen_tensors_are_refused_unless_what_fits_is_asked_for(tmp_path: Path) -> None:
    source, target = trained(), trained()
    state = source.state_dict()
    state["layer1.conv.weight"] = torch.zeros(8, 3, 3, 3)
    del state["layer4.conv.weight"]
    del state["layer4.norm.num_batches_tracked"]  # as in old files
    before = target.layer1.conv.weight.clone()
    torch.save(state, tmp_path / "part.pt")
    before_refusal = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(
        ValueError,
        match=r"must hold every tensor of this SmallCNN, got 1 missing and 1 of another shape, of 23 \(first: "
        r"layer1\.conv\.weight has shape \[8, 3, 3, 3\], expected \[8, 1, 3, 3\]\); pass the architecture=",
    ):
        load_weights(target, tmp_path / "part.pt")
    assert all(torch.equal(value, target.state_dict()[key]) for key, value in before_refusal.items())
    report = load_weights(target, tmp_path / "part.pt", strict=False)
    assert not report.complete
    assert report.missing == ("layer4.conv.weight",)
    assert report.mismatched == ("layer1.conv.weight [8, 3, 3, 3] for [8, 1, 3, 3]",)
    assert torch.equal(target.layer1.conv.weight, before)
    assert torch.equal(target.layer2.conv.weight, source.layer2.conv.weight)


def test_a_resnet_takes_a_published_state_dict_and_reports_the_classifier(tmp_path: Path) -> None:
    """Names and shapes of torchvision's resnet18, with its fc."""
    source = build_encoder("resnet18", channels=3, image_size=224)
    torch.save(
        source.state_dict() | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, tmp_path / "r.pth"
    )
    report = load_weights(build_encoder("resnet18", channels=3, image_size=224), tmp_path / "r.pth")
    assert report.complete
    assert report.unexpected == ("fc.weight", "fc.bias")
    small = load_weights(build_encoder("resnet18", channels=3, image_size=32), tmp_path / "r.pth", strict=False)
    assert small.mismatched == ("conv1.weight [64, 3, 7, 7] for [64, 3, 3, 3]",)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


def test_no_file_can_execute_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.pt", "raw.pt"):
        with pytest.raises(ValueError, match=r"must hold tensors only, got a file that torch.load.* refuses") as e:
            load_weights(trained(), tmp_path / name)
        assert one_line(e)
    assert not (tmp_path / "exploded").exists()


def test_files_without_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "no_tensors.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    for name, message in {
        "no_tensors.pt": "must hold a state dict, got dict without tensors",
        "list.pt": "must hold a state dict, got list without tensors",
        "text.pt": "must hold tensors only",
        "text.safetensors": "must be a safetensors file, got",
    }.items():
        with pytest.raises(ValueError, match=message) as e:
            load_weights(trained(), tmp_path / name)
        assert one_line(e)
    with pytest.raises(FileNotFoundError, match=r"weights must be a file, got .*gone\.pt"):
        load_weights(trained(), tmp_path / "gone.pt")
