"""`flatclr neighbours`"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flatclr.checks import require_count
from flatclr.cli.embed import Architecture, AsJson, Data, DataDir, Device, Encoder, ImageSize, Labels, Quiet
from flatclr.cli.eval_display import EvaluationDisplay
from flatclr.cli.options import MEASUREMENT, OUTPUT
from flatclr.data.sources import Dataset, FileImages
from flatclr.evaluation.embedding import Embeddings, embed
from flatclr.evaluation.opening import reads_text
from flatclr.evaluation.search import duplicates, nearest, outlier_scores
from flatclr.evaluation.sheets import SheetRow, Tile, require_sheet, thumbnail, write_sheet
from flatclr.evaluation.splits import IMAGES
from flatclr.files import replace_files

Option = typer.Option
PRINTED = 20  # rows of a table on the screen; the file has all
SHOWN_PAIRS, PER_ROW = 60, 6
Row = dict[str, Any]


def neighbours_command(
    encoder: Encoder,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="The image files, or the sentences, whose neighbours are wanted.", show_default=False),
    ] = None,
    k: Annotated[
        int,
        Option(
            "--neighbours",
            "-k",
            help="How many neighbours are shown, and by how many an outlier is judged.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = 8,
    of_duplicates: Annotated[
        bool,
        Option("--duplicates", help="Show pairs that are nearly the same.", rich_help_panel=MEASUREMENT),
    ] = False,
    threshold: Annotated[
        float, Option(help="The cosine from which two count as duplicates.", rich_help_panel=MEASUREMENT)
    ] = 0.99,
    of_outliers: Annotated[
        bool,
        Option("--outliers", help="Show what is least like its neighbours.", rich_help_panel=MEASUREMENT),
    ] = False,
    most: Annotated[int, Option(help="How many outliers are shown.", rich_help_panel=MEASUREMENT)] = 24,
    data: Data = None,
    data_dir: DataDir = None,
    labels: Labels = None,
    image_size: ImageSize = None,
    architecture: Architecture = None,
    device: Device = "auto",
    out: Annotated[
        str,
        Option(
            help="The contact sheet to write, .png or .html; the table goes beside it as .csv. Of sentences there is "
            "the table alone.",
            rich_help_panel=OUTPUT,
        ),
    ] = "neighbours.png",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the images or sentences nearest to some, near-duplicates or outliers.

    Images are shown on a contact sheet and in a table, sentences in a table. All are compared with each other by the
    cosine of their features.
    """
    target = require_sheet(out)
    beside = target.with_suffix(".csv")
    require_count("--neighbours", k, advice="say 8.")
    require_count("--most", most, advice="say 24.")
    if sum((bool(images), of_duplicates, of_outliers)) != 1:
        raise ValueError(
            "exactly one of images (or sentences), --duplicates and --outliers must be asked for, got "
            f"{'none' if not (images or of_duplicates or of_outliers) else 'several'}; pick one."
        )
    options: dict[str, Any] = {"image_size": image_size, "architecture": architecture, "device": device}
    with EvaluationDisplay(quiet=as_json or quiet) as display:
        options["progress"] = display.progressed
        asked = None if not images else embed(encoder, _queries(images, encoder, architecture), **options)
        bank = embed(encoder, data, labels=labels, data_dir=data_dir, **options)
        if asked is not None:
            title, table, rows = _near(bank, asked, images or [], k)
        elif of_duplicates:
            title, table, rows = _alike(bank, threshold)
        else:
            title, table, rows = _apart(bank, k, most)
        sheet = write_sheet(target, title, list(rows())) if bank.kind == IMAGES else None
    _write_table(beside, table)
    _show(title, table, sheet, beside, as_json=as_json)


Found = tuple[str, list[Row], Callable[[], Iterator[SheetRow]]]


def _queries(images: Sequence[str], encoder: str, architecture: str | None) -> Dataset | Sequence[str]:
    if reads_text(encoder, architecture):
        return images
    missing = [image for image in images if not Path(image).is_file()]
    if missing:
        raise FileNotFoundError(f"images must be files, got {missing[0]!r}, which is none; check the path.")
    return Dataset("the images asked for", FileImages(images, name="the images asked for"), None)


