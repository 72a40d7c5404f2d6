"""Whatever a public function is called with: a finite result or one clear error of the package, in no time.

Some hundred calls here, more than ten thousand in `make test-slow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flatclr
from flatclr import diagnostics, evaluation, models, optim
from flatclr.data import (
    BatchPlan,
    PairedArrays,
    ResidentImages,
    draw_views,
    open_dataset,
    seeded_generator,
    simclr_cifar_views,
    views,
)
from flatclr.mi import limits
from flatclr.mi.fit import FitSettings
from flatclr.objectives import OBJECTIVES
from flatclr.training.config import TrainConfig, describe_settings
from tests.support.fuzz import NUMBERS, ODD, OPTIONS, batches, is_finite, require_an_outcome, tensors

CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def fuzzed(quick: int, slow: int) -> Callable[[Callable[..., None]], Any]:
    """The same property twice: a few examples for `make test`, many for `make test-slow`."""

    def mark(property_: Callable[..., None]) -> Any:
        counts = [pytest.param(quick, id="quick"), pytest.param(slow, id="slow", marks=pytest.mark.slow)]

        @pytest.mark.parametrize("examples", counts)
        @pytest.mark.filterwarnings("ignore")
        def run(examples: int) -> None:
            settings(max_examples=examples, deadline=None, suppress_health_check=CALM)(property_)()

        run.__name__, run.__doc__ = property_.__name__, property_.__doc__
        return run

    return mark


def finite_scores(options: dict[str, Any], *values: Any) -> bool:
    return is_finite(values) and options.get("normalize", True) is True


@fuzzed(100, 4000)
@given(st.data(), st.sampled_from(sorted(OBJECTIVES)), batches(), OPTIONS, st.one_of(st.just(0.1), NUMBERS, ODD))
def test_an_objective_has_an_outcome(
    data: st.DataObject, name: str, batch: tuple[tuple[Any, ...], dict[str, Any]], options: Any, temperature: Any
) -> None:
    views, brought = batch
    more = {} if OBJECTIVES[name].traits.temperature is None else {"temperature": temperature}

    def call() -> Any:
        objective = OBJECTIVES[name](**options, **more)
        inputs = [z.detach().requires_grad_() if z.is_floating_point() else z for z in views]
        loss = objective(*inputs, **brought)
        if loss.requires_grad:
            loss.backward()
        return loss, [z.grad for z in inputs if z.grad is not None]

    require_an_outcome(call, views, brought, temperature, 0.0 if options.get("normalize", True) is True else math.nan)


@fuzzed(60, 2500)
@given(batches(), OPTIONS, st.one_of(st.just(2.0), NUMBERS, ODD, tensors()))
def test_contrast_stats_have_an_outcome(batch: Any, options: Any, beta: Any) -> None:
    views, brought = batch

    def call() -> Any:
        stats = flatclr.contrast_stats(*views, inverse_temperature=beta, **options, **brought)
        if stats.counted is not None:  # where a choice leaves anchors without negatives, theirs are not there
            return stats.mean(stats.info_nce)
        return stats.positive, stats.negative_logsumexp, stats.ess, stats.mean(stats.info_nce)

    require_an_outcome(call, views, brought, beta, 0.0 if options.get("normalize", True) is True else math.nan)


VIEWS = simclr_cifar_views()
PHI = flatclr.Phi("tanh", torch.tanh, lambda s: 1 - torch.tanh(s).square())


def drawn(samples: Any = 2, height: Any = 8) -> Any:
    return draw_views(VIEWS, samples, height=height, width=8, generator=torch.Generator().manual_seed(0))


def four() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def dark() -> torch.Tensor:
    return torch.zeros(2, 3, 8, 8)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "pairwise_mean": lambda x, y: flatclr.pairwise_mean(x, y, phi=PHI),
    "pairwise_mean at a scale": lambda x, y: flatclr.pairwise_mean(four(), four(), phi=PHI, inverse_temperature=x),
    "pairwise_mean of a phi": lambda x, y: flatclr.pairwise_mean(four(), four(), phi=x),
    "matryoshka": lambda x, _: flatclr.Matryoshka(flatclr.InfoNCE(), x)(four(), four()),
    "saturation": lambda x, _: diagnostics.saturation(x),
    "gradient_snr_floor": lambda x, _: diagnostics.gradient_snr_floor(x),
    "adjust_brightness": views.adjust_brightness,
    "adjust_contrast": views.adjust_contrast,
    "adjust_hue": views.adjust_hue,
    "adjust_saturation": views.adjust_saturation,
    "to_grayscale": views.to_grayscale,
    "horizontal_flip": views.horizontal_flip,
    "luminance": lambda x, _: views.luminance(x),
    "solarize": lambda x, y: views.solarize(x, y, 0.5),
    "solarize from": lambda x, _: views.solarize(dark(), torch.tensor([True, False]), x),
    "normalize": lambda x, _: views.normalize(x, (0.5,), (0.5,)),
    "normalize by": lambda x, y: views.normalize(dark(), x, y),
    "gaussian_blur": lambda x, y: views.gaussian_blur(x, y, 3),
    "gaussian_blur of": lambda x, _: views.gaussian_blur(dark(), torch.ones(2), x),
    "resized_crop": lambda x, y: views.resized_crop(x, y, 4),
    "resized_crop to": lambda x, _: views.resized_crop(dark(), torch.tensor([[0.0, 0.0, 4.0, 4.0]] * 2), x),
    "draw_views": lambda x, y: drawn(x, y).values_NP,
    "draw_uniforms": lambda x, _: views.draw_uniforms(x, torch.Generator().manual_seed(0)),
    "apply_views": lambda x, y: views.apply_views(x, drawn(), VIEWS, size=y),
    "gathered_views": lambda x, y: views.gathered_views(dark().to(torch.uint8), x, drawn(), VIEWS, size=y),
    "views_for": lambda x, _: views.views_for(x),
    "crops_and_flips": lambda x, y: views.crops_and_flips(x, mean=y, std=y),
    "seeded_generator": lambda x, y: seeded_generator(x, y),
    "knn_accuracy": lambda x, y: evaluation.knn_accuracy(x, y, x, y, k=2),
    "knn_predict": lambda x, y: evaluation.knn_predict(four(), torch.arange(4), four(), k=x, temperature=y),
    "retrieve": lambda x, y: evaluation.retrieve(x, y, ranks=(1,)),
    "fit_linear": lambda x, y: evaluation.fit_linear(x, y, classes=3, l2=1.0),
    "fit_linear of": lambda x, y: evaluation.fit_linear(four(), torch.arange(4) % 2, classes=x, l2=y),
    "pool_mi_nats": lambda x, y: evaluation.pool_mi_nats(x, y, beta=2.0),
    "build_encoder": lambda x, y: models.build_encoder("mlp", channels=x, image_size=y, width=4),
    "build_encoder of": lambda x, y: models.build_encoder("cnn", channels=1, image_size=8, width=x, norm=y),
    "build_head": lambda x, y: models.build_head(x, d_out=y),
    "build_head of": lambda x, y: models.build_head(4, d_hidden=x, layers=y),
    "Normalisation": lambda x, y: models.Normalisation(x, y)(dark()),
    "warmup_cosine": lambda x, y: optim.warmup_cosine(x, total_steps=y, warmup_steps=1),
    "warmup_cosine to": lambda x, y: optim.warmup_cosine(3, total_steps=5, warmup_steps=x, final=y),
    "scaled_learning_rate": lambda x, y: optim.scaled_learning_rate(x, y),
    "info_nce_ceiling_nats": lambda x, _: limits.info_nce_ceiling_nats(x),
    "distribution_free_nats": lambda x, _: limits.distribution_free_nats(x),
    "dv_bias_nats": lambda x, y: limits.dv_bias_nats(x, y),
    "alignment": diagnostics.alignment,
    "uniformity": lambda x, _: diagnostics.uniformity(x),
    "effective_rank": lambda x, _: diagnostics.effective_rank(x),
    "effective_sample_size": lambda x, _: diagnostics.effective_sample_size(x),
    "collision_rate": diagnostics.collision_rate,
    "simplex_etf_distance": diagnostics.simplex_etf_distance,
    "within_class_variance": diagnostics.within_class_variance,
    "gradient_snr": lambda x, y: diagnostics.gradient_snr([x, y]),
    "stats_from_scores": lambda x, _: flatclr.stats_from_scores(x).gap,
    "images": lambda x, y: ResidentImages.of(x, y).images,
    "pairs": lambda x, y: PairedArrays(x, y).x,
    "plan": lambda x, y: BatchPlan(samples=5, batch_size=x, seed=y).indices(0),
    "temperature": lambda x, _: flatclr.InfoNCE(x).inverse_temperature,
    "control": lambda x, y: flatclr.EssControl(x, initial=y).inverse_temperature,
}


@fuzzed(250, 6000)
@given(st.sampled_from(sorted(FUNCTIONS)), st.one_of(tensors(), ODD, NUMBERS), st.one_of(tensors(), ODD, NUMBERS))
def test_other_public_functions_have_an_outcome(name: str, x: Any, y: Any) -> None:
    require_an_outcome(lambda: FUNCTIONS[name](x, y), x, y)


@fuzzed(60, 400)
@given(st.dictionaries(st.sampled_from([row.name for row in describe_settings()]), st.one_of(NUMBERS, ODD), max_size=3))
def test_settings_have_an_outcome(given_settings: dict[str, Any]) -> None:
    require_an_outcome(lambda: TrainConfig(**given_settings))


@fuzzed(15, 150)
@given(
    st.integers(0, 60),
    st.integers(0, 2),
    st.sampled_from(["ksg", "gaussian", "infonce", "smile", "auto", "x"]),
    st.integers(0, 8),
)
def test_an_estimate_has_an_outcome(rows: int, d: int, method: str, kind: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, d) if d else rows)
    y = x + rng.normal(size=x.shape)
    match kind:
        case 0:
            x = np.round(x)
        case 1:
            x = np.zeros_like(x)
        case 2:
            y = x
        case 3:
            y = y[:-1]
        case 4 if y.size:
            y.flat[0] = np.nan
        case 5:
            x = x * 1e200
    tiny = FitSettings(steps=2, hidden=4, check_every=1)
    require_an_outcome(lambda: flatclr.mi.estimate(x, y, method, settings=tiny).nats, x, y)


@fuzzed(20, 300)
@given(
    st.binary(max_size=300),
    st.sampled_from(
        ["a.npy", "a.npz", "a.tar", "a.png", "encoder.json", "config.yaml", "encoder.safetensors", "a.csv"]
    ),
    st.sampled_from(
        [b"", b"\x93NUMPY\x01\x00v\x00", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b'{"format": "flatclr-encoder", ']
    ),
)
def test_a_file_of_any_bytes_has_an_outcome(content: bytes, name: str, begin: bytes) -> None:
    import tempfile

    from flatclr.mi.tables import read_table

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(begin + content)
        at = path if path.suffix in (".npy", ".npz", ".tar") else Path(folder)
        uses: list[Callable[[], Any]] = [
            lambda: len(open_dataset(at).train),
            lambda: flatclr.load_encoder(folder),
            lambda: flatclr.load_network(folder),
            lambda: read_table(path, {"x": ["0"], "y": ["1"]}),
        ]
        for use in uses:
            require_an_outcome(use)
