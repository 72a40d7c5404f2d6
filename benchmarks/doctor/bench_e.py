"""Bench E, made after what bench D showed wrong was mended and committed, and run once: Imagenette at 16 pixels and a narrow
ResNet-34; every fault in a mild and a severe form, with an objective that no other bench has for it, but for saturation,
which no other objective has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import STILL, coded, dead_encoder, few_distinct, fewer, leaked, sleeping

SIDE = 16
TEST = 2_000
ENCODER = {"width": 8}
BASE = SHARED.changed(
    encoder="resnet34",
    encoder_options=ENCODER,
    embedding=64,
    batch_size=48,
    steps=160,
    eval_every=40,
    eval_samples=800,
    optimizer="sgd",
    learning_rate=0.1,
)
ADAM = {"optimizer": "adamw", "learning_rate": 1e-3}
INFONCE = {"objective": "infonce", "temperature": 0.2}
DCL = {"objective": "dcl", "temperature": 0.2}
DCLW = {"objective": "dclw", "temperature": 0.2}
DHEL = {"objective": "dhel", "temperature": 0.2}
DEBIASED = {"objective": "debiased", "temperature": 0.2}
HOLDER = {"objective": "holder", "temperature": 0.2}
SOG = {"objective": "sogclr", "temperature": 0.2}
GROUPED = {"encoder_options": {**ENCODER, "norm": "group"}}
NEAR = {
    "crop_scale": [0.9, 1.0],
    "jitter_probability": 0.5,
}  # views that are told apart by more than pixels, but easily
GREY = {"grayscale_probability": 1.0, "jitter_probability": 1.0, "brightness": 0.8, "contrast": 0.8}
LONG = {"steps": 500, "log_every": 20, "eval_every": 125}
STARVED = {"workers": 1, "batch_size": 32, "steps": 60}
SMALL = {"steps": 800, "log_every": 20, "eval_every": 200}
MANY_TESTED = {"eval_samples": TEST}  # a fall of two points is to be seen


def imagenette(path: Path | None) -> Images:
    """Imagenette, from the folder that has its train and val, in an order that mixes the classes."""
    if path is None:
        raise SystemExit("bench_e needs --data imagenette, the folder with the folders train and val.")
    (train, train_labels), (test, test_labels) = (_folder(path / part) for part in ("train", "val"))
    return Images(train, train_labels, test[:TEST], test_labels[:TEST])


def _folder(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    classes = sorted(folder.name for folder in path.iterdir())
    files = sorted(path.glob("*/*"))
    images = torch.stack([torch.from_numpy(_pixels(file)) for file in files]).permute(0, 3, 1, 2)
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))
    return images[order].contiguous(), labels[order]


def _pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX))


CASES = (
    Case("healthy: FlatNCE with ESS control", None),
    Case("healthy: InfoNCE at batch 32", None, {**INFONCE, "batch_size": 32}),
    Case("healthy: one epoch of DCLW", None, {**DCLW, "steps": None, "epochs": 1.0}),
    Case("healthy: without labels", None, {"seed": 7}, labelled=False),
    Case("healthy: group normalisation, FlatNCE by AdamW", None, {**ADAM, **GROUPED}),
    Case("healthy: DHEL", None, DHEL),
    Case("healthy: Barlow Twins by AdamW", None, {**ADAM, "objective": "barlow_twins", "batch_size": 96, "steps": 120}),
    Case("healthy: debiased, three views", None, {**DEBIASED, "views_per_image": 3, "batch_size": 32}),
    Case("healthy: a queue of MoCo", None, {**INFONCE, "pairing": "one_way", "momentum": 0.99, "queue": 512}),
    Case("healthy: SogCLR, another seed", None, {**SOG, "seed": 8}),
    Case("mild: InfoNCE at batch 4", "bound_saturated", {**ADAM, **GROUPED, **SMALL, **INFONCE, "temperature": 0.1, "batch_size": 4, "views": NEAR}),
    Case("severe: InfoNCE at batch 3", "bound_saturated", {**ADAM, **GROUPED, **SMALL, **INFONCE, "temperature": 0.1, "batch_size": 3, "views": NEAR}),
    Case("mild: SogCLR, temperature 2", "temperature_too_high", {**SOG, "temperature": 2.0}),
    Case("severe: SogCLR, temperature 20", "temperature_too_high", {**SOG, "temperature": 20.0}),
    Case("mild: Hoelder, temperature 0.01", "temperature_too_low", {**HOLDER, "temperature": 0.01}),
    Case("severe: Hoelder, temperature 0.003", "temperature_too_low", {**HOLDER, "temperature": 0.003}),
    Case("mild: Hoelder, ESS target 0.97", "controller_clamped", {"objective": "holder", "ess_target": 0.97}),
    Case("severe: Hoelder, ESS target 0.012", "controller_clamped", {"objective": "holder", "ess_target": 0.012, "steps": 300, "eval_every": 75}),
    Case("mild: debiased, nine tenths of the negatives taken for false", "collapse", {**DEBIASED, "learning_rate": 0.03, "objective_options": {"prior": 0.9}}),
    Case("severe: debiased, nearly all taken for false", "collapse", {**DEBIASED, "learning_rate": 0.03, "objective_options": {"prior": 0.999}}),
    Case("mild: DCL, 3 units in the head", "dimensional_collapse", {**DCL, "head_width": 3}),
    Case("severe: DCL, 1 unit in the head", "dimensional_collapse", {**DCL, "head_width": 1}),
    Case("mild: DCL by SGD at 50", "learning_rate_too_high", {**DCL, "learning_rate": 50.0}),
    Case("severe: DCL by SGD at 1000", "learning_rate_too_high", {**DCL, "learning_rate": 1000.0}),
    Case("mild: debiased by SGD at 3e-4", "learning_rate_too_low", {**DEBIASED, "learning_rate": 3e-4}),
    Case("severe: debiased by SGD at 1e-6", "learning_rate_too_low", {**DEBIASED, "learning_rate": 1e-6}),
    Case("mild: InfoNCE at batch 2, temperature 0.01", "gradient_noise", {**ADAM, **LONG, **INFONCE, "temperature": 0.01, "batch_size": 2}),
    Case("severe: InfoNCE at batch 2, temperature 0.005", "gradient_noise", {**ADAM, **LONG, **INFONCE, "temperature": 0.005, "batch_size": 2}),
    Case("mild: 90 images over and over", "false_negatives", DHEL, data=few_distinct(90, noise=2.0)),
    Case("severe: 12 images over and over", "false_negatives", DHEL, data=few_distinct(12, noise=2.0)),
    Case("mild: crops from 90 %", "views_too_weak", {**HOLDER, "views": {**STILL, "crop_scale": [0.9, 1.0]}}),
    Case("severe: the image itself", "views_too_weak", {**HOLDER, "views": {**STILL, "crop_scale": [1.0, 1.0]}}),
    Case("mild: crops of 3 to 6 %, grey", "views_too_strong", {**DCLW, "views": {**GREY, "crop_scale": [0.03, 0.06]}}),
    Case("severe: crops of 1 %, grey and solarized", "views_too_strong", {**DCLW, "views": {**GREY, "crop_scale": [0.01, 0.015], "solarize_probability": 0.5}}),
    Case("mild: 70 training images", "overfitting", {**ADAM, **GROUPED, **LONG, **DEBIASED}, data=fewer(train=70)),
    Case("severe: 50 training images", "overfitting", {**ADAM, **GROUPED, **LONG, **DEBIASED}, data=fewer(train=50)),
    Case("mild: a faint code", "knn_falling", {**DHEL, **MANY_TESTED, "views": STILL}, data=coded(0.15)),
    Case("severe: a code", "knn_falling", {**DHEL, **MANY_TESTED, "views": STILL}, data=coded(0.4)),
    Case("mild: views that take 2 ms", "data_starved", {**DCL, **STARVED}, views=sleeping(0.002)),
    Case("severe: views that take 6 ms", "data_starved", {**DCL, **STARVED}, views=sleeping(0.006)),
    Case("mild: half of the units dead", "dead_batch_norm", SOG, encoder=dead_encoder(0.5, name="resnet34", side=SIDE, channels=3, width=8)),
    Case("severe: nine tenths of the units dead", "dead_batch_norm", SOG, encoder=dead_encoder(0.9, name="resnet34", side=SIDE, channels=3, width=8)),
    Case("mild: a tenth of the test images seen", "split_leak", HOLDER, data=leaked(0.1)),
    Case("severe: seven tenths of the test images seen", "split_leak", HOLDER, data=leaked(0.7)),
    Case("mild: 60 test images", "evaluation_too_small", DEBIASED, data=fewer(test=60)),
    Case("severe: 20 test images", "evaluation_too_small", DEBIASED, data=fewer(test=20)),
)  # fmt: skip

BENCH = Bench("bench_e", BASE, CASES, imagenette)
