"""Bench D, made after the thresholds and rules were committed for good, and run once: CIFAR-10 at 16 pixels, in colour,
and a narrow ResNet-18; every fault in a mild and a severe form, with an objective that no other bench has for it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import STILL, coded, dead_encoder, few_distinct, fewer, leaked, pooled, sleeping
from flatclr.data.named.cifar import read_cifar10_binary

SIDE = 16
TRAIN, TEST = 10_000, 2_000
BASE = SHARED.changed(
    encoder="resnet18",
    encoder_options={"width": 8},
    embedding=64,
    batch_size=64,
    steps=240,
    eval_every=80,
    eval_samples=700,
)
INFONCE = {"objective": "infonce", "temperature": 0.2}
KEPT = {"objective": "flatnce", "objective_options": {"keep_positive": True}, "temperature": 0.1}
DCL = {"objective": "dcl", "temperature": 0.2}
DHEL = {"objective": "dhel", "temperature": 0.2}
DEBIASED = {"objective": "debiased", "temperature": 0.2}
SOG = {"objective": "sogclr", "temperature": 0.2}
HOLDER = {"objective": "holder", "temperature": 0.2}
LONG = {"steps": 600, "log_every": 20, "eval_every": 150}
MILD = {"crop_scale": [0.8, 1.0]}
GREY = {"grayscale_probability": 1.0, "jitter_probability": 1.0, "brightness": 0.8, "contrast": 0.8}


def cifar10(path: Path | None) -> Images:
    """The first images of CIFAR-10, from the folder of its binary version."""
    if path is None:
        raise SystemExit("bench_d needs --data cifar-10-batches-bin, the folder of CIFAR-10 in its binary version.")
    splits = read_cifar10_binary(path)
    parts = [
        torch.as_tensor(array[:most])
        for part, most in ((splits.train, TRAIN), (splits.test, TEST))
        for array in (part.images_NCHW, part.labels_N)
    ]
    train, train_labels, test, test_labels = parts
    return pooled(Images(train, train_labels.long(), test, test_labels.long()), SIDE)


CASES = (
    Case("healthy: FlatNCE with ESS control", None),
    Case("healthy: InfoNCE at batch 32", None, {**INFONCE, "batch_size": 32}),
    Case("healthy: one epoch of DHEL", None, {**DHEL, "steps": None, "epochs": 1.0, "eval_every": 40}),
    Case("healthy: without labels", None, {"seed": 5}, labelled=False),
    Case("healthy: MACL", None, {"objective": "macl"}),
    Case("healthy: iSogCLR", None, {"objective": "isogclr", "temperature": 0.2}),
    Case("healthy: VICReg", None, {"objective": "vicreg", "batch_size": 128, "steps": 160}),
    Case("healthy: group normalisation, DCL", None, {**DCL, "encoder_options": {"width": 16, "norm": "group"}}),
    Case("healthy: Hoelder by SGD", None, {**HOLDER, "optimizer": "sgd", "learning_rate": 0.1}),
    Case("healthy: four views, DCLW", None, {"objective": "dclw", "temperature": 0.2, "views_per_image": 4, "batch_size": 32}),
    Case("mild: FlatNCE with the positive kept, batch 6", "bound_saturated", {**KEPT, **LONG, "batch_size": 6, "views": MILD}),
    Case("severe: FlatNCE with the positive kept, batch 3", "bound_saturated", {**KEPT, **LONG, "batch_size": 3, "views": MILD}),
    Case("mild: DHEL, temperature 2", "temperature_too_high", {**DHEL, "temperature": 2.0}),
    Case("severe: DHEL, temperature 20", "temperature_too_high", {**DHEL, "temperature": 20.0}),
    Case("mild: DCL, temperature 0.01", "temperature_too_low", {**DCL, "temperature": 0.01}),
    Case("severe: DCL, temperature 0.003", "temperature_too_low", {**DCL, "temperature": 0.003}),
    Case("mild: InfoNCE, ESS target 0.97", "controller_clamped", {"objective": "infonce", "ess_target": 0.97}),
    Case("severe: InfoNCE, ESS target 0.012", "controller_clamped", {"objective": "infonce", "ess_target": 0.012, "steps": 500, "log_every": 25, "eval_every": 125}),
    Case("mild: f-MICL, negatives of weight 0.2", "collapse", {"objective": "fmicl", "objective_options": {"weight": 0.2}}),
    Case("severe: f-MICL, negatives of weight 1e-6", "collapse", {"objective": "fmicl", "objective_options": {"weight": 1e-6}}),
    Case("mild: SogCLR, 3 units in the head", "dimensional_collapse", {**SOG, "head_width": 3}),
    Case("severe: SogCLR, 1 unit in the head", "dimensional_collapse", {**SOG, "head_width": 1}),
    Case("mild: debiased by SGD at 50", "learning_rate_too_high", {**DEBIASED, "optimizer": "sgd", "learning_rate": 50.0}),
    Case("severe: debiased by SGD at 1000", "learning_rate_too_high", {**DEBIASED, "optimizer": "sgd", "learning_rate": 1000.0}),
    Case("mild: Hoelder by AdamW at 1e-5", "learning_rate_too_low", {**HOLDER, "learning_rate": 1e-5}),
    Case("severe: Hoelder by AdamW at 1e-7", "learning_rate_too_low", {**HOLDER, "learning_rate": 1e-7}),
    Case("mild: DV at batch 2, temperature 0.01", "gradient_noise", {"objective": "dv", "temperature": 0.01, "batch_size": 2, "steps": 600, "log_every": 20, "eval_every": 150}),
    Case("severe: DV at batch 2, temperature 0.003", "gradient_noise", {"objective": "dv", "temperature": 0.003, "batch_size": 2, "steps": 600, "log_every": 20, "eval_every": 150}),
    Case("mild: 90 images over and over", "false_negatives", DCL, data=few_distinct(90, noise=1.5)),
    Case("severe: 12 images over and over", "false_negatives", DCL, data=few_distinct(12, noise=1.5)),
    Case("mild: crops from 90 %", "views_too_weak", {**DEBIASED, "views": {**STILL, "crop_scale": [0.9, 1.0]}}),
    Case("severe: the image itself", "views_too_weak", {**DEBIASED, "views": {**STILL, "crop_scale": [1.0, 1.0]}}),
    Case("mild: crops of 3 to 6 %, grey", "views_too_strong", {**INFONCE, "views": {**GREY, "crop_scale": [0.03, 0.06]}}),
    Case("severe: crops of 1 %, grey and solarized", "views_too_strong", {**INFONCE, "views": {**GREY, "crop_scale": [0.01, 0.015], "solarize_probability": 0.5}}),
    Case("mild: 100 training images", "overfitting", {**DHEL, **LONG, "encoder_options": {"width": 12}, "batch_size": 48}, data=fewer(train=100)),
    Case("severe: 50 training images", "overfitting", {**DHEL, **LONG, "encoder_options": {"width": 12}, "batch_size": 40}, data=fewer(train=50)),
    Case("mild: a faint code", "knn_falling", {**DCL, "views": STILL}, data=coded(0.2)),
    Case("severe: a code", "knn_falling", {**DCL, "views": STILL}, data=coded(0.6)),
    Case("mild: views that take 2 ms", "data_starved", {"objective": "vicreg", "workers": 1, "batch_size": 32, "steps": 80}, views=sleeping(0.002)),
    Case("severe: views that take 6 ms", "data_starved", {"objective": "vicreg", "workers": 1, "batch_size": 32, "steps": 60}, views=sleeping(0.006)),
    Case("mild: half of the units dead", "dead_batch_norm", DCL, encoder=dead_encoder(0.5, name="resnet18", side=SIDE, channels=3, width=8)),
    Case("severe: nine tenths of the units dead", "dead_batch_norm", DCL, encoder=dead_encoder(0.9, name="resnet18", side=SIDE, channels=3, width=8)),
    Case("mild: a tenth of the test images seen", "split_leak", SOG, data=leaked(0.1)),
    Case("severe: seven tenths of the test images seen", "split_leak", SOG, data=leaked(0.7)),
    Case("mild: 60 test images", "evaluation_too_small", {"objective": "siglip"}, data=fewer(test=60)),
    Case("severe: 20 test images", "evaluation_too_small", {"objective": "siglip"}, data=fewer(test=20)),
)  # fmt: skip

BENCH = Bench("bench_d", BASE, CASES, cifar10)
