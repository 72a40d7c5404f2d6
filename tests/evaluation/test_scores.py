"""Scores and intervals against scikit-learn, scipy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from sklearn.neighbors import KNeighborsClassifier

from flatclr.evaluation import intervals, knn, retrieval
from flatclr.evaluation.intervals import Score, bootstrap, jackknife, mean_of, over_draws
from flatclr.evaluation.pool_mi import pool_mi_nats
from flatclr.evaluation.scores import average_precision, is_unbalanced, mean_per_class, score_predictions, within_top


def test_accuracies_are_scikit_learns() -> None:
    labels = torch.randint(7, (300,))
    logits = torch.randn(300, 7) + torch.nn.functional.one_hot(labels, 7)
    scores = score_predictions([logits], labels, tuple("abcdefg"))
    predicted = logits.argmax(1)
    assert scores.values["top1"].value == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert scores.values["mean_per_class"].value == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    top5 = metrics.top_k_accuracy_score(labels, logits.softmax(1), k=5, labels=range(7))
    assert scores.values["top5"].value == pytest.approx(top5)
    assert np.array_equal(scores.confusion, metrics.confusion_matrix(labels, predicted))
    recalls = metrics.recall_score(labels, predicted, average=None)
    assert [score.value for score in scores.per_class.values()] == pytest.approx(recalls.tolist())
    for number, score in enumerate(scores.per_class.values()):
        count = int((labels == number).sum())
        exact = stats.binomtest(round(score.value * count), count).proportion_ci(method="wilson")
        assert (score.low, score.high) == pytest.approx((exact.low, exact.high))


def test_unbalanced_training_classes_make_the_mean_over_classes_the_headline() -> None:
    logits, labels = torch.randn(110, 2), torch.tensor([0] * 100 + [1] * 10)
    assert is_unbalanced(labels)
    assert not is_unbalanced(torch.arange(100) % 2)
    assert score_predictions([logits], labels, ("a", "b"), unbalanced=True).headline == "mean_per_class"
    assert score_predictions([logits], labels, ("a", "b")).headline == "top1"


def test_several_draws_are_averaged_in_every_score() -> None:
    labels = torch.arange(140) % 7
    draws = [torch.randn(140, 7) + k * torch.nn.functional.one_hot(labels, 7) for k in (0.5, 1.0, 2.0)]
    together = score_predictions(draws, labels, tuple("abcdefg"))
    alone = [score_predictions([logits], labels, tuple("abcdefg")) for logits in draws]
    for name in ("top1", "top5", "mean_per_class"):
        expected = np.mean([scores.values[name].value for scores in alone])
        assert together.values[name].value == pytest.approx(expected, abs=1e-6)
        widths = [scores.values[name].high - scores.values[name].low for scores in alone]
        assert together.values[name].high - together.values[name].low > max(widths)  # the draws differ much
    assert np.array(together.confusion).sum() == 3 * 140


def test_a_tie_counts_against_the_true_class() -> None:
    votes = torch.tensor([[3.0, 0, 0, 0, 0, 0], [1.0, 1, 1, 1, 1, 0]])
    assert within_top(votes, torch.tensor([4, 4]), 5).tolist() == [False, True]


def test_average_precision_is_scikit_learns_where_scores_differ() -> None:
    wanted, scores = torch.rand(200) < 0.3, torch.randn(200)
    ours = average_precision(scores, wanted)(torch.ones(1, 200)).item()
    assert ours == pytest.approx(metrics.average_precision_score(wanted, scores))


def test_weights_act_like_repeated_samples() -> None:
    wanted, scores, times = torch.rand(60) < 0.4, torch.randn(60), torch.randint(0, 4, (60,))
    again = torch.repeat_interleave(torch.arange(60), times)
    weights_1N = times.float().unsqueeze(0)
    # copies are tied, and scikit-learn gives tied samples the precision at the end of their group
    theirs = metrics.average_precision_score(wanted[again], scores[again])
    assert average_precision(scores, wanted)(weights_1N).item() == pytest.approx(theirs)
    labels, correct = torch.arange(60) % 3, torch.rand(60) < 0.5
    predicted = torch.where(correct, labels, (labels + 1) % 3)
    ours = mean_per_class(correct, torch.nn.functional.one_hot(labels).float())(weights_1N).item()
    assert ours == pytest.approx(metrics.balanced_accuracy_score(labels[again], predicted[again]))


def test_several_classes_per_sample_are_scored_by_mean_average_precision() -> None:
    targets = torch.rand(150, 4) < 0.3
    targets[:, 3] = False
    logits = torch.randn(150, 4) + targets.float()
    scores = score_predictions([logits], targets, tuple("abcd"))
    expected = [metrics.average_precision_score(targets[:, c], logits[:, c]) for c in range(3)]
    assert scores.headline == "mean_average_precision"
    assert scores.values["mean_average_precision"].value == pytest.approx(np.mean(expected))
    assert list(scores.per_class) == ["a", "b", "c"]  # nothing is known of a class that never occurs


def test_the_bootstrap_interval_of_a_share_is_the_binomial_one() -> None:
    correct = torch.arange(2000) % 5 != 0
    score = bootstrap(mean_of(correct), 2000)
    error = math.sqrt(0.8 * 0.2 / 2000)
    # the 2.5 % quantile of 1,000 resamples has a standard error of about 0.085 of the spread
    assert score.value == pytest.approx(0.8)
    assert score.low == pytest.approx(0.8 - 1.96 * error, abs=0.3 * error)
    assert score.high == pytest.approx(0.8 + 1.96 * error, abs=0.3 * error)


@pytest.mark.parametrize("correct", [True, False])
def test_all_or_nothing_has_the_exact_binomial_interval(correct: bool) -> None:
    score = bootstrap(mean_of(torch.full((40,), correct)), 40)
    exact = stats.binomtest(40 * correct, 40).proportion_ci(method="exact")
    assert (score.low, score.high) == pytest.approx((exact.low, exact.high))


def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth, trials = 0.7, 200
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for trial in range(trials):
        score = bootstrap(mean_of(torch.rand(400, generator=generator) < truth), 400, seed=trial)
        covered += score.low <= truth <= score.high
    error = math.sqrt(0.95 * 0.05 / trials)
    assert covered / trials == pytest.approx(0.95, abs=3 * error)


def test_the_jackknife_of_a_mean_has_the_textbook_error() -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    score = jackknife(lambda rows: {"mean": values[rows].mean().item()}, 4000)["mean"]
    half = (score.high - score.low) / 2
    expected = 1.96 * values.std().item() / math.sqrt(4000)
    # 20 groups leave 19 degrees of freedom: the error itself is uncertain by 1 / sqrt(38)
    assert half == pytest.approx(expected, rel=3 / math.sqrt(38))


def test_student_quantiles_are_scipys() -> None:
    assert pytest.approx([stats.t.ppf(0.975, n) for n in range(1, 11)], abs=6e-4) == intervals.STUDENT


def test_draws_and_test_samples_both_widen_the_interval() -> None:
    pooled = Score(0.5, 0.48, 0.52)
    draws = [Score(0.4, 0, 1), Score(0.5, 0, 1), Score(0.6, 0, 1)]
    found = over_draws(draws, pooled)
    between = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert found.high - 0.5 == pytest.approx(math.hypot(between, 0.02), rel=1e-3)
    assert over_draws(draws[1:2], pooled) == pooled


@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_is_scikit_learns_with_the_same_weights(k: int) -> None:
    bank, queries = torch.randn(400, 8), torch.randn(100, 8)
    labels = (bank[:, 0] > 0).long() + 2 * (bank[:, 1] > 0).long()
    model = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp(-distance / 0.07))
    wanted = model.fit(bank.numpy(), labels.numpy()).predict_proba(queries.numpy())
    votes = knn.knn_votes(bank, labels, queries, k=k)
    np.testing.assert_allclose((votes / votes.sum(1, keepdim=True)).numpy(), wanted, atol=1e-4)


def test_knn_memory_is_bounded_by_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries, labels = torch.randn(64, 4), torch.randn(100, 4), torch.randint(3, (64,))
    whole = knn.knn_votes(bank, labels, queries, k=5)
    seen = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda self, *a, **k: seen.append(self.numel()) or topk(self, *a, **k))
    monkeypatch.setattr(knn, "ENTRIES_AT_ONCE", 640)
    assert torch.allclose(knn.knn_votes(bank, labels, queries, k=5), whole, atol=1e-6)
    assert len(seen) == 10
    assert max(seen) <= 640


def test_retrieval_is_a_loop_over_queries() -> None:
    features, labels = torch.randn(60, 5), torch.randint(4, (60,))
    labels[59] = 9  # the only one of its class: no query
    found = retrieval.retrieve(features, labels)
    unit = torch.nn.functional.normalize(features)
    precisions, recalls = [], []
    for query in range(59):
        others = [i for i in range(60) if i != query]
        scores = np.array([float(unit[query] @ unit[i]) for i in others])
        relevant = np.array([labels[i] == labels[query] for i in others])
        precisions.append(metrics.average_precision_score(relevant, scores))
        ranked = relevant[np.argsort(-scores)]
        recalls.append([ranked[:k].any() for k in retrieval.RANKS])
    np.testing.assert_allclose(found.average_precision_N.numpy(), precisions, atol=1e-5)
    assert np.array_equal(found.recall_NK.numpy(), recalls)


def test_pool_mi_of_independent_views_does_not_lean_up() -> None:
    found = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        z_a, z_b = (torch.randn(128, 16, generator=generator) for _ in range(2))
        found.append(pool_mi_nats(z_a, z_b, beta=4.0)["pool_mi_best_nats"])
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert np.mean(found) < 2 * error  # the bound's expectation is at most the true 0


def test_pool_mi_reads_the_best_beta_on_samples_that_did_not_choose_it() -> None:
    z_a = torch.randn(64, 8)
    z_b = z_a + 0.5 * torch.randn(64, 8)
    found = pool_mi_nats(z_a, z_b, beta=3.0)
    shuffled_a, shuffled_b = z_a.clone(), z_b.clone()
    shuffled_b[1::2] = z_b[1::2].roll(1, 0)
    changed = pool_mi_nats(shuffled_a, shuffled_b, beta=3.0)
    assert changed["pool_best_beta"] == found["pool_best_beta"]
    assert changed["pool_mi_best_nats"] < found["pool_mi_best_nats"]
    assert found["pool_ceiling_nats"] == pytest.approx(math.log(64))


def test_a_pool_of_three_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool must have at least 4 samples, got 3"):
        pool_mi_nats(torch.randn(3, 2), torch.randn(3, 2), beta=1.0)
