"""Several views of every image, of several sizes, which may change: what is drawn, encoded, compared and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.data.loading import seeded_generator
from flatclr.data.sources import Dataset, ResidentImages
from flatclr.data.views import apply_views, draw_views, views_from
from flatclr.distributed import Ranks
from flatclr.models.network import Network
from flatclr.objectives import Objective
from flatclr.runs import RunDirectory
from flatclr.threads import threads
from flatclr.training import inputs
from flatclr.training.build import Parts, build, what_to_know
from flatclr.training.config import TrainConfig
from flatclr.training.inputs import ImageViews, name_of
from flatclr.training.trainer import train
from flatclr.training.view_groups import ViewGroup
from tests.support.training import assert_same, gradients, paired_npz
from tests.support.training_worker import SEVERAL_SIZES, config, network_of

SIZES: dict[str, Any] = {"view_sizes": [[2, 24], [3, 16]]}
BATCH_NORM: dict[str, Any] = {"encoder_options": {"norm": "batch", "width": 8}}


def built(out: Path, own: Objective | None = None, **settings: Any) -> Parts:
    """The parts of a run on random images: to unpack the embedded ones takes longer than a test."""
    images = torch.randint(256, (10_000, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Dataset("random", ResidentImages(images), None)
    return build(config(out, 10, **settings), data=data, objective=own)


def first_batch(parts: Parts) -> Tensor:
    _, (images,) = next(parts.loader.steps(0, 1))
    return images


def views_of(parts: Parts, step: int = 0) -> tuple[Tensor, ...]:
    images = first_batch(parts)
    return parts.train_step.inputs.draw((images,), step)(slice(0, len(images)))


def test_every_view_is_cut_from_the_image_at_its_own_size(tmp_path: Path) -> None:
    """Each by parameters of its own, straight from the stored image: not shrunk from a larger view."""
    parts = built(tmp_path, **SIZES)
    images, drawing = first_batch(parts), parts.train_step.inputs
    assert isinstance(drawing, ImageViews)
    views = views_of(parts, step=7)
    assert [view.shape[-1] for view in views] == [24, 24, 16, 16, 16]
    for number, view in enumerate(views):
        generator = seeded_generator(0, "view", name_of(number), 7)
        drawn = draw_views(drawing.views, 8, height=28, width=28, generator=generator)
        want = apply_views(images, drawn, drawing.views, size=view.shape[-1])
        torch.testing.assert_close(view, want, rtol=0, atol=0)


def test_one_thread_draws_views_so_that_busy_cores_do_not_hold_up_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(torch.get_num_threads())
        return views_from(*given, **named)

    monkeypatch.setattr(inputs, "views_from", watched)
    with threads(3):
        views_of(built(tmp_path, **SIZES))
        assert torch.get_num_threads() == 3
    assert seen == [1]


def test_the_first_two_views_are_those_of_a_run_with_two(tmp_path: Path) -> None:
    two, five = (views_of(built(tmp_path, views_per_image=count)) for count in (2, 5))
    assert (len(two), len(five)) == (2, 5)
    assert all(torch.equal(a, b) for a, b in zip(two, five, strict=False))
    assert len({view.sum().item() for view in five}) == 5


def test_ranks_draw_their_part_of_the_global_batch(tmp_path: Path) -> None:
    parts = built(tmp_path, **SIZES)
    images, drawing = first_batch(parts), parts.train_step.inputs
    assert isinstance(drawing, ImageViews)
    whole = drawing.draw((images,), 3)(slice(0, 8))
    for rank in (0, 1):
        own = slice(4 * rank, 4 * rank + 4)
        half = replace(drawing, ranks=Ranks(rank, 2)).draw((images[own],), 3)(slice(0, 4))
        assert all(torch.equal(part, view[own]) for part, view in zip(half, whole, strict=True))


@pytest.mark.parametrize("objective", ["flatnce", "infonce", "fmicl", "align_uniform"])
def test_the_gradient_is_that_of_the_objective_on_all_views(tmp_path: Path, objective: str) -> None:
    """Against a loop by hand: sizes encoded on their own, embeddings of all views compared at once."""
    parts = built(tmp_path, objective=objective, **BATCH_NORM, **SIZES)
    again = built(tmp_path, objective=objective, **BATCH_NORM, **SIZES)
    got = gradients(parts)
    network, views = again.train_step.bare_network, views_of(again)
    assert isinstance(network, Network)
    features = torch.cat([network.encoder(torch.cat(views[:2])), network.encoder(torch.cat(views[2:]))])
    again.train_step.objective(network.head(features).view(5, 8, -1)).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("settings", [{"views_per_image": 4}, SIZES], ids=str)
def test_micro_batches_give_the_gradient_of_the_whole_batch(
    tmp_path: Path, settings: dict[str, Any], micro_batch: int
) -> None:
    whole, cached = (gradients(built(tmp_path, micro_batch=m, **settings)) for m in (None, micro_batch))
    for name in whole:
        largest = whole[name].abs().max().item()
        torch.testing.assert_close(cached[name], whole[name], rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_running_statistics_are_those_of_the_first_size(tmp_path: Path, micro_batch: int | None) -> None:
    settings = {"head_layers": 1, **BATCH_NORM}
    several, alone = (
        built(tmp_path, micro_batch=micro_batch, **sizes, **settings) for sizes in (SIZES, {"view_sizes": [[2, 24]]})
    )
    for parts in (several, alone):
        parts.train_step((first_batch(parts),), 0)
    got, want = (parts.train_step.bare_network.encoders["encoder"].state_dict() for parts in (several, alone))
    running = [name for name in want if "running" in name or "tracked" in name]
    assert running
    for name in running:
        torch.testing.assert_close(got[name], want[name])
    assert {got[name].item() for name in running if "tracked" in name} == {1}


def test_a_network_compiled_for_several_sizes_gives_the_numbers_of_the_plain_one() -> None:
    def network() -> Network:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return Network(nn.Sequential(*layers), nn.Linear(4, 3))

    plain, traced = network(), network()
    compiled = torch.compile(traced, dynamic=False, backend="eager", fullgraph=True)
    for sizes in ((8, 8, 6), (8, 8, 6), (10, 6)):
        views = [torch.randn(5, 1, size, size) for size in sizes]
        want, got = plain(*views), compiled(*views)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(traced.state_dict(), plain.state_dict())


def test_views_of_other_sizes_follow_their_schedule(tmp_path: Path) -> None:
    parts = built(tmp_path, **SEVERAL_SIZES)
    seen = []
    for step in range(7):
        parts.schedule.apply(parts.train_step, step)
        seen.append([view.shape[-1] for view in views_of(parts, step)])
    assert seen == [[20, 20, 16]] * 4 + [[24, 12, 12, 12]] * 3


def test_a_resumed_run_ends_bit_for_bit_where_a_whole_one_does_across_a_change_of_size(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", 8, **SEVERAL_SIZES, **BATCH_NORM)).path
    run = train(config(tmp_path / "run", 8, **SEVERAL_SIZES, **BATCH_NORM)).path
    (run / "checkpoint" / "step-000000008.pt").unlink()  # on from step 4, the first of the new sizes
    train(TrainConfig(), resume=run)
    torch.testing.assert_close(network_of(run), network_of(whole), rtol=0, atol=0)


def test_metrics_count_views_and_the_negatives_of_all_of_them(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", 4, views_per_image=5, log_every=2, eval_every=2)).path
    rows = RunDirectory(run).metrics()
    for row in (row for row in rows if row["kind"] == "log"):
        assert row["views_per_second"] == pytest.approx(5 * row["images_per_second"])
        assert row["ceiling_nats"] == pytest.approx(np.log(5 * 7 + 1))
        assert 0 < row["alignment"] < 4
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [2, 4]


def test_learning_from_several_small_views(tmp_path: Path) -> None:
    """On the embedded images, against the untrained encoder; the margin is several standard errors."""
    settings = {"views_per_image": 4, "view_size": 16, "batch_size": 64, "learning_rate": 3e-3, "eval_samples": 2000}
    result = train(config(tmp_path / "run", 60, eval_start=True, **BATCH_NORM | settings))
    knn = [row["knn"] for row in RunDirectory(result.path).metrics() if "knn" in row]
    assert knn[-1] > knn[0] + 0.02


def test_recalibration_changes_what_is_saved_and_evaluated_but_not_what_is_trained(tmp_path: Path) -> None:
    settings = {**BATCH_NORM, "view_size": 16, "eval_every": 4}
    plain = train(config(tmp_path / "plain", 4, **settings))
    result = train(config(tmp_path / "run", 4, recalibrate=True, **settings))
    assert_same(network_of(result.path), network_of(plain.path))
    assert result.metrics["knn"] != plain.metrics["knn"]
    assert result.metrics["pool_mi_nats"] == plain.metrics["pool_mi_nats"]
    saved, trained = (flatclr.load_encoder(path).state_dict() for path in (result.path, plain.path))
    other = {name for name in saved if not torch.equal(saved[name], trained[name])}
    assert other == {name for name in saved if "running" in name}
    assert_same(flatclr.load_network(result.path).encoder.state_dict(), saved)
    assert_same(flatclr.load_network(plain.path).encoder.state_dict(), trained)
    again = train(TrainConfig(), resume=result.path)
    assert again.metrics["knn"] == result.metrics["knn"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views_per_image": 3, **SIZES}, r"views_per_image must be the 5 of view_sizes, got 3; leave it out"),
        ({"view_size": 16, **SIZES}, r"only one of view_size and view_sizes must be given, got both"),
        ({"view_size": 16, "size_schedule": [[0, 16]]}, r"only one of view_size and size_schedule must be given"),
        ({"view_sizes": [[1, 16]]}, r"view_sizes must have 2 views or more in all, got \[\[1, 16\]\]"),
        ({"view_sizes": [[2, 16], [1, 16]]}, r"view_sizes must name every size once"),
        ({"view_sizes": [[2, 0]]}, r"their size must be a whole number >= 1, got 0"),
        ({"view_sizes": [[0.5, 16]]}, r"the number of views must be a whole number >= 1, got 0.5"),
        ({"view_sizes": "2x24"}, r"view_sizes must be \[\[views, pixels\], ...\], got '2x24'"),
        ({"size_schedule": [[0, 16], [0, 24]]}, r"size_schedule must begin at epoch 0 and go on in order of time"),
        ({"size_schedule": [["now", 16]]}, r"an epoch must be a finite number, got 'now'"),
        (
            {"size_schedule": [[0, [[2, 20], [1, 16]]], [2, [[2, 24], [6, 16]]]], "views_per_image": 4},
            r"views_per_image must be a number of views that size_schedule has, 3 or 8, got 4; leave it out",
        ),
        ({"size_schedule": []}, r"size_schedule must be \[\[epoch, pixels\], ...\], got \[\]"),
        (
            {"momentum": 0.9, "pairing": "one_way", "views_per_image": 3},
            r"views_per_image must be 2 with a momentum encoder, got 3; one view is the query",
        ),
    ],
    ids=str,
)
def test_views_that_cannot_be_are_refused_with_the_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        TrainConfig(**settings)


def test_a_schedule_may_count_the_views_of_some_epochs_and_leave_others_to_the_setting() -> None:
    plan = TrainConfig(size_schedule=[[0, 16], [2, [[2, 20]]]], views_per_image=4).view_plan
    assert [sum(group.count for group in groups) for _, groups in plan] == [4, 2]


@pytest.mark.parametrize("settings", [{"view_size": 40}, {"view_sizes": [[2, 28], [2, 29]]}], ids=str)
def test_views_beyond_the_images_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    message = r"views must be at most as large as the images, 28 pixels, got (40|29); make view_size smaller"
    with pytest.raises(ValueError, match=message):
        built(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views_per_image": 3}, r"views_per_image must be 2 for paired data, got 3; it has two sides"),
        (SIZES, r"view_sizes must be None for paired data, got \[\[2, 24\], \[3, 16\]\]"),
        ({"size_schedule": [[0, 16]]}, r"size_schedule must be None for paired data"),
        ({"recalibrate": True}, r"recalibrate must be false for paired data, got true"),
    ],
    ids=str,
)
def test_paired_data_have_two_sides(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    data = str(paired_npz(tmp_path / "pairs.npz"))
    with pytest.raises(ValueError, match=message):
        build(config(tmp_path, 2, data=data, encoder="auto", encoder_options={}, **settings))


class OfTwo(flatclr.InfoNCE):
    def loss(self, pairs: Any, inverse_temperature: Any) -> Any:
        if len(pairs.views) != 2:
            raise ValueError(f"two views must be given, got {len(pairs.views)}; pass two.")
        return super().loss(pairs, inverse_temperature)


def test_an_objective_of_two_views_is_asked_before_any_work(tmp_path: Path) -> None:
    message = r"views_per_image must be a number that the objective flatnce takes, got 3 \(two views must be given"
    with pytest.raises(ValueError, match=message):
        built(tmp_path, OfTwo(gather=True), views_per_image=3, ess_target=None)
    built(tmp_path, OfTwo(gather=True), ess_target=None)


def test_what_an_objective_has_against_two_views_is_said_before_any_work(tmp_path: Path) -> None:
    class OfThree(flatclr.InfoNCE):
        def loss(self, pairs: Any, inverse_temperature: Any) -> Any:
            raise ValueError(f"three views must be given, got {len(pairs.views)}; pass three.")

    with pytest.raises(ValueError, match=r"^three views must be given, got 2; pass three\.$"):
        built(tmp_path, OfThree(gather=True), ess_target=None)


def test_a_target_is_compared_with_the_batch_where_embeddings_are_checked(tmp_path: Path) -> None:
    parts = built(tmp_path, objective_options={"check_embeddings": True}, ess_target=0.5)
    assert parts.train_step.negatives(2, 8, 16) == 14


def test_asking_the_objective_changes_nothing(tmp_path: Path) -> None:
    settings = {"negatives_per_anchor": 5, "views_per_image": 3}
    parts = built(tmp_path, **settings)
    state, random = parts.train_step.objective.state_dict(), torch.get_rng_state()
    before = {name: value.clone() for name, value in state.items()}
    parts.train_step.try_loss(5, 8, 16)
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(parts.train_step.objective.state_dict(), before, rtol=0, atol=0)
    assert parts.train_step.objective.training


def test_one_way_of_saying_how_large_views_are_replaces_another() -> None:
    several = TrainConfig(view_sizes=[[2, 24], [6, 16]])
    assert several.views_per_image == 8
    assert several.view_plan == ((0.0, (ViewGroup(2, 24), ViewGroup(6, 16))),)
    small = several.changed(view_size=16)
    assert small.view_plan == ((0.0, (ViewGroup(8, 16),)),)
    four = several.changed(views_per_image=4)
    assert four.view_plan == ((0.0, (ViewGroup(4, None),)),)
    growing = small.changed(size_schedule=[[0, 16], [80, 24]])
    assert growing.view_plan == ((0.0, (ViewGroup(8, 16),)), (80.0, (ViewGroup(8, 24),)))
    assert growing.changed(view_sizes=[[2, 20]]).views_per_image == 2
    assert TrainConfig.from_dict(several.to_dict()) == several


def test_a_change_of_size_that_never_comes_is_told(tmp_path: Path) -> None:
    late = build(config(tmp_path, 4, **SEVERAL_SIZES))
    assert [message for message in what_to_know(late) if "size_schedule" in message] == [
        "the run ends at epoch 0.0032, before the change of size_schedule at 0.0032."
    ]
    assert not list(what_to_know(build(config(tmp_path, 5, **SEVERAL_SIZES))))
