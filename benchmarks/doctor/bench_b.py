"""Bench B, on which the doctor is judged: MNIST at 14 pixels, and for every fault another encoder and another objective
than on bench A, in a mild and a severe form. Made after the thresholds were set, and run once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import STILL, coded, dead_encoder, few_distinct, fewer, leaked, pooled, sleeping

SIDE = 14
TRAIN, TEST = 10_000, 2_000
VIEWS = {"crop_scale": [0.3, 1.0], "flip_probability": 0.0}  # a mirrored digit is another one, or none
BASE = SHARED.changed(
    encoder="mlp",
    encoder_options={"width": 192},
    embedding=48,
    batch_size=96,
    steps=250,
    eval_every=50,
    eval_samples=1000,
    views=VIEWS,
)
INFONCE = {"objective": "infonce", "temperature": 0.15}
DCL = {"objective": "dcl", "temperature": 0.15}
DHEL = {"objective": "dhel", "temperature": 0.15}
CNN = {"encoder": "cnn", "encoder_options": {"width": 8, "norm": "group"}}
SGD = {"optimizer": "sgd", "learning_rate": 0.05}
WIDE = {"encoder_options": {"width": 512, "layers": 3}}
LONG = {"steps": 1000, "log_every": 25, "eval_every": 200}


def mnist(path: Path | None) -> Images:
    """The first images of MNIST, from one .npz file."""
    if path is None:
        raise SystemExit(
            "bench_b needs --data mnist.npz, with train_images, train_labels, test_images and test_labels."
        )
    with np.load(path) as arrays:
        train, test = (torch.as_tensor(arrays[f"{part}_images"])[:, None] for part in ("train", "test"))
        labels = [torch.as_tensor(arrays[f"{part}_labels"]).long() for part in ("train", "test")]
    return pooled(Images(train[:TRAIN], labels[0][:TRAIN], test[:TEST], labels[1][:TEST]), SIDE)


CASES = (
    Case("healthy: InfoNCE at batch 32", None, {**INFONCE, "batch_size": 32}),
    Case("healthy: one epoch of DCL", None, {**DCL, "steps": None, "epochs": 1.0, "eval_every": 25}),
    Case("healthy: without labels", None, {"seed": 1}, labelled=False),
    Case("healthy: DHEL", None, DHEL),
    Case("healthy: SogCLR", None, {"objective": "sogclr", "temperature": 0.15}),
    Case("healthy: SigLIP", None, {"objective": "siglip", "temperature": None}),
    Case("healthy: VICReg", None, {"objective": "vicreg", "embedding": 32}),
    Case("healthy: CNN with group normalisation", None, {**INFONCE, **CNN}),
    Case("healthy: FlatNCE by SGD", None, SGD),
    Case("healthy: debiased, three views", None, {"objective": "debiased", "views_per_image": 3, "batch_size": 48}),
    Case("mild: SupCon at batch 6", "bound_saturated", {**CNN, "objective": "supcon", "temperature": 0.1, "batch_size": 6, "steps": 800, "log_every": 20, "eval_every": 200, "views": {**VIEWS, "crop_scale": [0.8, 1.0]}}),
    Case("severe: SupCon at batch 3", "bound_saturated", {**CNN, "objective": "supcon", "temperature": 0.1, "batch_size": 3, "steps": 800, "log_every": 20, "eval_every": 200, "views": {**VIEWS, "crop_scale": [0.8, 1.0]}}),
    Case("mild: DCL, temperature 2", "temperature_too_high", {**DCL, "temperature": 2.0}),
    Case("severe: DCL, temperature 20", "temperature_too_high", {**DCL, "temperature": 20.0}),
    Case("mild: DHEL, temperature 0.01", "temperature_too_low", {**DHEL, "temperature": 0.01}),
    Case("severe: DHEL, temperature 0.002", "temperature_too_low", {**DHEL, "temperature": 0.002}),
    Case("mild: DCL, ESS target 0.95", "controller_clamped", {"objective": "dcl", "ess_target": 0.95}),
    Case("severe: DCL, ESS target 0.008", "controller_clamped", {"objective": "dcl", "ess_target": 0.008}),
    Case("mild: InfoNCE, weight decay 30", "collapse", {**INFONCE, "weight_decay": 30.0}),
    Case("severe: InfoNCE, weight decay 300", "collapse", {**INFONCE, "weight_decay": 300.0}),
    Case("mild: InfoNCE, 3 units in the head", "dimensional_collapse", {**INFONCE, "head_width": 3}),
    Case("severe: InfoNCE, 1 unit in the head", "dimensional_collapse", {**INFONCE, "head_width": 1}),
    Case("mild: DHEL by SGD at 30", "learning_rate_too_high", {**DHEL, "optimizer": "sgd", "learning_rate": 30.0}),
    Case("severe: DHEL by SGD at 1000", "learning_rate_too_high", {**DHEL, "optimizer": "sgd", "learning_rate": 1000.0}),
    Case("mild: DCL by AdamW at 2e-5", "learning_rate_too_low", {**DCL, "learning_rate": 2e-5}),
    Case("severe: DCL by AdamW at 1e-7", "learning_rate_too_low", {**DCL, "learning_rate": 1e-7}),
    Case("mild: Pearson f-MICL at batch 4", "gradient_noise", {"objective": "fmicl", "objective_options": {"divergence": "pearson"}, "temperature": 0.05, "batch_size": 4, "steps": 600, "log_every": 20, "eval_every": 100}),
    Case("severe: FLO at batch 2", "gradient_noise", {"objective": "flo", "temperature": 0.03, "batch_size": 2, "steps": 600, "log_every": 20, "eval_every": 100}),
    Case("mild: 100 images over and over", "false_negatives", INFONCE, data=few_distinct(100, noise=2.0)),
    Case("severe: 15 images over and over", "false_negatives", INFONCE, data=few_distinct(15, noise=2.0)),
    Case("mild: crops from 90 %", "views_too_weak", {**INFONCE, "views": {**STILL, "crop_scale": [0.9, 1.0]}}),
    Case("severe: the image itself", "views_too_weak", {**INFONCE, "views": {**STILL, "crop_scale": [1.0, 1.0]}}),
    Case("mild: crops of 3 to 6 %", "views_too_strong", {**DCL, "views": {**VIEWS, "crop_scale": [0.03, 0.06]}}),
    Case("severe: crops of 1 %, blurred", "views_too_strong", {**DCL, "views": {**VIEWS, "crop_scale": [0.01, 0.015], "blur_probability": 1.0, "blur_sigma": [3.0, 6.0]}}),
    Case("mild: 120 training images", "overfitting", {**DCL, **SGD, **WIDE, **LONG}, data=fewer(train=120)),
    Case("severe: 60 training images", "overfitting", {**DCL, **SGD, **WIDE, **LONG, "batch_size": 48}, data=fewer(train=60)),
    Case("mild: a faint code in a channel", "knn_falling", {**INFONCE, "views": {**STILL, "crop_scale": [0.3, 1.0]}}, data=coded(0.1, channels=2)),
    Case("severe: a code in two channels", "knn_falling", {**INFONCE, "views": {**STILL, "crop_scale": [0.3, 1.0]}}, data=coded(0.4, channels=2)),
    Case("mild: views that take 1 ms", "data_starved", {**INFONCE, "views": {}, "workers": 1, "batch_size": 32, "steps": 80}, views=sleeping(0.001)),
    Case("severe: views that take 6 ms", "data_starved", {**INFONCE, "views": {}, "workers": 1, "batch_size": 32, "steps": 60}, views=sleeping(0.006)),
    Case("mild: half of the units dead", "dead_batch_norm", INFONCE, encoder=dead_encoder(0.5, name="mlp", side=SIDE, width=192)),
    Case("severe: nine tenths of the units dead", "dead_batch_norm", INFONCE, encoder=dead_encoder(0.9, name="mlp", side=SIDE, width=192)),
    Case("mild: a tenth of the test images seen", "split_leak", INFONCE, data=leaked(0.1)),
    Case("severe: nine tenths of the test images seen", "split_leak", INFONCE, data=leaked(0.9)),
    Case("mild: 60 test images", "evaluation_too_small", INFONCE, data=fewer(test=60)),
    Case("severe: 20 test images", "evaluation_too_small", INFONCE, data=fewer(test=20)),
)  # fmt: skip

BENCH = Bench("bench_b", BASE, CASES, mnist)
