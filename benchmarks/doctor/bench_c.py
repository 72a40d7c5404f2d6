"""Bench C, made after what bench B showed wrong was mended, and run once: scikit-learn's digits of 8 x 8 pixels, in a mild
and a severe form of every fault."""

from __future__ import annotations

from pathlib import Path

from benchmarks.doctor.cases import SHARED, Bench, Case, Images
from benchmarks.doctor.faults import STILL, coded, dead_encoder, few_distinct, fewer, leaked, sleeping, stale_encoder
from flatclr.data.digits import digits
from flatclr.data.sources import ResidentImages

SIDE = 8
VIEWS = {"crop_scale": [0.5, 1.0], "flip_probability": 0.0}
BASE = SHARED.changed(
    encoder="mlp",
    encoder_options={"width": 96, "layers": 3},
    embedding=24,
    batch_size=48,
    steps=300,
    log_every=15,
    eval_every=60,
    eval_samples=1000,
    views=VIEWS,
)
SIGLIP = {"objective": "siglip"}
DCLW = {"objective": "dclw", "temperature": 0.2}
HOLDER = {"objective": "holder", "temperature": 0.2}
DEBIASED = {"objective": "debiased", "temperature": 0.2}
SOG = {"objective": "sogclr", "temperature": 0.2}
CNN = {"encoder": "cnn", "encoder_options": {"width": 12}}
SMALL = {"steps": 800, "log_every": 20, "eval_every": 200}


def sklearn_digits(_: Path | None) -> Images:
    found = digits()
    parts = [part for part in (found.train, found.test) if isinstance(part, ResidentImages)]
    assert len(parts) == 2
    train, test = parts
    assert train.labels is not None
    assert test.labels is not None
    return Images(train.images, train.labels, test.images, test.labels)


