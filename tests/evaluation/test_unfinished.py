"""Runs that are not at their end, and runs on pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import flatclr
from flatclr.cli.main import app
from flatclr.evaluation.request import EvaluationRequest
from flatclr.models.network import TwoTowers
from flatclr.models.trained import load_checkpointed_encoder
from flatclr.training import StopRequest, TrainConfig, TrainingInterruptedError, train
from flatclr.training.events import Event, Saved
from tests.support.training import paired_npz

QUICK: dict[str, Any] = {
    "batch_size": 16,
    "device": "cpu",
    "eval_start": False,
    "eval_samples": 50,
    "checkpoint_every": 2,
}


def stopped(config: TrainConfig, after: int) -> Path:
    """A run that was stopped with the checkpoint of a step."""
    request = StopRequest()

    def listen(event: Event) -> None:
        if isinstance(event, Saved) and event.step >= after:
            request.ask("enough")

    with pytest.raises(TrainingInterruptedError):
        train(config, on_event=[listen], stop=request)
    assert config.out is not None
    return Path(config.out)


@pytest.fixture
def images(tmp_path: Path) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(120) % 3)
    return str(tmp_path / "images.npz")


def test_a_stopped_run_is_evaluated_and_embedded_from_its_newest_checkpoint(images: str, tmp_path: Path) -> None:
    config = TrainConfig(steps=6, data=images, encoder_options={"width": 4}, out=str(tmp_path / "run"), **QUICK)
    run = stopped(config, after=4)
    encoder = load_checkpointed_encoder(run)
    found = flatclr.evaluate(run, protocol="knn", random_row=False, device="cpu")

    assert found.encoder == "run at step 4"
    assert found["knn"].best == flatclr.evaluate(encoder, images, "knn", random_row=False, device="cpu")["knn"].best
    images = torch.rand(3, 1, 12, 12)
    assert flatclr.embed(run, images).features.shape == (3, encoder.features)
    assert flatclr.load_network(run).encoder.state_dict().keys() == encoder.state_dict().keys()  # type: ignore[union-attr]

    done = train(TrainConfig(), resume=run)
    finished = flatclr.evaluate(done.path, protocol="knn", random_row=False, device="cpu")
    assert finished.encoder == "run"
    assert finished.encoder_sha256 != found.encoder_sha256


def test_a_run_that_was_made_longer_is_evaluated_where_it_is(images: str, tmp_path: Path) -> None:
    config = TrainConfig(steps=2, data=images, encoder_options={"width": 4}, out=str(tmp_path / "run"), **QUICK)
    done = train(config)
    request = StopRequest()
    with pytest.raises(TrainingInterruptedError):
        train(
            TrainConfig(),
            resume=done.path,
            extend_epochs=1,
            on_event=[lambda event: request.ask("enough") if event.step >= 4 else None],
            stop=request,
        )
    assert flatclr.evaluate(done.path, protocol="knn", random_row=False).encoder.startswith("run at step ")


def test_auto_runs_what_the_data_allows_and_goes_nowhere_else_unasked() -> None:
    assert "transfer" not in EvaluationRequest("x", protocol="auto").protocols
    assert "transfer" in EvaluationRequest("x", protocol="auto", transfer_data="digits").protocols
    assert "transfer" in EvaluationRequest("x", protocol="all").protocols
    images = torch.rand(100, 1, 8, 8)
    found = flatclr.evaluate(torch.nn.Flatten(), flatclr.data.dataset_from(images), "auto", random_row=False)
    assert {row.protocol for row in found.rows} == {"geometry", "mi"}
    assert {name for name, _ in found.skipped} == {"knn", "linear", "finetune", "semi", "retrieval"}


def test_progress_names_the_protocol_and_counts_all_draws() -> None:
    from tests.support.evaluation import small_data, small_encoder

    told: list[tuple[str, int, int]] = []
    flatclr.evaluate(
        small_encoder(), small_data(), "semi", random_row=False, draws=2, progress=lambda *sign: told.append(sign)
    )
    ten = [(done, total) for what, done, total in told if what == "semi, trained weights: 10% of the labels"]
    assert ten[-1][0] == ten[-1][1]
    assert [done for done, _ in ten] == sorted(done for done, _ in ten)
    assert len({total for _, total in ten}) == 1


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paired")
    data = str(paired_npz(folder / "pairs.npz"))
    config = TrainConfig(data=data, epochs=20, out=str(folder / "run"), encoder_options={"width": 32}, **QUICK)
    return train(config).path


def test_a_run_on_pairs_is_evaluated_by_retrieval_and_information(paired: Path, tmp_path: Path) -> None:
    found = flatclr.evaluate(paired, protocol="auto", device="cpu", out=tmp_path)
    rows = {(row.protocol, row.variant, row.weights): row for row in found.rows}

    assert set(rows) == {
        (protocol, variant, weights)
        for protocol, variant in (("retrieval", "x to y"), ("retrieval", "y to x"), ("mi", ""))
        for weights in ("trained", "random")
    }
    trained, random = (rows["retrieval", "x to y", weights].scores["recall_at_1"] for weights in ("trained", "random"))
    assert trained.low > random.high
    assert trained.low <= trained.value <= trained.high
    assert (tmp_path / "results.json").is_file()

    network = flatclr.load_network(paired)
    assert isinstance(network, TwoTowers)
    with np.load(paired.parent / "pairs.npz") as arrays:
        pairs = (arrays["x"], arrays["y"])
    again = flatclr.evaluate(network, pairs, "retrieval", random_row=False)
    assert again["retrieval"].scores["recall_at_1"].value > random.high


def test_recall_is_that_of_a_loop_over_the_held_out_pairs(paired: Path) -> None:
    network = flatclr.load_network(paired)
    held_out = flatclr.data.open_dataset(paired.parent / "pairs.npz").test
    with torch.no_grad():
        z_x, z_y = network(held_out.x, held_out.y.flatten(1))  # type: ignore[union-attr]
    hits = 0
    for i in range(len(z_x)):
        cosines = [torch.cosine_similarity(z_x[i].double(), z_y[j].double(), dim=0).item() for j in range(len(z_y))]
        hits += int(np.argmax(cosines) == i)
    found = flatclr.evaluate(paired, protocol="retrieval", random_row=False, device="cpu")
    assert found["retrieval"].scores["recall_at_1"].value == pytest.approx(hits / len(z_x))


def test_a_stopped_run_on_pairs_is_evaluated_too(tmp_path: Path) -> None:
    data = str(paired_npz(tmp_path / "pairs.npz"))
    run = stopped(TrainConfig(data=data, steps=8, out=str(tmp_path / "run"), **QUICK), after=4)
    lines = (
        CliRunner()
        .invoke(app, ["eval", str(run), "--json", "--device", "cpu", "--no-random-row"], catch_exceptions=False)
        .stdout.splitlines()
    )
    assert [json.loads(line).get("protocol") for line in lines] == ["retrieval", "retrieval", "mi", None]


def test_protocols_of_images_are_refused_for_pairs(paired: Path) -> None:
    with pytest.raises(ValueError, match="protocol knn must be for images, got paired data; it has retrieval and mi"):
        flatclr.evaluate(paired, protocol="knn")
    with pytest.raises(ValueError, match="the data must be pairs, got images"):
        flatclr.evaluate(paired, "fashion-mnist-small", "mi")
