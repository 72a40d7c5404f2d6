"""The grid holds the loss against the same loss in plain PyTorch, and names every cell above its limit."""

import pytest
import torch
from torch import Tensor

import flatclr
from benchmarks import loss_grid

CPU = torch.device("cpu")


@pytest.mark.parametrize("pairing", ["two_view", "cross"])
def test_the_plain_losses_have_the_gradient_of_ours(pairing: str) -> None:
    views = loss_grid.embeddings(12, 5, pairing, torch.float32, CPU)
    for name, losses in loss_grid.ways(pairing, CPU, ["eager"]).items():
        for _ in range(3):  # steps of the controller
            mine, theirs = (torch.autograd.grad(losses[way](*views), views) for way in ("eager", "plain"))
            for got, want in zip(mine, theirs, strict=True):
                torch.testing.assert_close(got, want, msg=name)
            for control in getattr(losses["eager"], "controls", []):
                control.advance()  # as a step of an optimizer would
    plain, ours = losses["plain"], losses["eager"]
    assert isinstance(plain, loss_grid.PlainFlatNCE)
    assert isinstance(ours, flatclr.Objective)
    assert plain.beta.item() == pytest.approx(float(ours.inverse_temperature))
    assert plain.beta != 1 / loss_grid.TEMPERATURE


def test_rows_are_those_of_the_score_matrix() -> None:
    for pairing in ("two_view", "cross"):
        views = loss_grid.embeddings(12, 5, pairing, torch.float32, CPU)
        assert loss_grid.plain_scores(views[0], views[1], 1.0, pairing).shape == (12, 12)


def test_every_cell_above_its_limit_is_named() -> None:
    cells = loss_grid.measure(8, 4, "two_view", torch.float32, CPU, ["eager"], 2)
    assert [(c["objective"], c["rows"], c["limit"]) for c in cells] == [("InfoNCE", 8, 1.5), ("FlatNCE + ESS", 8, 1.5)]
    cells[0] |= {"ratio": 1.7, "holds": False}
    cells[1] |= {"ratio": 1.2, "holds": True}
    assert "1 of 2 cells are above their limit.\nabove: InfoNCE eager, 8 x 4: " in loss_grid.report(cells)


def test_limits_are_those_of_rows_and_mode() -> None:
    limits = [loss_grid.limit(rows, mode) for rows in (512, 1024) for mode in ("eager", "graphed")]
    assert limits == [1.5, 1.05, 1.05, 1.05]


def test_a_way_that_does_not_fit_has_no_time() -> None:
    def too_large() -> Tensor:
        raise torch.OutOfMemoryError("no")

    found = loss_grid.median_ms({"plain": too_large, "eager": lambda: None}, CPU, 2)
    assert found["plain"] is None
    assert found["eager"] is not None