CASES = (
    Case("healthy: FlatNCE", None),
    Case("healthy: InfoNCE at batch 32", None, {"objective": "infonce", "temperature": 0.2, "batch_size": 32}),
    Case("healthy: one epoch of Hoelder", None, {**HOLDER, "batch_size": 16, "steps": None, "epochs": 1.0, "eval_every": 20, "log_every": 5}),
    Case("healthy: without labels", None, {"seed": 3}, labelled=False),
    Case("healthy: CNN, DCLW", None, {**DCLW, **CNN}),
    Case("healthy: SigLIP", None, SIGLIP),
    Case("healthy: SogCLR", None, SOG),
    Case("healthy: Barlow Twins", None, {"objective": "barlow_twins", "batch_size": 128, "steps": 200}),
    Case("healthy: debiased by LARS", None, {**DEBIASED, "optimizer": "lars", "learning_rate": 0.3}),
    Case("healthy: DHEL, another seed", None, {"objective": "dhel", "temperature": 0.2, "seed": 4}),
    Case("mild: debiased at batch 6", "bound_saturated", {**DEBIASED, **SMALL, "batch_size": 6, "temperature": 0.1, "views": {**VIEWS, "crop_scale": [0.85, 1.0]}}),
    Case("severe: debiased at batch 3", "bound_saturated", {**DEBIASED, **SMALL, "batch_size": 3, "temperature": 0.1, "views": {**VIEWS, "crop_scale": [0.85, 1.0]}}),
    Case("mild: Hoelder, temperature 2", "temperature_too_high", {**HOLDER, "temperature": 2.0}),
    Case("severe: Hoelder, temperature 20", "temperature_too_high", {**HOLDER, "temperature": 20.0}),
    Case("mild: DCLW, temperature 0.01", "temperature_too_low", {**DCLW, "temperature": 0.01}),
    Case("severe: DCLW, temperature 0.003", "temperature_too_low", {**DCLW, "temperature": 0.003}),
    Case("mild: debiased, ESS target 0.97", "controller_clamped", {"objective": "debiased", "ess_target": 0.97}),
    Case("severe: debiased, ESS target 0.013", "controller_clamped", {"objective": "debiased", "ess_target": 0.013, "steps": 500, "log_every": 25, "eval_every": 100}),
    Case("mild: alignment, uniformity of weight 0.01", "collapse", {"objective": "align_uniform", "objective_options": {"uniform_weight": 0.01}}),
    Case("severe: alignment alone", "collapse", {"objective": "align_uniform", "objective_options": {"uniform_weight": 0.0}}),
    Case("mild: SigLIP, 3 units in the head", "dimensional_collapse", {**SIGLIP, "head_width": 3}),
    Case("severe: SigLIP, 1 unit in the head", "dimensional_collapse", {**SIGLIP, "head_width": 1}),
    Case("mild: Hoelder by SGD at 50", "learning_rate_too_high", {**HOLDER, "optimizer": "sgd", "learning_rate": 50.0}),
    Case("severe: Hoelder by SGD at 2000", "learning_rate_too_high", {**HOLDER, "optimizer": "sgd", "learning_rate": 2000.0}),
    Case("mild: SogCLR by AdamW at 2e-5", "learning_rate_too_low", {**SOG, "learning_rate": 2e-5}),
    Case("severe: SogCLR by AdamW at 1e-7", "learning_rate_too_low", {**SOG, "learning_rate": 1e-7}),
    Case("mild: NWJ at batch 4", "gradient_noise", {"objective": "nwj", "temperature": 0.05, "batch_size": 4, "steps": 600, "log_every": 20, "eval_every": 100}),
    Case("severe: FLO at batch 2", "gradient_noise", {"objective": "flo", "temperature": 0.03, "batch_size": 2, "steps": 600, "log_every": 20, "eval_every": 100}),
    Case("mild: 80 images over and over", "false_negatives", SIGLIP, data=few_distinct(80, noise=3.0, total=1200)),
    Case("severe: 12 images over and over", "false_negatives", SIGLIP, data=few_distinct(12, noise=3.0, total=1200)),
    Case("mild: crops from 92 %", "views_too_weak", {**DCLW, "views": {**STILL, "crop_scale": [0.92, 1.0]}}),
    Case("severe: the image itself", "views_too_weak", {**DCLW, "views": {**STILL, "crop_scale": [1.0, 1.0]}}),
    Case("mild: crops of 4 to 8 %", "views_too_strong", {**SOG, "views": {**VIEWS, "crop_scale": [0.04, 0.08]}}),
    Case("severe: crops of 2 %", "views_too_strong", {**SOG, "views": {**VIEWS, "crop_scale": [0.02, 0.025], "brightness": 0.9, "contrast": 0.9}}),
    Case("mild: 100 training images", "overfitting", {**HOLDER, **SMALL, "encoder_options": {"width": 384, "layers": 3}}, data=fewer(train=100)),
    Case("severe: 50 training images", "overfitting", {**HOLDER, **SMALL, "encoder_options": {"width": 384, "layers": 3}, "batch_size": 40}, data=fewer(train=50)),
    Case("mild: a faint code", "knn_falling", {**DCLW, "views": {**STILL, "crop_scale": [0.5, 1.0]}}, data=coded(0.2)),
    Case("severe: a code", "knn_falling", {**DCLW, "views": {**STILL, "crop_scale": [0.5, 1.0]}}, data=coded(0.6)),
    Case("mild: views that take 1 ms", "data_starved", {**DCLW, "views": {}, "workers": 1, "batch_size": 32, "steps": 80}, views=sleeping(0.001)),
    Case("severe: views that take 5 ms", "data_starved", {**DCLW, "views": {}, "workers": 1, "batch_size": 32, "steps": 50}, views=sleeping(0.005)),
    Case("mild: 60 % of the units dead", "dead_batch_norm", HOLDER, encoder=dead_encoder(0.6, name="cnn", side=SIDE, width=12)),
    Case("severe: running statistics of the start", "dead_batch_norm", HOLDER, encoder=stale_encoder(1e-6, name="cnn", side=SIDE, width=12)),
    Case("mild: an eighth of the test images seen", "split_leak", DCLW, data=leaked(0.125)),
    Case("severe: four fifths of the test images seen", "split_leak", DCLW, data=leaked(0.8)),
    Case("mild: 50 test images", "evaluation_too_small", DCLW, data=fewer(test=50)),
    Case("severe: 20 test images", "evaluation_too_small", DCLW, data=fewer(test=20)),
)  # fmt: skip

BENCH = Bench("bench_c", BASE, CASES, sklearn_digits)
