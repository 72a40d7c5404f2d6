"""Bench A, on which the thresholds are set: the embedded Fashion-MNIST at 14 pixels and a small CNN."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import (
    STILL,
    coded,
    dead_encoder,
    few_classes,
    few_distinct,
    fewer,
    leaked,
    pooled,
    sleeping,
    stale_encoder,
)
from flatclr.data.embedded import read_embedded

SIDE = 14
BASE = SHARED.changed(
    encoder="cnn",
    encoder_options={"width": 8},
    embedding=32,
    batch_size=64,
    steps=300,
    eval_every=75,
    eval_samples=1000,
)
INFONCE = {"objective": "infonce", "temperature": 0.1}
SGD = {"optimizer": "sgd", "learning_rate": 0.1}
MLP = {"encoder": "mlp", "encoder_options": {"width": 256}}
MILD = {"views": {"crop_scale": [0.8, 1.0]}}
UNCHANGED_LEVELS = {"jitter_probability": 0.0, "grayscale_probability": 0.0}
WEAK = {"crop_scale": [1.0, 1.0], **STILL}


def fashion(_: Path | None) -> Images:
    splits = read_embedded()
    parts = (
        torch.as_tensor(array) for part in (splits.train, splits.test) for array in (part.images_NCHW, part.labels_N)
    )
    train, train_labels, test, test_labels = parts
    return pooled(Images(train, train_labels.long(), test, test_labels.long()), SIDE)


CASES = (
    Case("healthy: FlatNCE with ESS control", None),
    Case("healthy: another seed", None, {"seed": 1}),
    Case("healthy: InfoNCE", None, INFONCE),
    Case("healthy: InfoNCE at batch 32", None, {**INFONCE, "batch_size": 32}),
    Case("healthy: FlatNCE at batch 16", None, {"batch_size": 16, "steps": 600, "log_every": 20, "eval_every": 150}),
    Case("healthy: VICReg", None, {"objective": "vicreg"}),
    Case("healthy: Barlow Twins at batch 128", None, {"objective": "barlow_twins", "batch_size": 128, "steps": 200}),
    Case("healthy: alignment and uniformity", None, {"objective": "align_uniform"}),
    Case("healthy: without labels", None, {"seed": 2}, labelled=False),
    Case("healthy: one epoch", None, {"steps": None, "epochs": 1.0}),
    Case("healthy: SGD, InfoNCE", None, {**INFONCE, **SGD}),
    Case("healthy: MLP at batch 128", None, {"encoder": "mlp", "encoder_options": {"width": 128}, "batch_size": 128}),
    Case("healthy: a queue of MoCo", None, {**INFONCE, "pairing": "one_way", "momentum": 0.99, "queue": 512}),
    Case("healthy: four views", None, {"views_per_image": 4, "batch_size": 32}),
    Case("InfoNCE at batch 4", "bound_saturated", {**INFONCE, **MLP, **MILD, "batch_size": 4, "steps": 800, "log_every": 25, "eval_every": 200}),
    Case("InfoNCE at batch 8", "bound_saturated", {**INFONCE, **MLP, **MILD, "batch_size": 8, "steps": 800, "log_every": 25, "eval_every": 200}),
    Case("InfoNCE, temperature 5", "temperature_too_high", {**INFONCE, "temperature": 5.0}),
    Case("FlatNCE, temperature 2", "temperature_too_high", {"temperature": 2.0}),
    Case("InfoNCE, temperature 0.005", "temperature_too_low", {**INFONCE, "temperature": 0.005}),
    Case("FlatNCE, temperature 0.01", "temperature_too_low", {"temperature": 0.01}),
    Case("ESS target 0.015", "controller_clamped", {"ess_target": 0.015}),
    Case("ESS target 0.97", "controller_clamped", {"ess_target": 0.97}),
    Case("alignment without uniformity", "collapse", {"objective": "align_uniform", "objective_options": {"uniform_weight": 0.0}}),
    Case("VICReg without variance", "collapse", {"objective": "vicreg", "objective_options": {"variance": 0.0, "covariance": 0.0}}),
    Case("VICReg without covariance", "dimensional_collapse", {"objective": "vicreg", "objective_options": {"covariance": 0.0}, "learning_rate": 3e-3}),
    Case("Barlow Twins without decorrelation", "dimensional_collapse", {"objective": "barlow_twins", "objective_options": {"weight": 0.0}, "learning_rate": 1e-2}),
    Case("AdamW at 100", "learning_rate_too_high", {"learning_rate": 100.0}),
    Case("SGD at 10 without normalisation", "learning_rate_too_high", {**INFONCE, "optimizer": "sgd", "learning_rate": 10.0, "encoder_options": {"width": 8, "norm": "none"}}),
    Case("SGD at 300, InfoNCE", "learning_rate_too_high", {**INFONCE, "optimizer": "sgd", "learning_rate": 300.0}),
    Case("AdamW at 1e-6", "learning_rate_too_low", {"learning_rate": 1e-6}),
    Case("SGD at 1e-5, InfoNCE", "learning_rate_too_low", {**INFONCE, "optimizer": "sgd", "learning_rate": 1e-5}),
    Case("NWJ at batch 3, cold", "gradient_noise", {"objective": "nwj", "temperature": 0.04, "batch_size": 3, "steps": 800, "log_every": 20, "eval_every": 100, "seed": 5}),
    Case("NWJ at batch 4, cold", "gradient_noise", {"objective": "nwj", "temperature": 0.05, "batch_size": 4, "steps": 800, "log_every": 20, "eval_every": 100}),
    Case("40 images over and over", "false_negatives", data=few_distinct(40, noise=3.0)),
    Case("two classes", "false_negatives", data=few_classes(0, 1)),
    Case("views that are the image", "views_too_weak", {"views": WEAK}),
    Case("views that are nearly the image", "views_too_weak", {"views": {**WEAK, "crop_scale": [0.9, 1.0]}}),
    Case("views of 2 % of the image", "views_too_strong", {"views": {"crop_scale": [0.01, 0.02]}}),
    Case("views of 5 %, harshly lit", "views_too_strong", {"views": {"crop_scale": [0.03, 0.06], "brightness": 0.95, "contrast": 0.95, "solarize_probability": 0.5}}),
    Case("150 training images, InfoNCE", "overfitting", {**MLP, **SGD, **INFONCE, "steps": 1200, "log_every": 30, "eval_every": 300, "seed": 1}, data=fewer(train=150)),
    Case("100 training images, InfoNCE", "overfitting", {**MLP, **SGD, **INFONCE, "steps": 1000, "log_every": 25, "eval_every": 250}, data=fewer(train=100)),
    Case("a code in two channels", "knn_falling", {"views": UNCHANGED_LEVELS}, data=coded(0.3)),
    Case("a faint code in two channels", "knn_falling", {**SGD, "views": UNCHANGED_LEVELS}, data=coded(0.15)),
    Case("views that take 3 ms each", "data_starved", {"workers": 1, "batch_size": 32, "steps": 60}, views=sleeping(0.003)),
    Case("views in Python by one worker", "data_starved", {"workers": 1, "batch_size": 32, "steps": 100}, views=sleeping(0.0)),
    Case("three quarters of the units dead", "dead_batch_norm", encoder=dead_encoder(0.75, name="cnn", side=SIDE, width=8)),
    Case("running statistics that stand still", "dead_batch_norm", encoder=stale_encoder(1e-6, name="cnn", side=SIDE, width=8)),
    Case("half of the test images seen", "split_leak", data=leaked(0.5)),
    Case("a fifth of the test images seen", "split_leak", {"seed": 3}, data=leaked(0.2)),
    Case("60 test images", "evaluation_too_small", data=fewer(test=60)),
    Case("evaluations of 100 images", "evaluation_too_small", {"eval_samples": 100}),
)  # fmt: skip

BENCH = Bench("bench_a", BASE, CASES, fashion)
