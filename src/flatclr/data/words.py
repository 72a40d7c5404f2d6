"""Words as numbers by a hash, so that an encoder needs no list of words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from flatclr.checks import require_count, shown

# saved encoders know words by these numbers: another hash, pattern or number of buckets would make them useless
LENGTH, BUCKETS = 32, 8192  # words that are read of a sentence, and numbers that words are spread over
WORD = re.compile("\\w+(?:['\u2019]\\w+)*")


def token_ids(sentences: Sequence[str], *, length: int = LENGTH, buckets: int = BUCKETS) -> Tensor:
    """The words of sentences as numbers: the same word has the same number everywhere.

    Args:
        sentences: case and punctuation are passed over.
        length: words that are read of a sentence, at most.
        buckets: how many numbers there are; few let different words share one. Runs, `embed` and `evaluate` go by the
            default.

    Returns:
        [N, length] of whole numbers as float32: 0 where a sentence has ended, else 1 to buckets - 1.

    >>> ids = token_ids(["The cat sat.", "the CAT!"], length=4)
    >>> (ids[0, :2] == ids[1, :2]).all(), ids[1, 2:]
    (tensor(True), tensor([0., 0.]))
    """
    require_count("length", length, advice="32 words are a long sentence.")
    require_count("buckets", buckets, at_least=2, at_most=2**24, advice="8192 suits a book.")
    require_texts("sentences", sentences)
    ids = torch.zeros(len(sentences), length)
    for row, sentence in enumerate(sentences):
        words = WORD.findall(sentence.lower())[:length]
        numbers = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in words]
        ids[row, : len(words)] = torch.tensor(numbers, dtype=torch.float32)
    return ids


def are_texts(given: object) -> bool:
    """Whether it is a list of texts."""
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(part, str) for part in given)


def require_texts(name: str, given: object) -> None:
    """Refuse what is no list of texts."""
    if not are_texts(given):
        raise TypeError(f"{name} must be a list of texts, got {shown(given)}; pass ['a sentence'].")
