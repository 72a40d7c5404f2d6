"""Encoders by name: images [N, C, S, S] -> features [N, features].

Module names are stable, so that a layer can be probed by name: `maxpool` (the end of the stem), `layer1` ... `layer4`
and `avgpool` of a ResNet or CNN, `layer1`, `layer2` ... of an MLP, `flow.layer1` ... of a RealNVP. No activation works
in place, so a hook may keep any layer's output.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from flatclr.checks import require_count, require_one_of
from flatclr.extras import needed
from flatclr.models.batch_norm import normalised
from flatclr.models.flows import Flow, image_flow, vector_flow
from flatclr.models.network import Normalisation

STEMS = ("auto", "cifar", "imagenet")
STEM_OF_KERNEL: dict[tuple[int, ...], str] = {(3, 3): "cifar", (7, 7): "imagenet"}  # by the first convolution
TEXT_ENCODER = "bigru"
BOUND_TO_SQUARES = ("mlp", "realnvp")  # which take rows of numbers instead of other images
NORMS = ("batch", "group", "none")
LARGEST_CIFAR_IMAGE = 64  # stem="auto": the ImageNet stem would leave a 64 px image 2 x 2 features at the end
CHANNELS_PER_GROUP = 16  # of the settings of Wu & He 2018, the one that suits narrow layers
WEIGHT_SOURCES = frozenset({"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "weights"})


@dataclass(frozen=True)
class EncoderSpec:
    """What `build_encoder` needs to build an encoder again; says nothing about where its first weights came from.

    Args:
        name: of the architecture.
        channels: of the images.
        image_size: their side in pixels.
        options: arguments of the architecture.

    >>> build_encoder("mlp", channels=3, image_size=8, width=16).spec.options["width"]
    16
    """

    name: str
    channels: int
    image_size: int
    options: Mapping[str, Any]


class Encoder(nn.Module):
    """Any encoder built by name: images [N, C, S, S] -> features [N, features].

    A new one sets `features` and defines `encode`.

    Args:
        channels: of the images; others are refused.

    >>> class Flat(Encoder):
    ...     features = 4
    ...     def encode(self, images): return images.flatten(1)
    >>> Flat(channels=1)(torch.zeros(3, 1, 2, 2)).shape
    torch.Size([3, 4])
    """

    features: int
    spec: EncoderSpec
    normalisation: Normalisation | None = None  # set by whoever trained it
    description: Mapping[str, Any] | None = None  # set by `load_encoder`

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def encode(self, images: Tensor) -> Tensor:
        """Features [N, features] of images that were checked."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, features] of normalised images [N, C, S, S]."""
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ValueError(
                f"images must have shape [N, {self.channels}, S, S], got {list(images.shape)}; "
                "build the encoder for these channels or convert the images."
            )
        if not images.is_floating_point():
            raise TypeError(f"images must be floating-point, got {images.dtype}; scale to [0, 1] and normalise first.")
        return self.encode(images)


