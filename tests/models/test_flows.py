"""Flows: the inverse gives back what went in, and the log-determinant is that of the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flatclr.diagnostics import inversion_error
from flatclr.models import Flow, build_encoder, image_flow, load_encoder, save_encoder, vector_flow

FLOWS: dict[str, tuple[Callable[[], Flow], tuple[int, ...]]] = {
    "vectors": (lambda: vector_flow(7, layers=5), (7,)),
    "two entries": (lambda: vector_flow(2, layers=3), (2,)),
    "grey images": (lambda: image_flow(1, 6, 6, layers=4), (1, 6, 6)),
    "half images": (lambda: image_flow(3, 3, 6, layers=4), (3, 3, 6)),
}


def made(name: str, scale: float = 0.05) -> tuple[Flow, Tensor]:
    """With weights that move things, and samples."""
    torch.manual_seed(0)
    flow, shape = FLOWS[name][0](), FLOWS[name][1]
    for parameter in flow.parameters():
        parameter.data += scale * torch.randn_like(parameter)
    return flow, torch.randn(5, *shape)


@pytest.mark.parametrize("name", FLOWS)
def test_the_inverse_gives_back_what_went_in(name: str) -> None:
    flow, x = made(name)
    with torch.no_grad():
        assert (flow(x) - x).abs().max() > 0.01
        assert (flow.inverse(flow(x)) - x).abs().max() < 1e-5
        assert (flow(flow.inverse(x)) - x).abs().max() < 1e-5


@pytest.mark.parametrize("name", FLOWS)
def test_the_log_determinant_is_that_of_the_jacobian(name: str) -> None:
    flow, x = made(name)
    flow, x = flow.double(), x.double()
    for sample in x:
        jacobian = torch.autograd.functional.jacobian(lambda s: flow(s.unsqueeze(0)).flatten(), sample)
        expected = torch.linalg.slogdet(jacobian.view(x[0].numel(), -1)).logabsdet
        found = flow.with_log_determinant(sample.unsqueeze(0))[1].squeeze()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_starts_as_the_identity_and_every_entry_can_move(name: str) -> None:
    flow, x = made(name, scale=0)
    assert torch.equal(flow(x), x)
    flow, x = made(name)
    assert ((flow(x) - x).abs().amax(0) > 1e-4).all()


@pytest.mark.parametrize("image_size", [1, 5])
def test_the_encoder_is_inverted_and_kept(image_size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = build_encoder("realnvp", channels=3, image_size=image_size, width=8, layers=3)
    for parameter in encoder.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    images = torch.randn(4, 3, image_size, image_size)
    assert encoder.features == 3 * image_size**2
    assert inversion_error(encoder, images).max() < 1e-5
    features, log_determinant = encoder.with_log_determinant(images)  # type: ignore[operator]
    assert torch.equal(features, encoder(images))
    assert log_determinant.shape == (4,)
    kept = load_encoder(save_encoder(tmp_path, encoder, description={}))
    assert torch.equal(kept(images), encoder(images))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vector_flow(1), "features must be a whole number >= 2, got 1"),
        (lambda: vector_flow(4, layers=0), "layers must be a whole number >= 1, got 0"),
        (lambda: image_flow(1, 1, 1), "pixels must be a whole number >= 2, got 1"),
        (lambda: image_flow(1, 4, 4, width=0), "width must be a whole number >= 1, got 0"),
        (
            lambda: build_encoder("realnvp", channels=1, image_size=4)(torch.zeros(1, 1, 5, 5)),
            r"images must be 4 x 4 for this realnvp, got \[5, 5\]",
        ),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
