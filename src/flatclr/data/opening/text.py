"""A text file as pairs of adjacent sentences, words as numbers by a hash, so that an encoder needs no list of words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from flatclr.checks import require_count, shown
from flatclr.data.opening.split import Split
from flatclr.data.sources import Dataset, PairedArrays

LENGTH, BUCKETS = 32, 8192  # words of a sentence, and numbers that words are spread over
END_OF_SENTENCE = re.compile("(?<=[.!?])[\"'\u201d\u2019)]*\\s+")
WORD = re.compile("\\w+(?:['\u2019]\\w+)*")


def token_ids(sentences: Sequence[str], *, length: int = LENGTH, buckets: int = BUCKETS) -> Tensor:
    """The words of sentences as numbers: the same word has the same number everywhere.

    Args:
        sentences: case and punctuation are passed over.
        length: words that are read of a sentence, at most.
        buckets: how many numbers there are; few let different words share one.

    Returns:
        [N, length] of whole numbers as float32: 0 where a sentence has ended, else 1 to buckets - 1.

    >>> ids = token_ids(["The cat sat.", "the CAT!"], length=4)
    >>> (ids[0, :2] == ids[1, :2]).all(), ids[1, 2:]
    (tensor(True), tensor([0., 0.]))
    """
    require_count("length", length, advice="32 words are a long sentence.")
    require_count("buckets", buckets, at_least=2, at_most=2**24, advice="8192 suits a book.")
    if not isinstance(sentences, Sequence) or not all(isinstance(sentence, str) for sentence in sentences):
        raise TypeError(f"sentences must be a list of texts, got {shown(sentences)}; pass ['a sentence'].")
    ids = torch.zeros(len(sentences), length)
    for row, sentence in enumerate(sentences):
        words = WORD.findall(sentence.lower())[:length]
        numbers = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in words]
        ids[row, : len(words)] = torch.tensor(numbers, dtype=torch.float32)
    return ids


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
    try:
        paragraphs = sentences_of(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text, got byte {error.start} that is not; convert it.") from None
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
