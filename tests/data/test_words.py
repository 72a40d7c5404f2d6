"""Words as numbers."""

from __future__ import annotations

from flatclr.data import token_ids
from flatclr.data.words import are_texts


def test_numbers_of_words_never_change() -> None:
    """Encoders that were saved know words by them."""
    found = token_ids(["It's the Ship; \u00e9t\u00e9, 1999!"])
    assert found.shape == (1, 32)
    assert found[0, :6].tolist() == [4318, 4129, 7402, 4977, 6847, 0]


def test_a_list_of_texts_is_told_from_a_text() -> None:
    assert are_texts(["a"])
    assert are_texts(())
    assert not any(map(are_texts, ("a", ["a", 1], None, {"a": 1})))
