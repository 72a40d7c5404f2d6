"""Data, views and progress from Python."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import flatclr
from flatclr.data import Dataset, ReadyViews, ResidentImages, dataset_from
from flatclr.data.sources.ready import ViewsBy, view_tensor
from flatclr.files import json_ready
from flatclr.models.network import TwoTowers
from flatclr.runs import RunDirectory
from flatclr.training import TrainConfig, Warned
from flatclr.training.events import Event
from flatclr.training.result import RunResult
from tests.support.images import color_png

IMAGES = torch.randint(0, 256, (48, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {
    **{"steps": 2, "batch_size": 8, "device": "cpu", "eval_start": False, "eval_samples": 16, "log_every": 1},
    **{"encoder": "cnn", "encoder_options": {"width": 4}, "workers": 1},
}


class Photos(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.fromarray(IMAGES[i].permute(1, 2, 0).numpy()), i % 2


class TwoViews(Photos):
    """Items are ready views with a label, as lightly's datasets give them."""

    def __getitem__(self, i: int) -> Any:
        image = IMAGES[i] / 255
        return [image + 0.1 * torch.randn(3, 12, 12), image + 0.1 * torch.randn(3, 12, 12)], i % 2


def run(tmp_path: Path, data: Any, told: list[Event] | None = None, **options: Any) -> RunResult:
    config = TrainConfig(out=str(tmp_path / "run"), **(QUICK | options.pop("settings", {})))
    listeners = [] if told is None else [told.append]
    return flatclr.train(config, data=data, progress=False, on_event=listeners, **options)


