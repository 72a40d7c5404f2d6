"""The linear probe against scikit-learn, and what it may look at."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from flatclr.evaluation import linear, logistic
from flatclr.evaluation.linear import Scaling, fit_linear, fit_probe, stratified_split
from flatclr.evaluation.scores import selection_score


def classes_of(samples: int, d: int, classes: int, *, seed: int = 0, apart: float = 0.5) -> tuple[Tensor, Tensor]:
    """Correlated, rectified features of overlapping classes."""
    fixed, drawn = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    means, mixing = apart * torch.randn(classes, d, generator=fixed), torch.randn(d, d, generator=fixed) / d**0.5
    labels = torch.randint(classes, (samples,), generator=drawn)
    features = (means[labels] + torch.randn(samples, d, generator=drawn)) @ (mixing * torch.logspace(0, -1.5, d))
    return features.relu(), labels


def sklearn_fit(x: Tensor, y: Tensor, l2: float) -> tuple[StandardScaler, LogisticRegression]:
    """For two classes scikit-learn fits one weight vector, the difference of ours: that has half the penalty."""
    scaler = StandardScaler().fit(x.numpy())
    halved = 0.5 if len(y.unique()) == 2 else 1.0
    model = LogisticRegression(C=1 / (halved * l2 * len(x)), max_iter=5000, tol=1e-7)
    return scaler, model.fit(scaler.transform(x.numpy().astype(np.float64)), y.numpy())


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("l2", [0.3, 1e-2, 1e-4])
def test_the_fit_is_scikit_learns(classes: int, l2: float) -> None:
    (x, y), (x_test, y_test) = classes_of(1500, 24, classes), classes_of(2000, 24, classes, seed=1)
    ours = fit_linear(x, y, classes=classes, l2=l2)
    scaler, model = sklearn_fit(x, y, l2)
    theirs = model.predict_proba(scaler.transform(x_test.numpy()))
    accuracy = (ours.logits(x_test).argmax(1) == y_test).double().mean().item()
    assert accuracy == pytest.approx((theirs.argmax(1) == y_test.numpy()).mean(), abs=0.002)
    assert np.abs(ours.logits(x_test).softmax(1).numpy() - theirs).max() < 0.01
    assert ours.converged


def test_float64_features_reach_scikit_learns_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "LARGEST_GRADIENT", 1e-9)
    x, y = classes_of(400, 6, 3)
    ours = fit_linear(x.double(), y, classes=3, l2=0.01)
    _, model = sklearn_fit(x.double(), y, 0.01)
    np.testing.assert_allclose(ours.weights_DC[:-1].T.numpy(), model.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.weights_DC[-1].numpy(), model.intercept_, atol=1e-5)


def test_the_gradient_is_zero_at_the_fit_by_autograd() -> None:
    x, y = classes_of(500, 8, 4)
    l2 = 1e-3
    fit = fit_linear(x.double(), y, classes=4, l2=l2)
    weights = fit.weights_DC.clone().requires_grad_()
    logits = Scaling.of(x.double())(x.double()) @ weights
    loss = torch.nn.functional.cross_entropy(logits, y) + l2 / 2 * weights[:-1].square().sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    assert gradient.abs().max() <= logistic.LARGEST_GRADIENT


def test_several_classes_per_sample_are_as_many_binary_fits() -> None:
    x, _ = classes_of(600, 10, 3)
    targets = (x[:, :3] + 0.1 * torch.randn(600, 3, generator=torch.Generator().manual_seed(3))) > x[:, :3].median(
        0
    ).values
    fit = fit_linear(x, targets, classes=3, l2=0.01)
    scaler = StandardScaler().fit(x.numpy())
    for c in range(3):
        model = LogisticRegression(C=1 / (0.01 * len(x)), max_iter=5000, tol=1e-7)
        model.fit(scaler.transform(x.numpy()), targets[:, c].numpy())
        theirs = model.decision_function(scaler.transform(x.numpy()))
        assert np.abs(torch.sigmoid(fit.logits(x)[:, c]).numpy() - 1 / (1 + np.exp(-theirs))).max() < 0.01


def test_constant_and_duplicate_features_are_no_trouble() -> None:
    x, y = classes_of(300, 5, 3)
    awkward = torch.cat([x, x[:, :2], torch.full((300, 1), 7.0), torch.zeros(300, 1)], 1)
    fit = fit_linear(awkward, y, classes=3, l2=1e-3)
    assert fit.converged
    assert torch.isfinite(fit.logits(awkward)).all()


def test_separable_classes_end_in_finite_weights() -> None:
    x = torch.cat([torch.randn(50, 3) - 20, torch.randn(50, 3) + 20])
    y = torch.arange(100) // 50
    fit = fit_linear(x, y, classes=2, l2=1e-6)
    assert (fit.logits(x).argmax(1) == y).all()
    assert torch.isfinite(fit.weights_DC).all()


def test_a_warm_start_takes_fewer_iterations() -> None:
    x, y = classes_of(1000, 16, 5)
    problem = logistic.Problem.of(Scaling.of(x)(x), logistic.Multinomial(y))
    cold = problem.solve(1e-4, problem.start(5))
    warm = problem.solve(1e-4, problem.solve(3e-4, problem.start(5)).weights_DC)
    assert warm.iterations < cold.iterations


def test_the_strength_is_the_best_on_the_held_out_tenth_and_the_strongest_of_equals() -> None:
    x, y = classes_of(600, 12, 4)
    probe = fit_probe(x, y, classes=4, score=selection_score)
    best = max(score for _, score in probe.path)
    assert probe.classifier.l2 == max(l2 for l2, score in probe.path if score == best)
    kept, held_out = stratified_split(y, linear.VALIDATION_SHARE, seed=0)
    l2, score = probe.path[0]
    by_hand = fit_linear(x[kept], y[kept], classes=4, l2=l2)
    assert score == pytest.approx((by_hand.logits(x[held_out]).argmax(1) == y[held_out]).double().mean().item())


def test_every_class_is_in_both_parts_of_the_split() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 2 + [3])
    kept, held_out = stratified_split(labels, 0.1, seed=4)
    assert sorted(torch.cat([kept, held_out]).tolist()) == list(range(83))
    assert torch.bincount(labels[held_out]).tolist() == [5, 3, 1]
    assert torch.bincount(labels[kept]).tolist() == [45, 27, 1, 1]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (
            torch.zeros(3, dtype=torch.long),
            2,
            r"labels must be 4 class numbers, one per row, got torch.int64 of shape \[3\]",
        ),
        (torch.zeros(4, dtype=torch.long), 1, "must have at least 2 classes, got 1; label the data"),
    ],
)
def test_bad_problems_are_refused(labels: Tensor, classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_linear(torch.randn(4, 2), labels, classes=classes, l2=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_probe_takes_under_three_seconds_on_a_gpu_and_agrees_with_the_cpu() -> None:
    x, y = classes_of(50_000, 512, 10, apart=0.15)
    on_gpu = (x.cuda(), y.cuda())
    fit_linear(on_gpu[0][:1000], on_gpu[1][:1000], classes=10, l2=0.1)  # loads the libraries
    torch.cuda.synchronize()
    start = time.perf_counter()
    probe = fit_probe(*on_gpu, classes=10, score=selection_score)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 3
    x_test, y_test = classes_of(10_000, 512, 10, seed=1, apart=0.15)
    theirs = fit_linear(x, y, classes=10, l2=probe.classifier.l2).logits(x_test).argmax(1)
    ours = probe.classifier.logits(x_test.cuda()).argmax(1).cpu()
    difference = (ours == y_test).double().mean() - (theirs == y_test).double().mean()
    assert abs(difference.item()) <= 0.002


def test_constant_features_are_only_centred_at_real_size() -> None:
    rows = torch.randn(50_000, 2, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 7.3
    scaling = Scaling.of(rows)
    assert scaling.mean_d[1] == rows[0, 1]
    assert scaling.deviation_d[1] == 1
    assert fit_linear(rows, (rows[:, 0] > 0).long(), classes=2, l2=0.01).logits(rows).isfinite().all()