def build_encoder(name: str, *, channels: int, image_size: int, **options: Any) -> Encoder:
    """An encoder by name, with random weights.

    Args:
        name: one of `ENCODERS`, "bigru" for sentences, or "timm:NAME" or "torchvision:NAME" where these packages are
            installed.
        channels, image_size: of the images. Only "mlp", "realnvp" and some timm and torchvision models are bound
            to the size.
        options: resnet: stem="auto" | "cifar" (3x3 convolution, no pooling) | "imagenet", width=64,
            norm="batch" | "group", zero_init_gain=False (start every residual block as the identity).
            cnn: width=32, norm="batch" | "group" | "none".
            mlp: width=512, layers=2, norm="batch" | "group" | "none".
            realnvp: width=32, layers=4; as many features as pixels times channels, and an exact `inverse`.
            bigru, of sentences [N, channels] as numbers of words: width=128, hidden=256, buckets=8192.
            timm, torchvision: passed on (`pretrained=True`, `weights="DEFAULT"`, `img_size=32`, ...).

    Returns:
        An `Encoder` from images [N, channels, image_size, image_size] to features [N, encoder.features].

    >>> encoder = build_encoder("resnet18", channels=3, image_size=32)
    >>> encoder(torch.randn(2, 3, 32, 32)).shape, encoder.features
    (torch.Size([2, 512]), 512)
    """
    require_count("channels", channels, advice="1 for grey images, 3 for colour.")
    require_count("image_size", image_size, advice="pass the height of the square images in pixels.")
    encoder: Encoder
    package, colon, model = str(name).partition(":")
    if colon and package in PACKAGES:
        encoder = _adapt(package, model, channels, image_size, options)
    else:
        require_one_of("encoder", name, [*OWN_ENCODERS, *(f"{package}:NAME" for package in PACKAGES)])
        own = {
            option: parameter.default
            for option, parameter in inspect.signature(OWN_ENCODERS[name]).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        for option in options:
            require_one_of(f"option of encoder {name}", option, own)
        options = own | options  # defaults are recorded too: an old file must not change with them
        encoder = OWN_ENCODERS[name](channels=channels, image_size=image_size, **options)
    architecture = {option: value for option, value in options.items() if option not in WEIGHT_SOURCES}
    encoder.spec = EncoderSpec(name, channels, image_size, architecture)
    return encoder


def norm_layer(norm: str, channels: int, *, spatial: bool = True) -> nn.Module:
    """Normalisation over the batch, over groups of 16 channels of one sample, or none."""
    if norm == "batch":
        return nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(channels, max(1, channels // CHANNELS_PER_GROUP)), channels)
    return nn.Identity()


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm_layer(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm_layer(norm, width)
        self.downsample = _shortcut(channels, width, stride, norm)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        out = normalised(self.bn1, self.conv1(x))
        return normalised(self.bn2, self.conv2(out), shortcut=self.downsample(x))


class Bottleneck(nn.Module):
    """The stride sits in the 3x3 convolution, as in torchvision (ResNet v1.5)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = norm_layer(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = norm_layer(norm, width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = norm_layer(norm, width * self.expansion)
        self.downsample = _shortcut(channels, width * self.expansion, stride, norm)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        out = normalised(self.bn1, self.conv1(x))
        out = normalised(self.bn2, self.conv2(out))
        return normalised(self.bn3, self.conv3(out), shortcut=self.downsample(x))


class Shortcut(nn.Sequential):
    """A convolution and its normalisation."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self
        return normalised(norm, conv(x), relu=False)


def _shortcut(channels: int, features: int, stride: int, norm: str) -> nn.Module:
    if stride == 1 and channels == features:
        return nn.Identity()
    return Shortcut(nn.Conv2d(channels, features, 1, stride, bias=False), norm_layer(norm, features))


class ResNet(Encoder):
    """He et al. 2016 without the classifier, with torchvision's parameter names: its state dicts load."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        channels: int,
        image_size: int,
        stem: str = "auto",
        width: int = 64,
        norm: str = "batch",
        zero_init_gain: bool = False,
    ) -> None:
        super().__init__(channels)
        require_one_of("stem", stem, STEMS)
        require_one_of("norm", norm, ("batch", "group"))
        require_count("width", width, advice="64 is the published width.")
        if stem == "cifar" or (stem == "auto" and image_size <= LARGEST_CIFAR_IMAGE):
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.bn1 = norm_layer(norm, width)
        self.features = width
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(self.features, width << stage, stride, norm))
                self.features = (width << stage) * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        _initialise(self)
        if zero_init_gain:
            for module in self.modules():
                if isinstance(module, BasicBlock | Bottleneck):
                    nn.init.zeros_(module.last_norm.get_parameter("weight"))

    def encode(self, images: Tensor) -> Tensor:
        x = self.maxpool(normalised(self.bn1, self.conv1(images)))
        for stage in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{stage}")(x)
        return torch.flatten(self.avgpool(x), 1)


class SmallCNN(Encoder):
    """Four 3x3 convolutions for 28 to 32 px; learns in seconds on a CPU."""

    def __init__(self, *, channels: int, image_size: int, width: int = 32, norm: str = "batch") -> None:
        super().__init__(channels)
        require_one_of("norm", norm, NORMS)
        require_count("width", width, advice="32 gives 128 features.")
        self.layer1 = _conv_layer(channels, width, 1, norm)
        self.layer2 = _conv_layer(width, 2 * width, 2, norm)
        self.layer3 = _conv_layer(2 * width, 4 * width, 2, norm)
        self.layer4 = _conv_layer(4 * width, 4 * width, 2, norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.features = 4 * width
        _initialise(self)

    def encode(self, images: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        return torch.flatten(self.avgpool(x), 1)


def _conv_layer(channels: int, features: int, stride: int, norm: str) -> nn.Sequential:
    conv = nn.Conv2d(channels, features, 3, stride, padding=1, bias=norm == "none")
    return nn.Sequential(OrderedDict(conv=conv, norm=norm_layer(norm, features), relu=nn.ReLU()))


class MLP(Encoder):
    """Fully connected layers on the flattened image; rows of numbers [N, d] are images of one pixel, d channels."""

    def __init__(
        self, *, channels: int, image_size: int, width: int = 512, layers: int = 2, norm: str = "batch"
    ) -> None:
        super().__init__(channels)
        require_one_of("norm", norm, NORMS)
        require_count("width", width, advice="512 is a good start.")
        require_count("layers", layers, advice="2 is a good start.")
        self.image_size, self.depth = image_size, layers
        self.features = channels * image_size**2
        for layer in range(1, layers + 1):
            linear = nn.Linear(self.features, width, bias=norm == "none")
            parts = OrderedDict(linear=linear, norm=norm_layer(norm, width, spatial=False), relu=nn.ReLU())
            self.add_module(f"layer{layer}", nn.Sequential(parts))
            self.features = width
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images[:, :, None, None] if images.dim() == 2 else images)

    def encode(self, images: Tensor) -> Tensor:
        if images.shape[2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"images must be {self.image_size} x {self.image_size} for this mlp, got {list(images.shape[2:])}; "
                "resize them, or use a convolutional encoder."
            )
        x = torch.flatten(images, 1)
        for layer in range(1, self.depth + 1):
            x = self.get_submodule(f"layer{layer}")(x)
        return x


class RealNVP(Encoder):
    """An encoder that loses no information: a flow from the image to as many features, with an exact inverse.

    Rows of numbers [N, d] are images of one pixel, d channels. It starts as the identity.
    """

    def __init__(self, *, channels: int, image_size: int, width: int = 32, layers: int = 4) -> None:
        super().__init__(channels)
        self.image_size, self.features = image_size, channels * image_size**2
        self.flow: Flow = (
            vector_flow(channels, layers=layers, width=width)
            if image_size == 1
            else image_flow(channels, image_size, image_size, layers=layers, width=width)
        )

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images[:, :, None, None] if images.dim() == 2 else images)

    def encode(self, images: Tensor) -> Tensor:
        return torch.flatten(self.flow(self._shaped(images)), 1)

    def with_log_determinant(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features [N, features] and the log-determinant of each image [N]."""
        out, log_determinant = self.flow.with_log_determinant(self._shaped(images))
        return torch.flatten(out, 1), log_determinant

    def inverse(self, features: Tensor) -> Tensor:
        """The images [N, C, S, S] that have these features."""
        shape = (self.channels, self.image_size, self.image_size)
        inside = features if self.image_size == 1 else features.unflatten(1, shape)
        images: Tensor = self.flow.inverse(inside)
        return images.view(-1, *shape)

    def _shaped(self, images: Tensor) -> Tensor:
        if images.dim() == 4 and images.shape[2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"images must be {self.image_size} x {self.image_size} for this realnvp, got {list(images.shape[2:])}; "
                "resize them, or use a convolutional encoder."
            )
        return torch.flatten(images, 1) if self.image_size == 1 else images


class BiGRU(Encoder):
    """Sentences as numbers of words [N, L]: a GRU in each direction, the states at their ends beside each other.

    Padding, the zeros after a sentence, changes nothing.
    """

    def __init__(
        self, *, channels: int, image_size: int, width: int = 128, hidden: int = 256, buckets: int = 8192
    ) -> None:
        super().__init__(channels)
        for name, value, least in (("width", width, 1), ("hidden", hidden, 1), ("buckets", buckets, 2)):
            require_count(name, value, at_least=least, advice="128, 256 and 8192 are the defaults.")
        self.buckets, self.features = buckets, 2 * hidden
        self.words = nn.Embedding(buckets, width, padding_idx=0)
        self.onward, self.back = (nn.GRU(width, hidden, batch_first=True) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, features] of numbers of words [N, L], as `flatclr.data.token_ids` makes them."""
        if images.dim() != 2 or images.shape[1] != self.channels:
            raise ValueError(
                f"numbers of words must have shape [N, {self.channels}], got {list(images.shape)}; "
                f"pass token_ids(sentences, length={self.channels})."
            )
        return self.encode(images)

    def encode(self, images: Tensor) -> Tensor:
        ids_NL = images.long()
        ids_NL = torch.where(ids_NL > 0, 1 + (ids_NL - 1) % (self.buckets - 1), 0)  # more words than buckets share them
        lengths_N = (ids_NL > 0).sum(1, keepdim=True).clamp_min(1)
        place_NL = torch.arange(ids_NL.shape[1], device=ids_NL.device).expand_as(ids_NL)
        turned_NL = torch.where(place_NL < lengths_N, lengths_N - 1 - place_NL, place_NL)  # each within its own length
        words_NLd = self.words(ids_NL)
        ends = (
            self._end(self.onward, words_NLd, lengths_N),
            self._end(self.back, words_NLd.gather(1, turned_NL.unsqueeze(2).expand_as(words_NLd)), lengths_N),
        )
        return torch.cat(ends, 1)

    def _end(self, gru: nn.Module, words_NLd: Tensor, lengths_N: Tensor) -> Tensor:
        states_NLh: Tensor = gru(words_NLd)[0]
        last = (lengths_N - 1).unsqueeze(2).expand(-1, 1, states_NLh.shape[2])
        return states_NLh.gather(1, last).squeeze(1)


def _initialise(encoder: nn.Module) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


ENCODERS: dict[str, Callable[..., Encoder]] = {
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "cnn": SmallCNN,
    "mlp": MLP,
    "realnvp": RealNVP,
}
"""Architectures by the name that `build_encoder` takes, besides `timm:NAME` and `torchvision:NAME`."""
KEEPS_IMAGES = frozenset({"realnvp"})  # whose features are made of the pixels themselves: rounded ones would show
OWN_ENCODERS: dict[str, Callable[..., Encoder]] = {**ENCODERS, TEXT_ENCODER: BiGRU}  # those of sentences too


class AdaptedEncoder(Encoder):
    """A model of another package, without its classifier; layers are named `model.NAME`."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__(channels)
        self.model = model

    def encode(self, images: Tensor) -> Tensor:
        return torch.flatten(self.model(images), 1)


def is_own_encoder(encoder: nn.Module) -> bool:
    """Whether `build_encoder` makes all of it itself, so that what its layers do is known."""
    return isinstance(encoder, Encoder) and not isinstance(encoder, AdaptedEncoder)


def _timm_model(timm: ModuleType, name: str, channels: int, image_size: int, options: dict[str, Any]) -> nn.Module:
    if ":" not in name:  # else "hf-hub:owner/name", which only the hub knows
        _require_published("timm", name.partition(".")[0], timm.list_models())
    model: nn.Module = timm.create_model(name, in_chans=channels, num_classes=0, **options)
    return model


def _torchvision_model(
    models: ModuleType, name: str, channels: int, image_size: int, options: dict[str, Any]
) -> nn.Module:
    _require_published("torchvision", name, models.list_models())
    if channels != 3:
        raise ValueError(
            f"channels must be 3 for a torchvision encoder, got {channels}; "
            "repeat the channel three times or take an own or a timm encoder."
        )
    if name.startswith("vit_"):
        options = {"image_size": image_size} | options  # built for one size, and that is 224 unless told
    model: nn.Module = models.get_model(name, **options)
    for classifier in ("fc", "classifier", "heads", "head"):
        if hasattr(model, classifier):
            setattr(model, classifier, nn.Identity())
    return model


PACKAGES: dict[str, tuple[str, Callable[[ModuleType, str, int, int, dict[str, Any]], nn.Module]]] = {
    "timm": ("timm", _timm_model),
    "torchvision": ("torchvision.models", _torchvision_model),
}


def _adapt(package: str, name: str, channels: int, image_size: int, options: dict[str, Any]) -> AdaptedEncoder:
    module_name, create = PACKAGES[package]
    module = needed(module_name, by=f"encoder '{package}:{name}'", otherwise=f", or pick one of {', '.join(ENCODERS)}")
    encoder = AdaptedEncoder(create(module, name, channels, image_size, dict(options)), channels)
    try:
        with torch.no_grad():  # what a package calls a model's width is not always what comes out
            out = encoder.eval()(torch.zeros(1, channels, image_size, image_size))
    except Exception as error:
        raise ValueError(
            f"encoder '{package}:{name}' must take images of shape [N, {channels}, {image_size}, {image_size}], "
            f"got {_first_line(error)}; pass its own image_size, or an option such as img_size={image_size}."
        ) from error
    encoder.features = out.shape[1]
    return encoder.train()


def _require_published(package: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean '{package}:{near[0]}'?" if near else f"see {package}'s list_models()."
        raise ValueError(f"encoder must be one of {package}'s {len(known)} models, got '{package}:{name}'; {advice}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
