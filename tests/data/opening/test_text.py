"""A text file becomes pairs of adjacent sentences, and a bi-GRU learns which belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import flatclr
from flatclr.data import Dataset, PairedArrays, Sentences, open_dataset, token_ids
from flatclr.data.opening import in_single_sentences
from flatclr.models.encoders import build_encoder
from tests.support.text import book, text_run


def test_sentences_stand_beside_the_next_of_their_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("A one. A two! A\nthree?\n\nB one. B two.\n\nalone")
    data = open_dataset(path, test_fraction=0)
    assert isinstance(data.train, PairedArrays)
    assert data.train.tokens
    expected = [("a one", "a two"), ("a two", "a three"), ("b one", "b two")]
    assert torch.equal(data.train.x, token_ids([a for a, _ in expected]))
    assert torch.equal(data.train.y, token_ids([b for _, b in expected]))
    assert data.test is None


def test_the_end_of_a_text_is_held_out_and_no_sentence_is_in_both_parts(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(f"First {n}. Second {n}." for n in range(20)))
    data = open_dataset(path, test_fraction=0.2)
    assert isinstance(data.train, PairedArrays)
    assert isinstance(data.test, PairedArrays)
    assert (len(data.train), len(data.test)) == (16, 4)
    assert torch.equal(data.test.x, token_ids([f"First {n}" for n in range(16, 20)]))


def test_padding_does_not_change_what_a_sentence_means() -> None:
    torch.manual_seed(0)
    encoder = build_encoder("bigru", channels=8, image_size=1, width=4, hidden=3, buckets=50)
    longer = build_encoder("bigru", channels=12, image_size=1, width=4, hidden=3, buckets=50)
    longer.load_state_dict(encoder.state_dict())
    text = ["one two three", "four", "", "a b c d e f g h"]
    short, padded = (token_ids(text, length=length, buckets=50) for length in (8, 12))
    torch.testing.assert_close(encoder(short), longer(padded))
    _, last = encoder.onward(encoder.words(short[:1, :3].long()))
    torch.testing.assert_close(encoder(short)[0, :3], last[0, 0])
    _, last = encoder.back(encoder.words(short[:1, :3].long().flip(1)))
    torch.testing.assert_close(encoder(short)[0, 3:], last[0, 0])


def test_a_bi_gru_learns_which_sentences_belong_together(tmp_path: Path) -> None:
    heard: list[dict[str, float]] = []
    flatclr.train(
        text_run(tmp_path), on_event=[lambda e: heard.append(dict(e.metrics)) if e.kind == "evaluation" else None]
    )  # type: ignore[attr-defined]
    assert heard[-1]["pool_mi_best_nats"] > heard[0]["pool_mi_best_nats"] + 0.4  # topics carry ln 4 = 1.39
    encoder = flatclr.load_encoder(tmp_path / "run" / "encoder_x")
    assert encoder(token_ids(["The ship sail wave."])).shape == (1, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"One sentence alone.", "must have at least 2 pairs of adjacent sentences to train on, got 0"),
        (b"\xff\xfe\x00", "must be UTF-8 text, got byte 0 that is not"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_dataset(tmp_path / "bad.txt")


def test_lines_of_a_table_are_sentences_with_labels(tmp_path: Path) -> None:
    table = '\ufeffid,Label, text\r\n1,good,"One, two.\r\nThree ""four""."\r\n\r\n2,bad,\u2028!\r\n3,good,five\r\n'
    (tmp_path / "mine.csv").write_bytes(table.encode())
    data = open_dataset(tmp_path / "mine.csv", test_fraction=0)
    assert isinstance(data.train, Sentences)
    assert data.train.texts == ('One, two.\nThree "four".', "\u2028!", "five")
    assert data.train.classes == ("bad", "good")
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [1, 0, 1]
    assert (data.name, data.test) == ("mine", None)
    split = open_dataset(tmp_path / "mine.csv", test_fraction=0.4)
    assert split.test is not None
    assert (len(split.train), len(split.test)) == (2, 1)


def test_two_tables_are_the_training_and_the_test_part(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\n")
    (tmp_path / "test.csv").write_text("text,label\nthree,b\n")
    data = open_dataset(f"{tmp_path / 'train.csv'},{tmp_path / 'test.csv'}")
    assert isinstance(data.train, Sentences)
    assert isinstance(data.test, Sentences)
    assert (data.train.texts, data.test.texts, data.test.classes) == (("one", "two"), ("three",), ("b",))


def test_a_text_has_every_sentence_with_a_word_once(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A one. A two! ... A\nthree?\n\nB one.\n\n***\n\nalone")
    data = in_single_sentences(str(tmp_path / "book.txt"))
    assert isinstance(data, Dataset)
    assert isinstance(data.train, Sentences)
    assert data.train.texts == ("A one.", "A two!", "A three?", "B one.", "alone")
    assert in_single_sentences("images/") == "images/"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must begin with a line that names its columns, text and label, got \[\]; add it"),
        (b"one,two\nx,y\n", r"got \['one', 'two'\]; add it"),
        (b"text,label\n\n", "must hold sentences, got none below its first line"),
        (b"text,label\n\none, two,x\n", "must have 2 cells in every line, got 3 in line 3; put texts with commas in"),
        (b"text,label\none,x\ntwo, \n", "must have a label in every line, got none in line 3"),
        (b'text,label\n"one,x\n', "must be a table, got unexpected end of data in line 2"),
        (b"text,label\n\xff,x\n", "must be UTF-8 text, got byte 11 that is not"),
        (b"text,label\none,x\n", "must have at least 2 training sentences, got 1"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset(tmp_path / "bad.csv")
    assert "\n" not in str(caught.value)


def test_single_sentences_are_nothing_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\none,a\ntwo,b\n")
    with pytest.raises(ValueError, match=r"images or pairs to train on, got single sentences \(mine\); pass a \.txt"):
        flatclr.train(flatclr.TrainConfig(data=str(tmp_path / "mine.csv"), out=str(tmp_path / "run")))


def test_sentences_and_numbers_have_encoders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(book(10))
    common = {"steps": 1, "batch_size": 4, "device": "cpu", "out": str(tmp_path / "run")}
    with pytest.raises(ValueError, match="encoder must be 'bigru' for sentences and no other data, got 'mlp'"):
        flatclr.train(flatclr.TrainConfig(data=str(tmp_path / "book.txt"), encoder="mlp", **common))
    with pytest.raises(ValueError, match=r"numbers of words must have shape \[N, 8\], got \[2, 5\]"):
        build_encoder("bigru", channels=8, image_size=1)(torch.zeros(2, 5))
