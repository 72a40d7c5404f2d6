"""Prefixes of an embedding, each under its own copy of any objective."""

import pickle

import pytest
import torch

import flatclr
from flatclr import Matryoshka
from flatclr.objectives import OBJECTIVES

DIMS = (2, 5, 8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_is_the_mean_over_prefixes_of_any_objective(name: str) -> None:
    kind = OBJECTIVES[name]
    views = torch.randn(2, 6, 8, requires_grad=True)
    index = {"index": torch.arange(6)} if kind.traits.keeps_samples else {}
    loss, stats = Matryoshka(kind(), DIMS).with_stats(*views, **index)
    alone = [kind()(*views[..., :m], **index) for m in DIMS]
    torch.testing.assert_close(loss, torch.stack(alone).mean())
    got, want = (torch.autograd.grad(x, views, retain_graph=True)[0] for x in (loss, sum(alone) / len(DIMS)))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(stats.ess, kind().with_stats(*views, **index)[1].ess)


def test_queues_labels_and_hard_negatives_are_cut_alike() -> None:
    views, queue, hard = torch.randn(3, 6, 8), torch.randn(4, 8), torch.randn(6, 2, 8)
    labels, queue_labels = torch.arange(6) % 3, torch.arange(4)
    said = {"labels": labels, "negative_labels": queue_labels}
    loss = Matryoshka(flatclr.InfoNCE(), DIMS)(views, negatives=queue, hard_negatives=hard, **said)
    alone = [
        flatclr.InfoNCE()(views[..., :m], negatives=queue[:, :m], hard_negatives=hard[..., :m], **said) for m in DIMS
    ]
    torch.testing.assert_close(loss, torch.stack(alone).mean())


def test_every_prefix_has_its_own_controller_and_scalars() -> None:
    objective = Matryoshka(flatclr.FlatNCE(flatclr.EssControl(0.3)), DIMS)
    assert len(objective.controls) == 3
    for _ in range(100):
        objective(*torch.randn(2, 32, 8))
    short, _, long = (float(control.inverse_temperature) for control in objective.controls)
    assert short < long  # two features spread scores more than eight
    assert float(objective.inverse_temperature) == long
    assert len(list(Matryoshka(flatclr.SigLIP(), DIMS).parameters())) == 6


def test_it_can_be_pickled_and_its_state_loaded() -> None:
    views, index = torch.randn(2, 6, 8), torch.arange(6)
    objective = Matryoshka(flatclr.SogCLR(), DIMS)
    assert objective.keeps_samples
    objective(*views, index=index)
    fresh = Matryoshka(flatclr.SogCLR(), DIMS)
    fresh.load_state_dict(objective.state_dict())
    again = pickle.loads(pickle.dumps(objective))
    losses = [o(*views.flip(1), index=index) for o in (objective, fresh, again)]
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((), r"dims must be whole numbers in rising order, got \(\)"),
        ((4, 2), r"got \[4, 2\]; say \[2, 4\]"),
        ((0, 2), "dims must be a whole number >= 1, got 0"),
        ((2, 16), "at least the 16 features of the longest prefix, got 8"),
    ],
)
def test_prefixes_that_cannot_be_are_refused(dims: tuple[int, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Matryoshka(flatclr.InfoNCE(), dims)(*torch.randn(2, 6, 8))


def test_only_an_objective_is_wrapped_and_only_once() -> None:
    for inner in (torch.nn.Linear(2, 2), Matryoshka(flatclr.InfoNCE(), (2,))):
        with pytest.raises(TypeError, match=r"objective must be a flatclr\.Objective of one embedding"):
            Matryoshka(inner, (2,))  # type: ignore[arg-type]


def test_an_objective_that_captures_itself_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective must not capture itself inside a Matryoshka, got InfoNCE"):
        flatclr.Matryoshka(flatclr.InfoNCE(graphed=True), (2, 4))
