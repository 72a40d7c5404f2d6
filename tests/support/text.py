"""A book whose paragraphs have a topic each, and short runs on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import flatclr

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


def labelled(rows: int, words: slice, *, seed: int) -> tuple[list[str], list[str]]:
    """Sentences of some of the words of each topic in turn, and the topics."""
    rng, topics = random.Random(seed), [list(TOPICS)[i % len(TOPICS)] for i in range(rows)]
    return [f"The {' '.join(rng.sample(TOPICS[topic].split()[words], 3))}." for topic in topics], topics


def table(texts: list[str], labels: list[str]) -> str:
    """As a .csv file has them."""
    return "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True))


def text_run(folder: Path, *, paragraphs: int = 300, **settings: Any) -> flatclr.TrainConfig:
    """A small run on a book that is written into the folder."""
    (folder / "book.txt").write_text(book(paragraphs))
    return flatclr.TrainConfig(
        data=str(folder / "book.txt"),
        encoder_options={"width": 16, "hidden": 16, "buckets": 512},
        embedding=8,
        batch_size=16,
        steps=60,
        learning_rate=1e-2,
        warmup_epochs=0.1,
        eval_every=100,
        log_every=100,
        device="cpu",
        out=str(folder / "run"),
    ).changed(**settings)
