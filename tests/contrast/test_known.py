"""Sums over the samples of a class."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatclr.contrast import known
from flatclr.contrast.known import Pieces

CLASSES = st.lists(st.integers(0, 6), min_size=1, max_size=40)


@given(classes=CLASSES, piece=st.integers(1, 9), seed=st.integers(0, 9))
def test_pieces_of_a_class_add_up_to_the_class(classes: list[int], piece: int, seed: int) -> None:
    rows = torch.randn(len(classes), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    class_N = known.numbered(torch.tensor(classes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "PIECE", piece)
        found = Pieces.of(class_N).summed(rows)
    for row, kind in enumerate(classes):
        wanted = sum(rows[other] for other, its in enumerate(classes) if its == kind)
        torch.testing.assert_close(found[row], wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("classes", [1, 10, 5000])
def test_sums_on_a_gpu_repeat_bit_by_bit_and_have_the_gradient_of_a_sum(classes: int) -> None:
    rows = torch.randn(5000, 7, device="cuda", dtype=torch.float64).requires_grad_()
    class_N = torch.arange(5000, device="cuda") % classes
    pieces = Pieces.of(class_N)
    found = known.sum_of_class(rows, pieces)
    wanted = torch.zeros(classes, 7, dtype=torch.float64).index_add(0, class_N.cpu(), rows.detach().cpu())
    torch.testing.assert_close(found.detach().cpu(), wanted[class_N.cpu()])
    assert torch.equal(found, known.sum_of_class(rows, Pieces.of(class_N)))
    upstream = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, rows, upstream)
    wanted = torch.zeros(classes, 7, dtype=torch.float64).index_add(0, class_N.cpu(), upstream.cpu())
    torch.testing.assert_close(gradient.cpu(), wanted[class_N.cpu()])
