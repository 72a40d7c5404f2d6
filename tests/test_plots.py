"""Figures: one style, no global state, whole files."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from flatclr.plots import DOTS_PER_INCH, figure_bytes, figure_style, new_figure, save_figure


def test_a_figure_becomes_a_png_of_its_size(tmp_path: Path) -> None:
    figure = new_figure(3, 2)
    figure.add_subplot().plot([1, 2, 3])
    save_figure(tmp_path / "figure.png", figure)
    with Image.open(tmp_path / "figure.png") as image:
        assert image.size == (3 * DOTS_PER_INCH, 2 * DOTS_PER_INCH)
        assert image.format == "PNG"


def test_a_name_that_the_font_cannot_show_is_drawn_without_a_warning() -> None:
    figure = new_figure(2, 2)
    figure.add_subplot().set_title("照片")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert figure_bytes(figure).startswith(b"\x89PNG")


def test_the_style_ends_with_its_block() -> None:
    before = dict(matplotlib.rcParams)
    with figure_style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


def test_a_failed_write_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    save_figure(path, new_figure(2, 2))
    old, figure = path.read_bytes(), new_figure(3, 3)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_figure(path, figure)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]


def test_the_package_is_imported_without_matplotlib() -> None:
    code = "import sys, flatclr, flatclr.cli.main; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
