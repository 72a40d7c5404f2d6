"""An encoder of sentences is embedded and evaluated with, as one of images is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flatclr
from flatclr.data import Dataset, Sentences, token_ids
from flatclr.evaluation import read_results
from flatclr.models import build_encoder, save_encoder
from tests.support.evaluation import small_data, small_encoder
from tests.support.text import TOPICS, labelled, table, text_run

SEEN, UNSEEN = slice(4), slice(4, 8)  # words of each topic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flatclr.train(text_run(tmp_path_factory.mktemp("text"), steps=120), progress=False).path


def small_text_encoder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"channels": 32, "image_size": 1, "width": 4, "hidden": 3} | options
    return build_encoder("bigru", **settings)


def test_training_tells_topics_by_words_that_no_label_was_seen_with(run: Path) -> None:
    parts = (Sentences(*labelled(n, words, seed=n)) for n, words in ((80, SEEN), (200, UNSEEN)))
    found = flatclr.evaluate(run, Dataset("topics", *parts), ["knn", "linear"], device="cpu")
    for protocol in ("knn", "linear"):
        row = found[protocol]
        random = found.random_beside(row)
        assert random is not None
        assert row.best.low > 0.7
        assert random.best.high < 0.4
        assert row.best.low <= row.best.value <= row.best.high


def test_without_sentences_a_run_is_measured_on_its_pairs_and_both_results_stand_together(
    run: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"protocol": "auto", "device": "cpu", "random_row": False, "out": tmp_path}
    pairs = flatclr.evaluate(run, **settings)
    sentences = flatclr.evaluate(run, labelled(200, SEEN, seed=0), **settings)
    assert [row.protocol for row in pairs.rows] == ["retrieval", "retrieval", "mi"]
    assert [row.protocol for row in sentences.rows] == ["knn", "linear", "retrieval"]
    together = read_results(tmp_path)
    assert together is not None
    assert together.rows == (*pairs.rows, *sentences.rows)
    assert not list(tmp_path.glob("results-*.json"))


def test_a_run_gives_the_features_of_both_encoders_beside_each_other(run: Path) -> None:
    texts = ["The ship sail wave.", "Zyxw, qqq!", "..."]
    found = flatclr.embed(run, texts, device="cpu")
    sides = [flatclr.load_encoder(run / side) for side in ("encoder_x", "encoder_y")]
    with torch.no_grad():
        wanted = torch.cat([side(token_ids(texts)) for side in sides], 1)
    np.testing.assert_allclose(found.features, wanted.numpy(), atol=1e-6)
    assert found.names == tuple(texts)
    np.testing.assert_allclose(
        flatclr.embed(run / "encoder_y", texts, device="cpu").features, wanted[:, 32:].numpy(), atol=1e-6
    )
    np.testing.assert_allclose(
        flatclr.embed(run, texts, layer="encoder_x", device="cpu").features, wanted[:, :32].numpy(), atol=1e-6
    )


def test_a_run_embeds_its_own_text_or_a_table_in_their_order(run: Path, tmp_path: Path) -> None:
    own = flatclr.embed(run, device="cpu")
    assert (len(own), own.labels, own.kind) == (600, None, "sentences")
    assert "\n\n".join(f"{a} {b}" for a, b in zip(own.names[::2], own.names[1::2], strict=True)) == (
        (run.parent / "book.txt").read_text()
    )
    texts, labels = labelled(5, SEEN, seed=0)
    (tmp_path / "few.csv").write_text(table(texts, labels))
    few = flatclr.embed(run, tmp_path / "few.csv", device="cpu")
    assert (few.names, few.labels) == (tuple(texts), tuple(labels))
    np.testing.assert_array_equal(few.features, flatclr.embed(run, (texts, labels), device="cpu").features)
    with pytest.raises(ValueError, match=r"a picture must be of images, got sentences \(few\)"):
        few.picture(0)


def test_a_run_without_its_checkpoints_or_without_its_end_is_embedded_with_too(run: Path, tmp_path: Path) -> None:
    wanted = flatclr.embed(run, ["The ship."], device="cpu").features
    for number, lost in enumerate((["checkpoint"], ["encoder_x", "encoder_y"])):
        copy = shutil.copytree(run, tmp_path / str(number))
        for folder in lost:
            shutil.rmtree(copy / folder)
        np.testing.assert_array_equal(flatclr.embed(copy, ["The ship."], device="cpu").features, wanted)


def test_an_encoder_that_both_sides_share_is_taken_once(tmp_path: Path) -> None:
    shared = flatclr.train(text_run(tmp_path, paragraphs=60, steps=2, towers="shared"), progress=False).path
    assert flatclr.embed(shared, ["The ship."], device="cpu").features.shape == (1, 32)
    assert flatclr.embed(flatclr.load_network(shared), ["The ship."], device="cpu").features.shape == (1, 32)


def test_a_saved_encoder_reads_as_many_words_as_it_was_built_for(tmp_path: Path) -> None:
    save_encoder(tmp_path, small_text_encoder(channels=2), description={})
    features = flatclr.embed(tmp_path, ["one two three", "one two four", "one three"], device="cpu").features
    np.testing.assert_array_equal(features[0], features[1])
    assert not np.array_equal(features[0], features[2])
    parts = (Sentences(*labelled(24, SEEN, seed=seed)) for seed in (0, 1))
    assert flatclr.evaluate(tmp_path, Dataset("topics", *parts), device="cpu")["knn"].scores


def test_half_precision_does_not_round_the_numbers_of_words() -> None:
    encoder = small_text_encoder()
    wanted = flatclr.embed(encoder, ["The ship sail wave."], device="cpu").features
    found = flatclr.embed(encoder.bfloat16(), ["The ship sail wave."], device="cpu").features
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_any_module_or_callable_of_numbers_of_words_is_evaluated() -> None:
    def bag_of_words(words: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(words), 256).scatter_(1, words % 256, 1.0)

    texts, labels = labelled(120, slice(8), seed=0)
    found = flatclr.evaluate(bag_of_words, (texts, labels), ["linear", "retrieval"], device="cpu")
    assert found["linear"].best.value > 0.8
    assert found["linear"].data == "data"
    assert set(found["linear"].per_class) == set(TOPICS)


def test_protocols_of_images_are_left_out_with_the_reason() -> None:
    parts = (Sentences(*labelled(40, SEEN, seed=seed)) for seed in (0, 1))
    found = flatclr.evaluate(small_text_encoder(), Dataset("topics", *parts), "auto", device="cpu", random_row=False)
    assert [row.protocol for row in found.rows] == ["knn", "linear", "retrieval"]
    assert [name for name, _ in found.skipped] == ["finetune", "semi", "geometry", "mi"]
    reason = "must be for images, got sentences (topics); sentences have knn, linear, retrieval."
    assert all(said == f"protocol {name} {reason}" for name, said in found.skipped)


def of_text(**changes: Any) -> dict[str, Any]:
    return {"run_or_encoder": small_text_encoder(), "data": labelled(40, SEEN, seed=0)} | changes


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "images": (of_text(data=small_data()), r"the data must be sentences, got images \(pictures\); pass a \.csv"),
    "sentences": (of_text(run_or_encoder=small_encoder()), r"the data must be images, got sentences \(data\)"),
    "protocol": (of_text(protocol="finetune"), "finetune must be for images, got sentences"),
    "transfer": (of_text(protocol="transfer"), "transfer must be for images, got sentences"),
    "no labels": (
        of_text(data=Dataset("bare", Sentences(["a", "b"]), Sentences(["c"]))),
        "knn must have labelled training and test sentences, got no labels in bare; label them",
    ),
    "unknown class": (
        of_text(data=Dataset("new", Sentences(["a", "b"], ["x", "y"]), Sentences(["c"], ["z"]))),
        "every class of the test sentences must be in the training sentences, got 'z'",
    ),
    "one class": (
        of_text(data=Dataset("same", Sentences(["a", "b"], ["x", "x"]), Sentences(["c"], ["x"]))),
        "training sentences must be of at least 2 classes, got 1",
    ),
    "layer": (of_text(layer="onward"), "layer 'onward' must give a tensor"),
    "callable": (
        of_text(run_or_encoder=nn.Linear(3, 2)),
        r"the encoder must take numbers of words \[32\] of data/train, got",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_with_sentences_is_one_clear_line(case: str) -> None:
    changes, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        flatclr.evaluate(**changes, device="cpu")
    assert "\n" not in str(caught.value)


def test_encoders_of_sentences_are_neither_fine_tuned_nor_a_start_for_images(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an encoder must take images here, got run, which reads sentences"):
        flatclr.evaluation.finetune(run, labelled(40, SEEN, seed=0))
    with pytest.raises(ValueError, match="an encoder must take images here, got BiGRU, which reads sentences"):
        flatclr.evaluation.finetune(small_text_encoder(), labelled(40, SEEN, seed=0))
    with pytest.raises(ValueError, match="encoder_x, which reads sentences"):
        flatclr.train(flatclr.TrainConfig(init=str(run / "encoder_x"), out=str(tmp_path / "new")))


def test_runs_on_other_pairs_are_refused_as_before(tmp_path: Path) -> None:
    config = flatclr.TrainConfig(steps=1, batch_size=8, device="cpu", encoder_options={"width": 4}, out=str(tmp_path))
    pairs = np.random.default_rng(0).normal(size=(2, 60, 3)).astype(np.float32)
    path = flatclr.train(config, data=tuple(pairs), progress=False).path
    with pytest.raises(ValueError, match="must hold one encoder, got a run on pairs with one for each side; pass"):
        flatclr.embed(path, ["a sentence"])
    with pytest.raises(ValueError, match=r"an encoder must take images, got .* for rows of 3 numbers"):
        flatclr.embed(path / "encoder_x", ["a sentence"])
    shutil.rmtree(path / "encoder_x")
    with pytest.raises(FileNotFoundError, match="must hold a finished run"):
        flatclr.embed(path, ["a sentence"])