def _near(bank: Embeddings, asked: Embeddings, images: Sequence[str], k: int) -> Found:
    """Of every image asked for, those of the bank; one that is in the bank does not find itself."""
    names = [images[row] for row in asked.rows]
    own = [_own_place(bank, name) for name in names]
    found = nearest(bank.features, asked.features, k=k + 1)
    kept = [
        [(int(i), float(c)) for i, c in zip(index, cosine, strict=True) if i != place][:k]
        for index, cosine, place in zip(found.index, found.cosine, own, strict=True)
    ]
    table = [
        {_one_of(bank): name, "rank": rank, "neighbour": bank.names[i], "cosine": round(c, 4)} | _label(bank, i)
        for name, row in zip(names, kept, strict=True)
        for rank, (i, c) in enumerate(row, 1)
    ]

    def rows() -> Iterator[SheetRow]:
        for number, (name, row) in enumerate(zip(names, kept, strict=True)):
            first = Tile(thumbnail(asked.picture(number)), Path(name).name, asked=True)
            yield SheetRow(name, [first, *(_tile(bank, i, f"{c:.3f}") for i, c in row)])

    return f"The nearest of {len(bank):,} {bank.kind} of {bank.data}, by {bank.encoder}", table, rows


def _alike(bank: Embeddings, threshold: float) -> Found:
    pairs = duplicates(bank.features, threshold=threshold)
    table = [
        {"first": bank.names[pair.first], "second": bank.names[pair.second], "cosine": pair.cosine} for pair in pairs
    ]

    def rows() -> Iterator[SheetRow]:
        for pair in pairs[:SHOWN_PAIRS]:
            yield SheetRow(f"cosine {pair.cosine:.4f}", [_tile(bank, pair.first), _tile(bank, pair.second)])

    counted = f"{len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'}"
    return f"{counted} of {len(bank):,} {bank.kind} of {bank.data} with a cosine of {threshold:g} or more", table, rows


def _apart(bank: Embeddings, k: int, most: int) -> Found:
    scores = outlier_scores(bank.features, k=k)
    order = np.argsort(-scores, kind="stable")
    table = [
        {_one_of(bank): bank.names[i], "distance": round(float(scores[i]), 4)} | _label(bank, int(i)) for i in order
    ]

    def rows() -> Iterator[SheetRow]:
        shown = [_tile(bank, int(i), f"{scores[i]:.3f}") for i in order[:most]]
        for start in range(0, len(shown), PER_ROW):
            yield SheetRow(f"{start + 1} to {min(start + PER_ROW, len(shown))}", shown[start : start + PER_ROW])

    return f"The {bank.kind} of {bank.data} that are least like their {k} neighbours, by {bank.encoder}", table, rows


def _one_of(bank: Embeddings) -> str:
    """What a row is of: image or sentence."""
    return bank.kind.removesuffix("s")


def _own_place(bank: Embeddings, name: str) -> int | None:
    """Where the bank has this very file or sentence."""
    if bank.kind != IMAGES:
        return bank.names.index(name) if name in bank.names else None
    files = [getattr(file, "path", None) for source in bank.sources for file in getattr(source, "files", ())]
    places = {path.resolve(): place for place, path in enumerate(files) if path is not None}
    place = places.get(Path(name).resolve())
    return bank.rows.index(place) if place in bank.rows else None


def _label(bank: Embeddings, number: int) -> Row:
    return {} if bank.labels is None else {"label": bank.labels[number]}


def _tile(bank: Embeddings, number: int, said: str = "") -> Tile:
    label = "" if bank.labels is None else f" {bank.labels[number]}"
    return Tile(thumbnail(bank.picture(number)), f"{bank.names[number]}\n{said}{label}".strip())


def _write_table(path: Path, table: Sequence[Row]) -> None:
    import pandas as pd

    replace_files({path: pd.DataFrame(table).to_csv(index=False).encode(errors="backslashreplace")})


def _show(title: str, table: Sequence[Row], sheet: Path | None, beside: Path, *, as_json: bool) -> None:
    if as_json:
        for row in table:
            print(json.dumps(row))
        print(json.dumps({"sheet": None if sheet is None else str(sheet), "table": str(beside), "rows": len(table)}))
        return
    console = Console()
    if table:
        shown = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
        for column in table[0]:
            shown.add_column(column, overflow="fold")
        for row in table[:PRINTED]:
            shown.add_row(*(escape(str(value)) for value in row.values()))
        console.print(shown)
    else:
        console.print(escape(title), highlight=False)
    if len(table) > PRINTED:
        console.print(f"and {len(table) - PRINTED:,} more rows", highlight=False)
    for path in (sheet, beside):
        if path is not None:
            console.print(escape(str(path)), highlight=False, soft_wrap=True)
