"""Sentences one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flatclr.checks import require_count
from flatclr.data.arrays import checked_labels, class_numbers, label_array, rows_of
from flatclr.data.words import LENGTH, require_texts, token_ids

LONGEST_NAME = 500  # characters


class Sentences:
    """Sentences, handed out as numbers of their words.

    Args:
        texts: a sentence each. One without a word is what no words mean to an encoder.
        labels: class numbers or names [N].
        classes: names of the classes.
        words: how many words are read of a sentence, at most.
        name: for messages and reports.

    Raises:
        TypeError: the texts are no list of texts.
        ValueError: there are none, or labels do not fit them.

    >>> source = Sentences(["The cat sat.", "A dog ran off."], ["cat", "dog"])
    >>> source.classes, source.batch(torch.tensor([1])).shape
    (('cat', 'dog'), torch.Size([1, 32]))
    """

    image_size = 1  # rows of numbers are images of one pixel

    def __init__(
        self,
        texts: Sequence[str],
        labels: Any = None,
        classes: Sequence[str] = (),
        *,
        words: int = LENGTH,
        name: str = "sentences",
    ) -> None:
        require_texts(name, texts)
        require_count("words", words, advice="32 words are a long sentence.")
        if not texts:
            raise ValueError(f"{name} must hold sentences, got none; pass at least one.")
        self.texts, self.channels, self.name = tuple(texts), words, name
        numbers, names = (
            (None, tuple(classes)) if labels is None else class_numbers(label_array(labels, name), classes, name)
        )
        if numbers is not None and len(numbers) != len(texts):
            raise ValueError(f"{name} must have a label each, got {len(numbers)} for {len(texts)}; pass as many.")
        self.labels, self.classes = checked_labels(numbers, names, images=len(texts), name=name)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def names(self) -> tuple[str, ...]:
        """The sentences; very long ones are cut."""
        return tuple(text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}\u2026" for text in self.texts)

    def batch(self, index: Tensor) -> Tensor:
        """The numbers of the words of these sentences, int64 [B, words] with zeros at the end."""
        return token_ids([self.texts[i] for i in index.tolist()], length=self.channels).long()

    def subset(self, index: Tensor, name: str) -> Sentences:
        """The sentences of these numbers, with their labels, as a source of their own."""
        texts = [self.texts[i] for i in index.tolist()]
        return Sentences(texts, rows_of(self.labels, index), self.classes, words=self.channels, name=name)

    def reading(self, words: int) -> Sentences:
        """The same sentences, with so many words read of each."""
        return Sentences(self.texts, self.labels, self.classes, words=words, name=self.name)

    def fingerprint(self) -> str:
        """A hash of sentences, labels and classes."""
        labels = None if self.labels is None else self.labels.tolist()
        return hashlib.sha256(repr((self.texts, self.channels, labels, self.classes)).encode()).hexdigest()
