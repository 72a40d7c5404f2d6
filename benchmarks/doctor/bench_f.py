"""Bench F, made after the rules came to ask whether the end of a run is one, and run once: letters of Omniglot at 20
pixels and a ConvMixer, in longer runs; every fault in a mild and a severe form, with an objective that no other bench
has for it, but for saturation, which no other objective has: there the pairing is new.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import STILL, coded, few_distinct, fewer, leaked, sleeping, with_dead_units
from flatclr.models.encoders import norm_layer

SIDE = 20
ALPHABETS = 8
TEST_DRAWERS = ("17", "18", "19", "20")  # of the twenty people who drew each letter
ARCHIVES = ("images_background_small1.zip", "images_background_small2.zip")
VIEWS = {"flip_probability": 0.0, "crop_scale": [0.2, 1.0]}  # a mirrored letter is another one, or none
BASE = SHARED.changed(
    embedding=48,
    batch_size=48,
    steps=500,
    log_every=20,
    eval_every=100,
    eval_samples=1000,
    views=VIEWS,
)
INFONCE = {"objective": "infonce", "temperature": 0.2}
DCL = {"objective": "dcl", "temperature": 0.2}
DCLW = {"objective": "dclw", "temperature": 0.2}
DHEL = {"objective": "dhel", "temperature": 0.2}
DEBIASED = {"objective": "debiased", "temperature": 0.2}
HOLDER = {"objective": "holder", "temperature": 0.2}
SOG = {"objective": "sogclr", "temperature": 0.2}
SGD = {"optimizer": "sgd", "learning_rate": 0.1}
CROSS = {**INFONCE, "temperature": 0.1, "pairing": "cross", "steps": 1000, "eval_every": 200, "log_every": 25}
NEAR = {"views": {**VIEWS, "crop_scale": [0.6, 1.0]}}
TWO = {"batch_size": 2, "steps": 800, "eval_every": 160}
CROPS = {**STILL, "crop_scale": [0.2, 1.0]}
LONG = {"steps": 800, "eval_every": 160}
STARVED = {"workers": 1, "batch_size": 32, "steps": 80}


class Mixer(nn.Module):
    """A stem of stride 2, then blocks that mix places, each channel by itself, and channels (Trockman & Kolter 2023).

    Args:
        channels: of the images.
        width: of the blocks.
        blocks: their number.
        norm: "batch" or "group".
    """

    def __init__(self, *, channels: int = 1, width: int = 48, blocks: int = 3, norm: str = "batch") -> None:
        super().__init__()
        self.stem = _layer(nn.Conv2d(channels, width, 5, 2, 2, bias=False), norm)
        self.places = nn.ModuleList(
            _layer(nn.Conv2d(width, width, 5, 1, 2, groups=width, bias=False), norm) for _ in range(blocks)
        )
        self.mixed = nn.ModuleList(_layer(nn.Conv2d(width, width, 1, bias=False), norm) for _ in range(blocks))
        self.last = _layer(nn.Conv2d(width, 3 * width, 3, 2, 1, bias=False), norm)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for place, mix in zip(self.places, self.mixed, strict=True):
            x = mix(x + place(x))
        pooled: Tensor = self.last(x).mean((2, 3))
        return pooled


def _layer(convolution: nn.Conv2d, norm: str) -> nn.Sequential:
    return nn.Sequential(convolution, norm_layer(norm, convolution.out_channels), nn.ReLU())


def omniglot(path: Path | None) -> Images:
    """Omniglot's two small background sets, classes being the alphabets, from the folder that has their archives.

    https://github.com/brendenlake/omniglot, python/images_background_small1.zip and images_background_small2.zip
    """
    if path is None:
        raise SystemExit(f"bench_f needs --data FOLDER, which has {' and '.join(ARCHIVES)} of Omniglot.")
    drawn = {name: pixels for archive in ARCHIVES for name, pixels in _letters(path / archive)}
    names = sorted(drawn)
    alphabets = sorted({alphabet for alphabet, *_ in names})
    assert len(alphabets) == ALPHABETS
    images = torch.from_numpy(np.stack([drawn[name] for name in names]))[:, None]
    labels = torch.tensor([alphabets.index(alphabet) for alphabet, *_ in names])
    tested = torch.tensor([drawer in TEST_DRAWERS for *_, drawer in names])
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0))
    train, test = order[~tested[order]], order[tested[order]]
    return Images(images[train], labels[train], images[test], labels[test])


def _letters(archive: Path) -> list[tuple[tuple[str, str, str], np.ndarray]]:
    """Each image by its alphabet, its letter and who drew it; ink is bright. Two alphabets are in both archives."""
    with zipfile.ZipFile(archive) as file:
        names = [name for name in file.namelist() if name.endswith(".png")]
        return [(_place(name), _pixels(file.read(name))) for name in names]


def _place(name: str) -> tuple[str, str, str]:
    _, alphabet, letter, image = name.split("/")
    return alphabet, letter, Path(image).stem.rpartition("_")[2]


def _pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return 255 - np.array(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def _case(
    name: str,
    fault: str | None,
    settings: Mapping[str, Any],
    *,
    encoder: Callable[[], nn.Module] = Mixer,
    data: Callable[[Images], Images] | None = None,
    labelled: bool = True,
    views: Callable[[Tensor], Tensor] | None = None,
) -> Case:
    return Case(name, fault, settings, data, labelled, encoder, views)


def _dead(share: float) -> Callable[[], nn.Module]:
    return lambda: with_dead_units(Mixer(), share)


CASES = (
    _case("healthy: FlatNCE with ESS control", None, {"seed": 1}),
    _case("healthy: InfoNCE at batch 32", None, {**INFONCE, "batch_size": 32, "steps": 800, "eval_every": 160, "seed": 2}),
    _case("healthy: one epoch of FlatNCE at batch 8", None, {"batch_size": 8, "steps": None, "epochs": 1.0, "seed": 3}),
    _case("healthy: without labels, SogCLR", None, {**SOG, "seed": 4}, labelled=False),
    _case("healthy: VICReg", None, {"objective": "vicreg", "batch_size": 96, "seed": 5}),
    _case("healthy: Barlow Twins", None, {"objective": "barlow_twins", "batch_size": 96, "seed": 6}),
    _case("healthy: DHEL by SGD", None, {**DHEL, **SGD, "seed": 7}),
    _case("healthy: group normalisation, DCL", None, {**DCL, "seed": 8}, encoder=partial(Mixer, norm="group")),
    _case("healthy: a queue of MoCo", None, {**INFONCE, "pairing": "one_way", "momentum": 0.99, "queue": 512, "seed": 9}),
    _case("healthy: debiased, three views", None, {**DEBIASED, "views_per_image": 3, "batch_size": 32, "seed": 10}),
    _case("mild: InfoNCE across views at batch 5", "bound_saturated", {**CROSS, **NEAR, "batch_size": 5}),
    _case("severe: InfoNCE across views at batch 3", "bound_saturated", {**CROSS, **NEAR, "batch_size": 3}),
    _case("mild: debiased, temperature 2", "temperature_too_high", {**DEBIASED, "temperature": 2.0}),
    _case("severe: debiased, temperature 20", "temperature_too_high", {**DEBIASED, "temperature": 20.0}),
    _case("mild: SogCLR, temperature 0.01", "temperature_too_low", {**SOG, "temperature": 0.01}),
    _case("severe: SogCLR, temperature 0.003", "temperature_too_low", {**SOG, "temperature": 0.003}),
    _case("mild: DCLW, ESS target 0.97", "controller_clamped", {"objective": "dclw", "ess_target": 0.97}),
    _case("severe: DCLW, ESS target 0.012", "controller_clamped", {"objective": "dclw", "ess_target": 0.012}),
    _case("mild: spectral, negatives of weight 0.01", "collapse", {"objective": "spectral", "temperature": 100.0}),
    _case("severe: spectral, negatives of weight 1e-4", "collapse", {"objective": "spectral", "temperature": 1e4}),
    _case("mild: Hoelder, 3 units in the head", "dimensional_collapse", {**HOLDER, "head_width": 3}),
    _case("severe: Hoelder, 1 unit in the head", "dimensional_collapse", {**HOLDER, "head_width": 1}),
    _case("mild: DCLW by SGD at 50", "learning_rate_too_high", {**DCLW, "optimizer": "sgd", "learning_rate": 50.0}),
    _case("severe: DCLW by SGD at 1000", "learning_rate_too_high", {**DCLW, "optimizer": "sgd", "learning_rate": 1000.0}),
    _case("mild: DHEL by AdamW at 1e-5", "learning_rate_too_low", {**DHEL, "learning_rate": 1e-5}),
    _case("severe: DHEL by AdamW at 1e-7", "learning_rate_too_low", {**DHEL, "learning_rate": 1e-7}),
    _case("mild: DCL at batch 2, temperature 0.01", "gradient_noise", {**TWO, **DCL, "temperature": 0.01}),
    _case("severe: DCL at batch 2, temperature 0.003", "gradient_noise", {**TWO, **DCL, "temperature": 0.003}),
    _case("mild: 90 images over and over", "false_negatives", HOLDER, data=few_distinct(90, noise=2.0)),
    _case("severe: 12 images over and over", "false_negatives", HOLDER, data=few_distinct(12, noise=2.0)),
    _case("mild: crops from 92 %", "views_too_weak", {**DCL, "views": {**STILL, "crop_scale": [0.92, 1.0]}}),
    _case("severe: the image itself", "views_too_weak", {**DCL, "views": {**STILL, "crop_scale": [1.0, 1.0]}}),
    _case("mild: crops of 3 to 6 %", "views_too_strong", {**DHEL, "views": {**VIEWS, "crop_scale": [0.03, 0.06]}}),
    _case("severe: crops of 1 %", "views_too_strong", {**DHEL, "views": {**VIEWS, "crop_scale": [0.01, 0.015]}}),
    _case("mild: 70 training images", "overfitting", {**DCLW, **LONG}, data=fewer(train=70)),
    _case("severe: 48 training images", "overfitting", {**DCLW, **LONG}, data=fewer(train=48)),
    _case("mild: a faint code", "knn_falling", {**HOLDER, "views": CROPS}, data=coded(0.06), encoder=partial(Mixer, channels=3)),
    _case("severe: a code", "knn_falling", {**HOLDER, "views": CROPS}, data=coded(0.1), encoder=partial(Mixer, channels=3)),
    _case("mild: views that take 2 ms", "data_starved", {**DHEL, **STARVED, "views": {}}, views=sleeping(0.002)),
    _case("severe: views that take 6 ms", "data_starved", {**DHEL, **STARVED, "views": {}}, views=sleeping(0.006)),
    _case("mild: half of the units dead", "dead_batch_norm", DEBIASED, encoder=_dead(0.5)),
    _case("severe: nine tenths of the units dead", "dead_batch_norm", DEBIASED, encoder=_dead(0.9)),
    _case("mild: a tenth of the test images seen", "split_leak", DCL, data=leaked(0.1)),
    _case("severe: seven tenths of the test images seen", "split_leak", DCL, data=leaked(0.7)),
    _case("mild: 60 test images", "evaluation_too_small", DHEL, data=fewer(test=60)),
    _case("severe: 20 test images", "evaluation_too_small", DHEL, data=fewer(test=20)),
)  # fmt: skip

BENCH = Bench("bench_f", BASE, CASES, omniglot)
