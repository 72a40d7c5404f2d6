"""The names of datasets that `flatclr.data` exports are names it can open."""

from pathlib import Path

import pytest

import flatclr.data


@pytest.mark.parametrize("name", flatclr.data.DATASETS)
def test_every_name_of_a_dataset_is_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLATCLR_DATA", raising=False)
    if name == "fashion-mnist-small":
        assert flatclr.data.open_dataset(name).name == name
        return
    with pytest.raises(
        FileNotFoundError, match=rf"^{name} must stand in a data folder as .* downloads are switched off"
    ):
        flatclr.data.open_dataset(name, download=False)
