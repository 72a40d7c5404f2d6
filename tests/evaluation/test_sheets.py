"""Contact sheets as PNG and as a page."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatclr.evaluation.sheets import TILE, SheetRow, Tile, thumbnail, write_sheet

RED = Image.new("RGB", (40, 20), "red")
ROWS = [SheetRow("a <heading>", [Tile(thumbnail(RED), "a & b.jpg\n0.9", asked=True), Tile(thumbnail(RED), "c.jpg")])]


def test_a_png_shows_every_picture_in_its_shape(tmp_path: Path) -> None:
    sheet = np.asarray(Image.open(write_sheet(tmp_path / "new" / "sheet.png", "title", ROWS)))
    red = (sheet == (255, 0, 0)).all(2)

    assert red.sum() >= 2 * (TILE - 2 * 3) * TILE // 2 - 600  # less the frames
    assert red.any(1).sum() == TILE // 2
    assert sheet.shape[1] > 2 * TILE


def test_a_page_holds_its_pictures_and_escapes_names(tmp_path: Path) -> None:
    page = write_sheet(tmp_path / "sheet.html", "<title>", ROWS).read_text()

    assert page.count("data:image/png;base64,") == 2
    assert "a &amp; b.jpg" in page
    assert "&lt;title&gt;" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_picture_is_shown_upright_and_on_white() -> None:
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(stream, "JPEG", exif=exif)
    assert thumbnail(Image.open(stream)).size == (TILE // 2, TILE)
    assert thumbnail(Image.new("RGBA", (8, 8), (0, 0, 0, 0))).getpixel((4, 4)) == (255, 255, 255)


@pytest.mark.parametrize("name", ["sheet.jpg", "sheet", "."])
def test_another_kind_of_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out must end in \.png or \.html, got"):
        write_sheet(tmp_path / name, "title", ROWS)
