"""Whatever a public function is called with: a finite result or one clear error of the package, in no time.

Some hundred calls here, more than ten thousand in `make test-slow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flatclr
from flatclr import data, diagnostics, evaluation, models, objectives, optim
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
from flatclr.studies import latent_classes
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
@given(st.sampled_from(sorted(OBJECTIVES)), batches(), OPTIONS, st.one_of(st.just(0.1), NUMBERS, ODD))
def test_an_objective_has_an_outcome(
    name: str, batch: tuple[tuple[Any, ...], dict[str, Any]], options: Any, temperature: Any
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
PRIOR, POINTS = latent_classes.class_prior([0.5, 0.3, 0.2]), torch.eye(3).double()
PHI = flatclr.Phi("tanh", torch.tanh, lambda s: 1 - torch.tanh(s).square())


def drawn(samples: Any = 2, height: Any = 8) -> Any:
    return draw_views(VIEWS, samples, height=height, width=8, generator=torch.Generator().manual_seed(0))


def four() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def small(x: Any) -> Any:
    """What would take all memory is another question."""
    return 3 if isinstance(x, int | float) and x > 10 else x


def array(x: Any) -> Any:
    return x.numpy() if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.dtype != torch.bfloat16 else x


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean()) if labels.dim() == 1 else 0.0


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
    "split_in_halves": lambda x, y: data.split_in_halves(x, y),
    "split_in_halves of": lambda x, _: data.split_in_halves(x),
    "halved": lambda x, y: data.halved(x, y),
    "ClassPositives": lambda x, _: data.ClassPositives(x).order,
    "token_ids": lambda x, y: data.token_ids(["a word"], length=x, buckets=y),
    "token_ids of": lambda x, _: data.token_ids(x),
    "no_augmentation": lambda x, y: data.no_augmentation(mean=x, std=y),
    "embedding_std": lambda x, _: diagnostics.embedding_std(x),
    "inversion_error": lambda x, _: diagnostics.inversion_error(models.vector_flow(3), x),
    "inversion_error of": lambda x, y: diagnostics.inversion_error(x, y),
    "vector_flow": lambda x, _: models.vector_flow(3)(x),
    "vector_flow of": lambda x, y: models.vector_flow(small(x), layers=small(y), width=4)(four()),
    "image_flow": lambda x, _: models.image_flow(1, 2, 2)(x),
    "image_flow of": lambda x, y: models.image_flow(small(x), small(y), 3, layers=1, width=2)(dark()),
    "fit_probe": lambda x, y: evaluation.fit_probe(x, y, classes=2, score=accuracy).path,
    "fit_probe of": lambda x, y: (
        evaluation.fit_probe(four(), torch.arange(4) % 2, classes=x, score=accuracy, seed=y).path
    ),
    "knn_votes": lambda x, y: evaluation.knn_votes(four(), torch.arange(4), x, classes=y),
    "nearest": lambda x, y: evaluation.nearest(array(x), array(y), k=2).cosine,
    "nearest of": lambda x, y: evaluation.nearest(four().numpy(), k=x, backend=y).cosine,
    "outlier_scores": lambda x, y: evaluation.outlier_scores(array(x)),
    "outlier_scores of": lambda x, _: evaluation.outlier_scores(four().numpy(), k=x),
    "duplicates": lambda x, _: evaluation.duplicates(array(x)),
    "duplicates of": lambda _, y: evaluation.duplicates(four().numpy(), threshold=y),
    "find_divergence": lambda x, y: objectives.find_divergence(x, y).name,
    "find_divergence of": lambda x, _: objectives.find_divergence("tsallis", x).name,
    "all_pairs": lambda x, _: limits.all_pairs(x),
    "mi_bound_nats": lambda x, _: limits.mi_bound_nats(x),
    "entropy_limit_nats": lambda x, y: limits.entropy_limit_nats(x, y),
    "nwj_least_variance": lambda x, _: limits.nwj_least_variance(3.0, x),
    "gaussian_nwj_variance": lambda x, _: limits.gaussian_nwj_variance(3.0, x),
    "class_prior": lambda x, _: latent_classes.class_prior(x),
    "class_prior of": lambda x, y: latent_classes.class_prior([x, y]),
    "sample_classes": lambda x, y: latent_classes.sample_classes(
        PRIOR, anchors=small(x), negatives=small(y), generator=torch.Generator().manual_seed(0)
    ),
    "sample_classes of": lambda x, _: latent_classes.sample_classes(
        x, anchors=2, negatives=2, generator=torch.Generator().manual_seed(0)
    ),
    "contrastive_loss": lambda x, y: latent_classes.contrastive_loss(x, y, negatives=2),
    "contrastive_loss of": lambda x, y: latent_classes.contrastive_loss(POINTS, PRIOR, negatives=small(x), method=y),
    "contrastive_limit": lambda x, y: latent_classes.contrastive_limit(x, y),
    "contrastive_limit of": lambda x, _: latent_classes.contrastive_limit(x, PRIOR),
    "collision_probability": lambda x, y: latent_classes.collision_probability(x, y),
    "collision_probability of": lambda x, _: latent_classes.collision_probability(PRIOR, x),
    "coverage_draws": lambda x, _: latent_classes.coverage_draws(x),
    "collision_coverage_factor": lambda x, _: latent_classes.collision_coverage_factor(PRIOR, small(x)),
    "interval_widths": lambda x, y: latent_classes.interval_widths(x, y),
    "interval_widths of": lambda x, _: latent_classes.interval_widths(PRIOR, x),
}


@fuzzed(250, 6000)
@given(st.sampled_from(sorted(FUNCTIONS)), st.one_of(tensors(), ODD, NUMBERS), st.one_of(tensors(), ODD, NUMBERS))
def test_other_public_functions_have_an_outcome(name: str, x: Any, y: Any) -> None:
    require_an_outcome(lambda: FUNCTIONS[name](x, y), x, y)


PUBLIC = (flatclr, data, diagnostics, evaluation, models, objectives, flatclr.mi, limits, latent_classes)
BY_OTHER_TESTS = {"contrast_stats", "estimate", "load_encoder", "load_network", "open_dataset"}
OF_STATS = "a formula of what contrast_stats or PairSet checked; its objective is fuzzed above"
OF_RUNS = "reads or writes files of a run; its command is fuzzed in tests/cli, or files of any bytes below"
NO_CHOICE = "takes no argument that could be wrong"
FUNCTIONS_GIVEN = "takes a module or function of the caller, whose errors are the caller's"
EXEMPT: dict[str, str] = {
    **dict.fromkeys(
        [
            "dcl",
            "dclw",
            "debiased",
            "dhel",
            "dv",
            "f_micl_cosine",
            "f_micl_gaussian",
            "flat_nce",
            "flo",
            "holder_flat_nce",
            "info_nce",
            "macl",
            "negatives_kl",
            "nwj",
            "pair_alignment",
            "rpc",
            "sig_lip",
            "sog_clr",
            "spectral",
            "sup_con",
            "vic_reg",
            "barlow_twins",
            "stats_of",
            "ess_with_positive",
        ],
        OF_STATS,
    ),
    **dict.fromkeys(
        [
            "embed",
            "evaluate",
            "examine",
            "finetune",
            "train",
            "load_classifier",
            "load_head",
            "load_weights",
            "markdown_table",
            "read_results",
            "save_encoder",
            "export_folder",
            "export_onnx",
            "dataset_from",
        ],
        OF_RUNS,
    ),
    **dict.fromkeys(["fashion_mnist_small", "grayscale_views", "simclr_cifar_views"], NO_CHOICE),
    **dict.fromkeys(
        ["batch_norm_health", "gradient_noise", "condition_number", "jacobian_singular_values", "register"],
        FUNCTIONS_GIVEN,
    ),
    "check": "estimates several times, by the estimate that is fuzzed below",
    **dict.fromkeys(("minimise", "supervised_loss", "classification_loss"), "part of a study, which makes its input"),
}


def names_called(function: Callable[..., Any]) -> set[str]:
    return {*function.__code__.co_names, function.__name__}


def test_every_public_function_is_fuzzed_or_exempt_for_a_reason() -> None:
    fuzzed_names = BY_OTHER_TESTS.union(*(names_called(function) for function in (*FUNCTIONS.values(), drawn)))
    public = {
        name
        for module in PUBLIC
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        if isinstance(function := getattr(module, name), FunctionType)
        and (hasattr(module, "__all__") or function.__module__ == module.__name__)
    }
    assert public - fuzzed_names - set(EXEMPT) == set(), "fuzz it, or say why not"
    assert set(EXEMPT) - public == set(), "no longer there"
    assert set(EXEMPT) & fuzzed_names <= {"simclr_cifar_views"}, "fuzzed after all"


def test_what_python_raised_in_a_line_of_the_package_is_no_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    require_an_outcome(lambda: limits.entropy_limit_nats(-1))
    monkeypatch.setattr(limits, "require_count", lambda *_, **__: None)
    with pytest.raises(AssertionError, match=r"raised in .*limits\.py.*math domain error"):
        require_an_outcome(lambda: limits.entropy_limit_nats(-1))


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
