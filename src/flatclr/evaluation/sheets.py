"""Contact sheets: rows of pictures with a caption each, as one PNG or one HTML file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from flatclr.data.decoding import eight_bit, on_white
from flatclr.files import replace_files, require_place

SUFFIXES = (".png", ".html")
TILE, CAPTION, GAP, HEADING = 160, 34, 8, 26  # pixels
INK, MUTED, EDGE = (27, 31, 36), (87, 96, 106), (208, 215, 222)
MOST_ROWS_OF_PNG = 100  # a taller picture is more than viewers take
CSS = """body{font:14px system-ui,sans-serif;color:#1b1f24;margin:24px;background:#fff}h1{font-size:18px}
h2{font-size:14px;margin:18px 0 6px;font-weight:600}.row{display:flex;flex-wrap:wrap;gap:10px}
figure{margin:0;width:160px}img{width:160px;height:160px;object-fit:contain;background:#f6f8fa;border-radius:4px}
figure.asked img{outline:3px solid #0b6e99;outline-offset:-3px}
figcaption{font-size:12px;color:#57606a;overflow-wrap:anywhere}"""


@dataclass(frozen=True)
class Tile:
    """A picture and what stands below it.

    Args:
        image: as it is shown.
        caption: one or two short lines.
        asked: whether it is the one that others are compared with.
    """

    image: Image.Image
    caption: str
    asked: bool = False


@dataclass(frozen=True)
class SheetRow:
    """Pictures that belong together, under a heading."""

    heading: str
    tiles: Sequence[Tile]


def require_sheet(path: str | Path) -> Path:
    """Refuse a file that no sheet can be written to, before any work."""
    target = require_place(path)
    if target.suffix not in SUFFIXES or target.is_dir():
        raise ValueError(f"out must end in {' or '.join(SUFFIXES)}, got {str(path)!r}; name such a file.")
    return target


def write_sheet(path: str | Path, title: str, rows: Sequence[SheetRow]) -> Path:
    """Write a sheet as .png or .html; the page holds all of its pictures.

    Args:
        path: where to; its ending says what.
        title: of the sheet.
        rows: of pictures.

    Returns:
        The path.
    """
    target = require_sheet(path)
    content = _page(title, rows).encode() if target.suffix == ".html" else _png(title, rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_files({target: content})
    return target


def thumbnail(opened: Any, side: int = TILE) -> Image.Image:
    """A picture as it is shown: upright, on white, at most `side` pixels wide and high."""
    from PIL import ImageOps

    image = on_white(eight_bit(ImageOps.exif_transpose(opened))).convert("RGB")
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    sampling = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    return image.resize(size, sampling)


def data_uri(image: Image.Image, kind: str = "png", **options: Any) -> str:
    """A picture as an address that holds all of it, for pages that need no other file."""
    stream = io.BytesIO()
    image.save(stream, kind.upper(), **options)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _png(title: str, rows: Sequence[SheetRow]) -> bytes:
    rows = rows[:MOST_ROWS_OF_PNG]
    columns = max((len(row.tiles) for row in rows), default=1)
    width = max(GAP + columns * (TILE + GAP), 480)
    height = HEADING + 2 * GAP + sum(HEADING + TILE + CAPTION + GAP for _ in rows)
    sheet = Image.new("RGB", (width, height), "white")
    draw, top = ImageDraw.Draw(sheet), GAP
    draw.text((GAP, top), _fitted(draw, title, width - 2 * GAP, _font(16)), INK, _font(16))
    top += HEADING + GAP
    for row in rows:
        draw.text((GAP, top), _fitted(draw, row.heading, width - 2 * GAP, _font(13)), INK, _font(13))
        top += HEADING
        for column, tile in enumerate(row.tiles):
            _draw_tile(sheet, draw, tile, GAP + column * (TILE + GAP), top)
        top += TILE + CAPTION + GAP
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()


def _draw_tile(sheet: Image.Image, draw: ImageDraw.ImageDraw, tile: Tile, left: int, top: int) -> None:
    image = tile.image
    sheet.paste(image, (left + (TILE - image.width) // 2, top + (TILE - image.height) // 2))
    edge, thick = ((11, 110, 153), 3) if tile.asked else (EDGE, 1)
    draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), outline=edge, width=thick)
    for number, line in enumerate(tile.caption.splitlines()[:2]):
        draw.text((left, top + TILE + 2 + 15 * number), _fitted(draw, line, TILE, _font(12)), MUTED, _font(12))


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    """The end of the text where it is too long: of a path that tells more than its beginning."""
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(f"...{text}", font) > width:
        text = text[1:]
    return f"...{text}"


def _page(title: str, rows: Sequence[SheetRow]) -> str:
    name, body = html.escape(title), "\n".join(map(_row, rows))
    head = f'<meta charset="utf-8"><title>{name}</title><style>{CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><h1>{name}</h1>\n{body}\n</body></html>\n'


def _row(row: SheetRow) -> str:
    return f'<h2>{html.escape(row.heading)}</h2><div class="row">{"".join(map(_figure, row.tiles))}</div>'


def _figure(tile: Tile) -> str:
    lines = [html.escape(line) for line in tile.caption.splitlines()]
    picture = f'<img alt="{lines[0] if lines else ""}" src="{data_uri(tile.image)}">'
    kind = ' class="asked"' if tile.asked else ""
    return f"<figure{kind}>{picture}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"
