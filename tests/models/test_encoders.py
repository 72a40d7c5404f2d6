"""Encoders, heads and momentum copies: shapes, parameter counts, independence of rows, names that stay."""

import copy
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm

from flatclr.models import ENCODERS, Encoder, MomentumEncoder, build_encoder, build_head
from flatclr.models.encoders import AdaptedEncoder

RESNETS = ("resnet18", "resnet34", "resnet50")


def small(name: str, **options: Any) -> Encoder:
    """A narrow encoder for 28 px grey images, quick to run."""
    options = {"width": 16} | options
    return build_encoder(name, **({"channels": 1, "image_size": 28} | options))


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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
    assert widths == {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "cnn": 128, "mlp": 512}


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


@pytest.mark.parametrize("name", ENCODERS)
def test_without_batch_norm_no_row_depends_on_another(name: str) -> None:
    encoder = small(name, norm="group").double()
    assert not any(isinstance(module, _BatchNorm) for module in encoder.modules())
    images = torch.randn(5, 1, 28, 28, dtype=torch.float64)
    alone = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(encoder(images), alone)


@pytest.mark.parametrize("name", ENCODERS)
def test_with_batch_norm_rows_depend_on_each_other_in_training_only(name: str) -> None:
    encoder = small(name).double()
    images = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    assert not torch.allclose(encoder(images)[:2], encoder(images[:2]))
    encoder.eval()
    torch.testing.assert_close(encoder(images)[:2], encoder(images[:2]))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ENCODERS)
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


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, f"{package}.models"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not there, also where it is
    with pytest.raises(
        ImportError, match=rf"encoder '{package}:resnet18' needs {package}, .*; pip install {package}, or"
    ):
        build_encoder(f"{package}:resnet18", channels=3, image_size=32)


