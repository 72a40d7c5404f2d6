"""Scores against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

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
