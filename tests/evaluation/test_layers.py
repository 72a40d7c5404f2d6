"""Which layer is measured, and what its features are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flatclr
from flatclr.data.sources import ResidentImages
from flatclr.evaluation import features
from flatclr.models.heads import build_head
from tests.support.evaluation import small_data, small_encoder


def test_layers_are_probed_in_order_of_depth_and_the_output_is_the_last() -> None:
    encoder = small_encoder()
    found = flatclr.evaluate(encoder, small_data(), "knn", layer="all", random_row=False)
    assert [row.layer for row in found.rows] == ["layer1", "layer2", "layer3", "layer4"]
    whole = flatclr.evaluate(encoder, small_data(), "knn", random_row=False)
    assert found.rows[-1].scores == whole["knn"].scores
    one = flatclr.evaluate(encoder, small_data(), "knn", layer="layer2", random_row=False)
    assert one["knn"].scores == found.rows[1].scores
    deep = flatclr.evaluate(encoder, small_data(), "knn", layer="layer2.conv", random_row=False)
    assert deep["knn"].layer == "layer2.conv"


def test_a_head_adds_its_layers() -> None:
    encoder, head = small_encoder(), build_head(16, d_out=4)
    head.get_buffer("norm1.running_mean").fill_(0.5)  # else it only repeats linear1
    found = flatclr.evaluate(encoder, small_data(), "knn", layer="all", head=head, random_row=False)
    assert [row.layer for row in found.rows][-4:] == ["head.linear1", "head.norm1", "head.relu1", "head.linear2"]
    named = flatclr.evaluate(encoder, small_data(), "knn", layer="layer3", head=head, random_row=False)
    assert named["knn"].layer == "encoder.layer3"


def test_features_of_a_layer_are_its_mean_over_positions() -> None:
    encoder, data = small_encoder().eval(), small_data()
    assert isinstance(data.test, ResidentImages)
    prepare = lambda images: (images.float() / 255 - 0.5) / 0.5  # noqa: E731
    found = features.compute_features(encoder, data.test, prepare, layers=("layer2",), device=torch.device("cpu"))
    x = prepare(data.test.images)
    with torch.no_grad():
        wanted = encoder.get_submodule("layer2")(encoder.get_submodule("layer1")(x)).mean((2, 3))
    assert torch.allclose(found["layer2"], wanted, atol=1e-6)


CPU = torch.device("cpu")


@pytest.mark.parametrize("layer", [None, "output"])
def test_the_output_is_the_encoders_whether_or_not_a_head_is_passed(layer: str | None) -> None:
    encoder, head = small_encoder(), build_head(16, d_out=2)
    alone = flatclr.evaluate(encoder, small_data(), "knn", random_row=False)
    beside = flatclr.evaluate(encoder, small_data(), "knn", head=head, layer=layer, random_row=False)
    assert beside["knn"].layer == "output"
    assert beside["knn"].scores == alone["knn"].scores


def test_a_layer_before_an_in_place_activation_is_probed_as_it_was() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten())
    data = small_data()
    found = features.compute_features(module, data.train, lambda x: x.float() / 255, layers=("0",), device=CPU)["0"]  # type: ignore[arg-type]
    with torch.no_grad():
        wanted = module[0](data.train.images.float() / 255).mean((2, 3))  # type: ignore[union-attr]
    assert torch.allclose(found, wanted, atol=1e-6)
    assert (found < 0).any()


def test_maps_with_channels_last_are_averaged_over_positions() -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Identity())
    data = small_data()

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1)

    first, last = (
        features.compute_features(encoder, data.train, lambda x: x.float() / 255, device=CPU)["output"]  # type: ignore[arg-type]
        for encoder in (module, nn.Sequential(module, Last()))
    )
    assert torch.allclose(first, last, atol=1e-6)
