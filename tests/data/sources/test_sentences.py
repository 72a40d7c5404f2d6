"""Sentences one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatclr.data import Sentences, token_ids

TEXTS = ["The cat sat.", "A dog ran off.", "...", "Cats!"]


def test_batches_are_numbers_of_words_that_half_precision_does_not_round() -> None:
    found = Sentences(TEXTS).batch(torch.tensor([2, 1]))
    assert found.dtype == torch.int64
    assert torch.equal(found, token_ids(["...", TEXTS[1]]).long())
    assert not found[0].any()


def test_as_many_words_are_read_as_asked_for() -> None:
    source = Sentences(TEXTS, list("abab"), name="mine").reading(2)
    assert torch.equal(source.batch(torch.arange(4)), token_ids(TEXTS, length=2).long())
    assert (source.name, source.classes, source.channels) == ("mine", ("a", "b"), 2)


def test_a_part_keeps_labels_and_classes() -> None:
    part = Sentences(TEXTS, ["b", "a", "b", "c"], words=5).subset(torch.tensor([3, 0]), "part")
    assert (part.texts, part.classes, part.channels) == (("Cats!", "The cat sat."), ("a", "b", "c"), 5)
    assert part.labels is not None
    assert part.labels.tolist() == [2, 1]


def test_the_fingerprint_goes_by_texts_labels_classes_and_words() -> None:
    sources = [
        Sentences(TEXTS),
        Sentences(TEXTS[::-1]),
        Sentences(TEXTS, words=5),
        Sentences(TEXTS, list("abab")),
        Sentences(TEXTS, list("abaa")),
        Sentences(TEXTS, list("acac")),
    ]
    assert len({source.fingerprint() for source in sources}) == len(sources)
    assert sources[0].fingerprint() == Sentences(TEXTS, name="another").fingerprint()


def test_sentences_are_their_own_names_and_long_ones_are_cut() -> None:
    first, second = Sentences(["short", "x" * 600]).names
    assert first == "short"
    assert second == "x" * 499 + "\u2026"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("a text",), TypeError, r"sentences must be a list of texts, got 'a text'; pass \['a sentence'\]"),
        ((["a", 1],), TypeError, "sentences must be a list of texts"),
        (([],), ValueError, "sentences must hold sentences, got none"),
        ((["a", "b"], ["x"]), ValueError, "sentences must have a label each, got 1 for 2"),
        ((["a", "b"], [0, 2], ("x", "y")), ValueError, "labels must be class numbers from 0 to 1, got 0 to 2"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Sentences(*arguments)
