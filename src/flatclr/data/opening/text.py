"""Text as data: adjacent sentences of a text file are pairs, the rows of a table are sentences with labels."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from flatclr.checks import shown
from flatclr.data.opening.split import Split
from flatclr.data.sources import Dataset, PairedArrays, Sentences
from flatclr.data.words import WORD, are_texts, token_ids

TEXT, LABEL = "text", "label"  # columns of a table of sentences
END_OF_SENTENCE = re.compile("(?<=[.!?])[\"'\u201d\u2019)]*\\s+")


def sentences_of(text: str) -> list[list[str]]:
    """Sentences of every paragraph; those without a word are left out.

    >>> sentences_of("One. Two words!\\n\\nThree? ...")
    [['One.', 'Two words!'], ['Three?']]
    """
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    found = ([s for s in END_OF_SENTENCE.split(paragraph) if WORD.search(s)] for paragraph in paragraphs)
    return [sentences for sentences in found if sentences]


def open_text(path: Path, split: Split) -> Dataset:
    """Every sentence with the next one of its paragraph; the last part of the text is held out, so none is in both."""
    paragraphs = sentences_of(_read(path))
    held_out = int(len(paragraphs) * split.fraction)
    parts = [paragraphs[: len(paragraphs) - held_out], paragraphs[len(paragraphs) - held_out :]]
    pairs = [[(a, b) for part in half for a, b in pairwise(part)] for half in parts]
    if len(pairs[0]) < 2:
        raise ValueError(
            f"{path} must have at least 2 pairs of adjacent sentences to train on, got {len(pairs[0])}; leave an empty "
            "line between paragraphs, and several sentences in each."
        )
    train, test = (_paired(half, f"{path.stem}/{name}") for half, name in zip(pairs, ("train", "test"), strict=True))
    assert train is not None
    return Dataset(path.stem, train, test)


def _paired(pairs: Sequence[tuple[str, str]], name: str) -> PairedArrays | None:
    if not pairs:
        return None
    first, second = zip(*pairs, strict=True)
    return PairedArrays(token_ids(first), token_ids(second), name=name, tokens=True)


def open_tables(paths: Sequence[Path], split: Split) -> Dataset:
    """The sentences of a table, some held out for testing, or of two: those to learn from, those to test on."""
    train, *test = map(_read_table, paths)
    if not test:
        return split.of(train.name, train)
    return Dataset("+".join(path.stem for path in paths), train, test[0])


def are_sentences(given: Any) -> bool:
    """Whether it is single sentences, or names a table of them."""
    if isinstance(given, str | Path):
        return Path(given).suffix == ".csv"
    if isinstance(given, tuple) and len(given) == 2:
        return are_texts(given[0])
    return isinstance(getattr(given, "train", given), Sentences)


def in_single_sentences(given: Any) -> Any:
    """A text file, a table or a list of texts as sentences one by one; all else as it is."""
    if are_texts(given):
        return Dataset("sentences", Sentences(given), None)
    path = Path(given).expanduser() if isinstance(given, str | Path) else None
    if path is None or path.suffix not in (".txt", ".csv") or not path.is_file():
        return given
    return Dataset(path.stem, _read_table(path) if path.suffix == ".csv" else _read_text(path), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text, got byte {error.start} that is not; convert it.") from None


def _read_text(path: Path) -> Sentences:
    """Every sentence with a word, in the order of the text."""
    found = [sentence for paragraph in sentences_of(_read(path)) for sentence in paragraph]
    if not found:
        raise ValueError(f"{path} must hold sentences, got none; write some text into it.")
    return Sentences(found, name=path.stem)


def _read_table(path: Path) -> Sentences:
    """The columns text and label of a table, in the order of its lines."""
    reader = csv.reader(io.StringIO(_read(path)), strict=True)
    try:
        header, rows = next(reader, []), [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{path} must be a table, got {error} in line {reader.line_num}; mend it.") from None
    names = [name.strip().lower() for name in header]
    if TEXT not in names:
        raise ValueError(
            f"{path} must begin with a line that names its columns, {TEXT} and {LABEL}, got {shown(header)}; add it."
        )
    for line, row in rows:
        if len(row) != len(names):
            raise ValueError(
                f"{path} must have {len(names)} cells in every line, got {len(row)} in line {line}; put texts with "
                "commas in double quotes."
            )
    if not rows:
        raise ValueError(f"{path} must hold sentences, got none below its first line; add some.")
    texts = [row[names.index(TEXT)] for _, row in rows]
    return Sentences(texts, _labels(path, names, rows), name=path.stem)


def _labels(path: Path, names: Sequence[str], rows: Sequence[tuple[int, list[str]]]) -> list[str] | None:
    if LABEL not in names:
        return None
    labels = [row[names.index(LABEL)].strip() for _, row in rows]
    if "" in labels:
        line, _ = rows[labels.index("")]
        raise ValueError(f"{path} must have a label in every line, got none in line {line}; add it.")
    return labels
