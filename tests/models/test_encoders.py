"""Encoders: shapes, parameter counts, independence of rows, names that stay."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flatclr.models import ENCODERS, Encoder, build_encoder
from tests.support.networks import NORMED, parameters, small

RESNETS = ("resnet18", "resnet34", "resnet50")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("image_size", [28, 32, 33, 64, 96])
@pytest.mark.parametrize("name", ENCODERS)
def test_images_of_any_size_become_one_row_of_features_each(name: str, image_size: int, channels: int) -> None:
    encoder = small(name, channels=channels, image_size=image_size, width=4)
    with torch.no_grad():
        out = encoder(torch.randn(2, channels, image_size, image_size))
    assert out.shape == (2, encoder.features)
    assert out.isfinite().all()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("image_size", [8, 33, 64])
def test_both_stems_take_odd_sizes(stem: str, norm: str, image_size: int) -> None:
    encoder = small("resnet18", stem=stem, norm=norm, image_size=image_size)
    assert encoder(torch.randn(3, 1, image_size, image_size)).shape == (3, 128)


def test_the_features_have_the_published_widths() -> None:
    with torch.device("meta"):
        widths = {name: build_encoder(name, channels=3, image_size=32).features for name in ENCODERS}
    assert widths == {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "cnn": 128, "mlp": 512, "realnvp": 3072}


# torchvision's published counts less those of its 1000-way classifier
@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 11_176_512), ("resnet34", 21_284_672), ("resnet50", 23_508_032)]
)
def test_resnets_have_the_published_parameter_counts(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(build_encoder(name, channels=3, image_size=224)) == count


@pytest.mark.parametrize(("image_size", "stride"), [(32, 1), (64, 1), (65, 4), (224, 4)])
def test_the_stem_follows_the_image_size_unless_told(image_size: int, stride: int) -> None:
    encoder = small("resnet18", image_size=image_size)
    stem = encoder.get_submodule("maxpool")(encoder.get_submodule("conv1")(torch.zeros(1, 1, 64, 64)))
    assert stem.shape[-1] == 64 // stride
    assert small("resnet18", image_size=image_size, stem="cifar").get_submodule("conv1").weight.shape[-1] == 3
    assert small("resnet18", image_size=image_size, stem="imagenet").get_submodule("conv1").weight.shape[-1] == 7


def test_resnet_parameters_have_torchvision_names() -> None:
    with torch.device("meta"):
        names = build_encoder("resnet50", channels=3, image_size=224).state_dict().keys()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv3.weight", "layer4.2.bn3.bias"} <= names
    assert {"layer1.0.downsample.0.weight", "layer1.0.downsample.1.running_var"} <= names
    assert not any(name.startswith(("layer1.1.downsample", "fc")) for name in names)
    assert len(names) == 318  # torchvision's 320 less fc.weight and fc.bias


def residual_network(encoder: Encoder, images: Tensor) -> Tensor:
    """ResNet-18 with the CIFAR stem in evaluation mode, from its state dict alone."""
    state = encoder.state_dict()

    def conv_norm(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        kernel = state[f"{conv}.weight"]
        x = nn.functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        mean, var, gain, bias = (
            state[f"{norm}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * gain + bias

    x = conv_norm(images, "conv1", "bn1", 1).relu()
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = conv_norm(x, f"{at}.conv1", f"{at}.bn1", stride).relu()
            y = conv_norm(y, f"{at}.conv2", f"{at}.bn2", 1)
            x = (y + (conv_norm(x, f"{at}.downsample.0", f"{at}.downsample.1", 2) if stride == 2 else x)).relu()
    return x.mean((2, 3))


def test_resnet18_computes_the_residual_network() -> None:
    encoder = small("resnet18").double()
    for _ in range(3):  # so that the running statistics are not those of the start
        encoder(torch.randn(8, 1, 28, 28, dtype=torch.float64))
    images = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(encoder.eval()(images), residual_network(encoder, images))


@pytest.mark.parametrize("name", NORMED)
def test_without_batch_norm_no_row_depends_on_another(name: str) -> None:
    encoder = small(name, norm="group").double()
    assert not any(isinstance(module, _BatchNorm) for module in encoder.modules())
    images = torch.randn(5, 1, 28, 28, dtype=torch.float64)
    alone = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(encoder(images), alone)


@pytest.mark.parametrize("name", NORMED)
def test_with_batch_norm_rows_depend_on_each_other_in_training_only(name: str) -> None:
    encoder = small(name).double()
    images = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    assert not torch.allclose(encoder(images)[:2], encoder(images[:2]))
    encoder.eval()
    torch.testing.assert_close(encoder(images)[:2], encoder(images[:2]))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", NORMED)
def test_gradients_reach_every_parameter(name: str, norm: str) -> None:
    encoder = small(name, norm=norm)
    encoder(torch.randn(4, 1, 28, 28)).square().sum().backward()
    dead = [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_an_encoder_without_normalisation_has_biases_instead(name: str) -> None:
    encoder = small(name, norm="none")
    assert {name.rpartition(".")[2] for name, _ in encoder.named_parameters()} == {"weight", "bias"}
    assert not any("norm" in name for name, _ in encoder.named_parameters())
    encoder(torch.randn(4, 1, 28, 28)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


@pytest.mark.parametrize("name", RESNETS)
def test_zero_gain_starts_every_block_as_its_shortcut(name: str) -> None:
    encoder = small(name, zero_init_gain=True)
    block = encoder.get_submodule("layer1.1")
    x = torch.randn(2, encoder.get_submodule("layer1.1.conv1").weight.shape[1], 7, 7).relu()
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("resnet18", ("maxpool", "layer1", "layer2.0", "layer4", "avgpool")), ("cnn", ("layer1", "layer4")), ("mlp", ("layer1", "layer2"))],
)  # fmt: skip
def test_layers_can_be_probed_by_name_and_their_outputs_kept(name: str, layers: tuple[str, ...]) -> None:
    encoder = small(name)
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    for layer, module in encoder.named_modules():
        module.register_forward_hook(lambda _m, _i, out, layer=layer: kept.update({layer: (out, out.clone())}))
    encoder(torch.randn(2, 1, 28, 28))
    assert set(layers) <= kept.keys()
    for out, at_the_time in kept.values():  # nothing downstream wrote into them
        assert torch.equal(out, at_the_time)


def test_a_small_cnn_learns_in_a_few_steps() -> None:
    """Bars at one of four angles, in noise: 30 steps are enough."""
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    bars = torch.stack([rows, columns, rows + columns, rows - columns]).mul(0.8).sin()
    labels = torch.arange(64) % 4
    encoder = build_encoder("cnn", channels=1, image_size=28)
    classify = nn.Linear(encoder.features, 4)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *classify.parameters()], lr=3e-3)
    for _ in range(30):
        images = (bars[labels] + torch.randn(64, 28, 28))[:, None]
        loss = nn.functional.cross_entropy(classify(encoder(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images = (bars[labels] + torch.randn(64, 28, 28))[:, None]
    assert (classify(encoder.eval()(images)).argmax(1) == labels).float().mean() > 0.9


BAD_ENCODERS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "name": ("resnet81", {}, ValueError, "encoder must be one of 'resnet18', .*'timm:NAME'.* did you mean 'resnet18'"),
    "placeholder": ("tim:vit", {}, ValueError, "encoder must be one of"),
    "no name": (None, {}, ValueError, "encoder must be one of .* got None"),  # type: ignore[dict-item]
    "option": ("cnn", {"stem": "cifar"}, ValueError, "option of encoder cnn must be one of 'width', 'norm', got 'stem'"),
    "stem": ("resnet18", {"stem": "cfar"}, ValueError, "stem must be one of .* did you mean 'cifar'"),
    "norm": ("resnet18", {"norm": "none"}, ValueError, "norm must be one of 'batch', 'group', got 'none'"),
    "cnn norm": ("cnn", {"norm": "layer"}, ValueError, "norm must be one of 'batch', 'group', 'none', got 'layer'"),
    "width": ("cnn", {"width": 0}, ValueError, "width must be a whole number >= 1, got 0"),
    "layers": ("mlp", {"layers": 1.5}, TypeError, "layers must be a whole number >= 1, got 1.5"),
    "channels": ("cnn", {"channels": 0}, ValueError, "channels must be a whole number >= 1, got 0; 1 for grey"),
    "image_size": ("cnn", {"image_size": 28.0}, TypeError, "image_size must be a whole number >= 1, got 28.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ENCODERS)
def test_an_encoder_that_cannot_be_built_is_refused(case: str) -> None:
    name, options, error, message = BAD_ENCODERS[case]
    with pytest.raises(error, match=message):
        build_encoder(name, **({"channels": 1, "image_size": 28} | options))


def test_images_that_do_not_fit_the_encoder_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images must have shape \[N, 1, S, S\], got \[2, 3, 28, 28\]; build"):
        small("cnn")(torch.zeros(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"images must have shape \[N, 1, S, S\], got \[28, 28\]"):
        small("cnn")(torch.zeros(28, 28))
    with pytest.raises(TypeError, match=r"images must be floating-point, got torch.uint8; scale"):
        small("cnn")(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"images must be 28 x 28 for this mlp, got \[32, 32\]; resize"):
        small("mlp")(torch.zeros(2, 1, 32, 32))