DATA: dict[str, Any] = {
    "array": IMAGES.numpy(),
    "images and labels": (IMAGES, torch.arange(48) % 2),
    "torch Dataset": Photos(),
    "list of PIL images": [Photos()[i][0] for i in range(48)],
    "Dataset": Dataset("mine", ResidentImages(IMAGES), None),
    "DataLoader": torch.utils.data.DataLoader(TwoViews(), batch_size=5),
    "Dataset of views": TwoViews(),
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_a_run_takes_data_in_the_forms_programs_have(data: Any, tmp_path: Path) -> None:
    result = run(tmp_path, data)

    assert result.steps == 2
    assert result.encoder(torch.rand(2, 3, 12, 12)).shape[0] == 2
    assert np.isfinite(result.history["loss"].dropna()).all()


def test_the_history_holds_numbers_where_some_were_not_finite(tmp_path: Path) -> None:
    result = run(tmp_path, IMAGES)
    for step, loss in ((3, math.nan), (4, math.inf), (5, -math.inf)):  # as the recorder writes them
        RunDirectory(result.path).append_metrics(json_ready({"step": step, "kind": "log", "loss": loss}))
    history = result.history
    assert history["loss"].dtype == np.float64
    assert history["loss"].tolist()[-3:] == pytest.approx([math.nan, math.inf, -math.inf], nan_ok=True)
    assert history["kind"].iloc[-1] == "log"
    assert result.plot().axes


def test_arrays_that_must_not_be_written_to_are_taken_without_a_warning() -> None:
    array = np.asarray(Photos()[0][0])  # as PIL gives it
    assert not array.flags.writeable
    torch.testing.assert_close(view_tensor(array), IMAGES[0] / 255)
    torch.testing.assert_close(dataset_from([array] * 2).train.batch(torch.tensor([0]))[0], IMAGES[0])


def test_a_path_is_written_down_as_one(tmp_path: Path) -> None:
    for i in range(20):
        color_png(tmp_path / "photos" / f"{i}.png")
    result = run(tmp_path, tmp_path / "photos")
    assert flatclr.training.trainer.RunDirectory(result.path).config()["data"] == str(tmp_path / "photos")


def test_paired_tables_train_a_network_for_each_side(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(48, 4))
    assert isinstance(run(tmp_path, (rows, rows[:, :2]), settings={"encoder": "auto"}).encoder, TwoTowers)


def brighter(image: Any) -> Tensor:
    """A plain function of what the dataset's items are."""
    array = torch.from_numpy(np.array(image)).permute(2, 0, 1) if isinstance(image, Image.Image) else image
    return array.float() / 255 * (0.5 + random.random())


def three(image: Any) -> list[Tensor]:
    return [brighter(image) for _ in range(3)]


@pytest.mark.parametrize(("data", "views"), [(Photos(), brighter), (IMAGES, brighter), (IMAGES, three)])
def test_any_function_makes_the_views_in_workers_and_the_cost_is_said(data: Any, views: Any, tmp_path: Path) -> None:
    told: list[Event] = []
    result = run(tmp_path, data, told, views=views)

    assert result.steps == 2
    said = [event.message for event in told if isinstance(event, Warned)]
    assert any(line.startswith("your views are made on the CPU by 1 worker processes, about ") for line in said)
    assert "effective_rank" in result.metrics


class SayingTheirClass(TwoViews):
    """Views that are all of one of two colours, which is their label."""

    def __getitem__(self, i: int) -> Any:
        shade = torch.full((3, 12, 12), float(i % 2))
        return shade + 0.1 * torch.randn(3, 12, 12), shade + 0.1 * torch.randn(3, 12, 12), i % 2


@pytest.mark.parametrize(
    "data", [SayingTheirClass(), torch.utils.data.DataLoader(SayingTheirClass(), batch_size=5)], ids=["items", "loader"]
)
def test_ready_views_with_labels_are_evaluated_by_neighbours(data: Any, tmp_path: Path) -> None:
    assert run(tmp_path, data).metrics["knn"] > 0.8


def test_a_function_of_labelled_images_keeps_the_labels_for_evaluation(tmp_path: Path) -> None:
    assert 0 <= run(tmp_path, (IMAGES, torch.arange(48) % 2), views=brighter).metrics["knn"] <= 1
    assert "knn" not in run(tmp_path / "without", IMAGES, views=brighter).metrics


def test_views_of_a_step_are_the_same_in_every_process_and_leave_random_states_alone() -> None:
    views = ReadyViews(ViewsBy(lambda i: IMAGES[i], brighter, 2), 48)
    index = [torch.arange(4), torch.arange(4, 8), torch.arange(4)]
    before = torch.get_rng_state(), random.getstate()
    here, there = list(views.stream(index)), list(views.stream(index, workers=2))

    for a, b in zip(here, there, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert torch.equal(here[0][0], here[2][0])
    assert not torch.equal(here[0][0], here[0][1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("family", ["albumentations", "kornia"])
def test_transforms_of_other_libraries_are_called_their_way(family: str) -> None:
    class Transform:
        def __call__(self, *images: Any, image: Any = None) -> Any:
            if family == "albumentations":
                assert image.shape == (12, 12, 3)
                return {"image": image[:, ::-1]}
            assert images[0].shape == (1, 3, 12, 12)
            assert images[0].max() <= 1
            return images[0].flip(3)

    Transform.__module__ = ModuleType(family).__name__
    view, _ = ViewsBy(lambda i: IMAGES[i], Transform(), 2)(0)
    torch.testing.assert_close(view, IMAGES[0].flip(2) / 255)


def test_a_container_of_kornia_s_modules_is_kornia_s() -> None:
    class Flip(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            assert images.shape == (1, 3, 12, 12)
            return images.flip(3)

    Flip.__module__ = "kornia.augmentation"
    view, _ = ViewsBy(lambda i: IMAGES[i], nn.Sequential(Flip()), 2)(0)
    torch.testing.assert_close(view, IMAGES[0].flip(2) / 255)


def test_a_run_on_views_of_ones_own_resumes_to_the_same_weights(tmp_path: Path) -> None:
    config = TrainConfig(**(QUICK | {"steps": 6, "checkpoint_every": 2}))
    whole = flatclr.train(config.changed(out=str(tmp_path / "whole")), data=IMAGES, views=brighter, progress=False)
    part = flatclr.train(config.changed(out=str(tmp_path / "part")), data=IMAGES, views=brighter, progress=False)
    (part.path / "checkpoint" / "step-000000006.pt").unlink()
    again = flatclr.train(TrainConfig(), resume=part.path, data=IMAGES, views=brighter, progress=False)

    states = [result.encoder.state_dict() for result in (whole, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_bad_data_and_views_are_named(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([1])

    for data, options, message in (
        (torch.utils.data.DataLoader(Stream()), {}, "a DataLoader must have a map-style dataset, got Stream"),
        (torch.utils.data.DataLoader(Photos(), collate_fn=list), {}, r"batches of 2 or more views .*, got "),
        (DATA["DataLoader"], {"views": brighter}, "views must be left to the DataLoader"),
        (IMAGES, {"views": 3}, "views must be a function from an image to a view, got int"),
        (3.5, {}, r"data must be a path or name, .*, got float"),
        (TwoViews(), {"settings": {"view_size": 8}}, "view_size must be None for your own views, got 8"),
        (IMAGES, {"views": lambda image: "text"}, r"a view must be a tensor \[C, H, W\], .*, got str"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            run(tmp_path, data, **options)
    assert not (tmp_path / "run").exists()


def test_a_result_is_shown_as_tables_and_pictures(tmp_path: Path) -> None:
    result = run(tmp_path, IMAGES)
    assert list(result.history["kind"].unique()) == ["log", "evaluation"]
    assert isinstance(result.to_frame(), pd.DataFrame)
    assert "effective_rank" in result._repr_html_()
    assert len(result.plot().axes) >= 4
    found = flatclr.evaluate(
        result.encoder, Dataset("mine", ResidentImages(IMAGES), None), "geometry", random_row=False
    )
    assert list(found.to_frame().columns) == [
        "protocol",
        "variant",
        "data",
        "layer",
        "weights",
        "score",
        "value",
        "low",
        "high",
    ]
    assert "effective_rank" in found._repr_html_()
    x = np.random.default_rng(0).normal(size=(200, 1))
    mi = flatclr.mi.estimate(x, x + 1, "gaussian")
    assert mi.to_frame()["method"][0] == "gaussian"
    assert "I(x; y)" in mi._repr_html_()


def test_progress_is_shown_on_standard_error_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(**QUICK)
    flatclr.train(config.changed(out=str(tmp_path / "a")), data=IMAGES)
    shown = capsys.readouterr()
    flatclr.train(config.changed(out=str(tmp_path / "b")), data=IMAGES, progress=False)

    assert shown.out == ""
    assert "44 images at 12 px, 4 more held out, cnn" in shown.err
    assert "training 2/2: loss" in shown.err
    assert capsys.readouterr().err == ""