class Foreign(nn.Module):
    """A model as other packages build them: `width` is not what comes out, and only multiples of 4 px go in."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(channels, 10, 4, 4)
        self.fc = nn.Linear(10, classes) if classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 4:
            raise AssertionError(f"Input height ({x.shape[-1]}) should be divisible by 4.\nAnd a second line.")
        return self.fc(self.body(x).mean((2, 3)))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand-ins with the functions that are called of timm and torchvision; returns the options they saw."""
    seen: list[dict[str, Any]] = []

    def create_model(name: str, *, in_chans: int, num_classes: int, **options: Any) -> nn.Module:
        seen.append(options)
        return Foreign(in_chans, num_classes)

    def get_model(name: str, **options: Any) -> nn.Module:
        seen.append(options)
        return Foreign(3, 1000)

    timm, torchvision, models = ModuleType("timm"), ModuleType("torchvision"), ModuleType("torchvision.models")
    timm.__dict__.update(create_model=create_model, list_models=lambda: ["foreign", "other"])
    models.__dict__.update(get_model=get_model, list_models=lambda: ["foreign", "vit_b_16"])
    torchvision.__dict__.update(models=models)
    for module in (timm, torchvision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


@pytest.mark.parametrize(
    "name", ["timm:foreign", "timm:foreign.tag_in1k", "timm:hf-hub:me/foreign", "torchvision:foreign"]
)
def test_a_foreign_model_becomes_an_encoder_without_its_classifier(name: str, packages: list[dict[str, Any]]) -> None:
    encoder = build_encoder(name, channels=3, image_size=32, pretrained=True, drop=0.1)
    assert isinstance(encoder, AdaptedEncoder)
    assert encoder.training
    assert encoder.features == 10
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert packages == [{"pretrained": True, "drop": 0.1}]
    assert encoder.spec.options == {"drop": 0.1}  # a loaded encoder has weights of its own


def test_timm_models_take_any_channels_and_torchvision_models_three(packages: list[dict[str, Any]]) -> None:
    assert build_encoder("timm:foreign", channels=1, image_size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ValueError, match="channels must be 3 for a torchvision encoder, got 1; repeat"):
        build_encoder("torchvision:foreign", channels=1, image_size=28)


def test_a_torchvision_transformer_is_built_for_the_image_size(packages: list[dict[str, Any]]) -> None:
    build_encoder("torchvision:vit_b_16", channels=3, image_size=32)
    assert packages == [{"image_size": 32}]


@pytest.mark.usefixtures("packages")
def test_foreign_models_that_do_not_fit_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"one of timm's 2 models, got 'timm:foreing'; did you mean 'timm:foreign'\?"):
        build_encoder("timm:foreing", channels=3, image_size=32)
    with pytest.raises(
        ValueError, match=r"\[N, 3, 33, 33\], got Input height \(33\) should be divisible by 4.; pass"
    ) as e:
        build_encoder("timm:foreign", channels=3, image_size=33)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("layers", "linears"), [(1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_a_head_has_as_many_linear_layers_as_asked_for(layers: int, linears: int, norm: str) -> None:
    head = build_head(48, d_hidden=32, d_out=8, layers=layers, norm=norm)
    assert sum(isinstance(module, nn.Linear) for module in head) == linears
    out = head(torch.randn(4, 48))
    assert out.shape == (4, 8)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_a_head_ends_without_an_activation_and_is_as_wide_as_its_features() -> None:
    head = build_head(48)
    assert head.linear1.weight.shape == (48, 48)
    out = head(torch.randn(16, 48))
    assert out.shape == (16, 128)
    assert (out < 0).any()


def test_a_head_without_batch_norm_keeps_rows_apart() -> None:
    head = build_head(32, layers=3, norm="group").double()
    z = torch.randn(4, 32, dtype=torch.float64)
    torch.testing.assert_close(head(z), torch.cat([head(row[None]) for row in z]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_in": 0}, "d_in must be a whole number >= 1, got 0; pass encoder.features"),
        ({"layers": 4}, "layers must be a whole number >= 1 and <= 3, got 4"),
        ({"d_hidden": 0}, "d_hidden must be a whole number >= 1, got 0"),
        ({"d_out": -1}, "d_out must be a whole number >= 1, got -1"),
        ({"norm": "bacth"}, "norm must be one of .* did you mean 'batch'"),
    ],
)
def test_a_head_that_cannot_be_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_head(**({"d_in": 8} | options))


def test_momentum_follows_the_closed_form() -> None:
    """With a source that jumps once, copy_k = source + momentum^k (copy_0 - source)."""
    source = small("cnn").double()
    follower = MomentumEncoder(source, momentum=0.9)
    start = [p.clone() for p in follower.parameters()]
    with torch.no_grad():
        for p in source.parameters():
            p.add_(torch.randn_like(p))
    for _ in range(7):
        follower.update()
    for first, goal, now in zip(start, source.parameters(), follower.parameters(), strict=True):
        torch.testing.assert_close(now, goal + 0.9**7 * (first - goal), rtol=1e-6, atol=1e-6)


def test_momentum_copies_buffers_as_they_are() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source)
    source(torch.randn(8, 1, 28, 28) + 3)
    follower.update()
    for mine, its in zip(follower.module.buffers(), source.buffers(), strict=True):
        assert torch.equal(mine, its)
        assert mine is not its


@pytest.mark.parametrize(("momentum", "moved"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_momentum_can_be_scheduled(momentum: float, moved: float) -> None:
    source = nn.Linear(3, 2)
    follower = MomentumEncoder(source)
    nn.init.zeros_(follower.module.weight)
    nn.init.ones_(source.weight)
    follower.momentum = momentum
    follower.update()
    torch.testing.assert_close(follower.module.weight, torch.full((2, 3), moved))
    assert follower.momentum == momentum


def test_the_copy_gives_no_gradient_and_is_no_part_of_its_source() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source)
    assert not any(p.requires_grad for p in follower.parameters())
    assert not follower(torch.randn(2, 1, 28, 28, requires_grad=True)).requires_grad
    assert all(p.requires_grad for p in source.parameters())
    assert parameters(follower) == parameters(source)
    assert {id(p) for p in follower.parameters()}.isdisjoint(id(p) for p in source.parameters())


def test_the_copy_and_its_momentum_are_in_the_state_dict() -> None:
    source = small("cnn")
    follower = MomentumEncoder(source, momentum=0.8)
    nn.init.zeros_(source.layer1.conv.weight)
    follower.update()
    fresh = MomentumEncoder(small("cnn"))
    fresh.load_state_dict(copy.deepcopy(follower.state_dict()))
    assert fresh.momentum == pytest.approx(0.8)
    for mine, its in zip(fresh.module.parameters(), follower.module.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_momentum_update_never_waits_for_the_device() -> None:
    follower = MomentumEncoder(small("cnn"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        follower.momentum = 0.5
        follower.update()
        with pytest.raises(Exception, match=r"data-dependent|data dependent|_local_scalar_dense"):
            _ = follower.momentum


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_a_momentum_outside_the_unit_interval_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match=rf"momentum must be within \[0, 1\], got {momentum}; 0.99"):
        MomentumEncoder(nn.Linear(2, 2), momentum)
