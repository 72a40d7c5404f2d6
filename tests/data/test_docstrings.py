"""What `flatclr.data` exports is documented: every argument, what comes back, an example."""

import inspect
import re
from pathlib import Path

import pytest

import flatclr.data
from flatclr.data import views

FUNCTIONS_AND_CLASSES = [
    getattr(module, name)
    for module in (flatclr.data, views)
    for name in module.__all__
    if name not in ("DATASETS", "LUMA", "Progress")
]


def arguments(item: object) -> list[str]:
    if item in (flatclr.data.ImageSource, flatclr.data.SkippedImagesWarning):
        return []
    return [name for name in inspect.signature(item).parameters if name not in ("args", "kwargs")]  # type: ignore[arg-type]


@pytest.mark.parametrize("item", FUNCTIONS_AND_CLASSES, ids=lambda item: item.__name__)
def test_an_exported_name_says_what_it_takes_and_shows_how_it_is_called(item: object) -> None:
    doc = inspect.getdoc(item) or ""
    missing = [name for name in arguments(item) if not re.search(rf"^    {name}: \S", doc, re.MULTILINE)]
    assert not missing
    assert ">>> " in doc
    assert not inspect.isfunction(item) or "\nReturns:\n" in doc


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
