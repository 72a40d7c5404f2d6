"""A text file becomes pairs of adjacent sentences, and a bi-GRU learns which belong together."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import flatclr
from flatclr.data import PairedArrays, open_dataset, token_ids
from flatclr.models.encoders import build_encoder

TOPICS = {
    "sea": "ship sail wave harbour captain anchor storm deck",
    "kitchen": "bread oven flour butter spoon kettle stove recipe",
    "garden": "rose soil spade seed hedge blossom rake shade",
    "court": "judge law verdict witness oath jury trial appeal",
}


def book(paragraphs: int) -> str:
    """Two sentences a paragraph, each of three words of one topic."""
    rng = random.Random(0)
    made = []
    for _ in range(paragraphs):
        words = TOPICS[rng.choice(list(TOPICS))].split()
        made.append(" ".join(f"The {' '.join(rng.sample(words, 3))}." for _ in range(2)))
    return "\n\n".join(made)


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
    (tmp_path / "book.txt").write_text(book(300))
    config = flatclr.TrainConfig(
        data=str(tmp_path / "book.txt"),
        encoder_options={"width": 16, "hidden": 16, "buckets": 512},
        embedding=8,
        batch_size=16,
        steps=60,
        learning_rate=1e-2,
        warmup_epochs=0.1,
        eval_every=100,
        log_every=100,
        device="cpu",
        out=str(tmp_path / "run"),
    )
    heard: list[dict[str, float]] = []
    flatclr.train(config, on_event=[lambda e: heard.append(dict(e.metrics)) if e.kind == "evaluation" else None])  # type: ignore[attr-defined]
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


def test_sentences_and_numbers_have_encoders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(book(10))
    common = {"steps": 1, "batch_size": 4, "device": "cpu", "out": str(tmp_path / "run")}
    with pytest.raises(ValueError, match="encoder must be 'bigru' for sentences and no other data, got 'mlp'"):
        flatclr.train(flatclr.TrainConfig(data=str(tmp_path / "book.txt"), encoder="mlp", **common))
    with pytest.raises(ValueError, match=r"numbers of words must have shape \[N, 8\], got \[2, 5\]"):
        build_encoder("bigru", channels=8, image_size=1)(torch.zeros(2, 5))
