"""How many negatives are useful."""

from __future__ import annotations

from dataclasses import replace

from flatclr.studies.latent_classes import NEWTON_CLASSES, class_prior
from flatclr.studies.useful_negatives import useful_negatives


def test_one_negative_is_enough_for_equal_classes() -> None:
    found = useful_negatives(class_prior([1] * 4), most=8)
    assert found.useful == 1
    assert found.never_rises
    assert [row.negatives for row in found.rows] == [1, 2, 4, 8]


def test_rare_classes_need_as_many_as_separate_them() -> None:
    found = useful_negatives(class_prior([0.9, 0.05, 0.05]), most=64)
    together = [row.negatives for row in found.rows if row.together]
    assert found.rows[0].together == ((1, 2),)
    assert found.useful == 2 * max(together)


def test_more_than_were_tried_is_said() -> None:
    assert useful_negatives(class_prior([0.9, 0.05, 0.05]), most=1).useful is None


def test_a_loss_that_rises_is_seen() -> None:
    found = useful_negatives(class_prior([2, 1]), most=2)
    risen = (found.rows[0], replace(found.rows[1], supervised=found.rows[0].supervised + 1))
    assert found.never_rises
    assert not replace(found, rows=risen).never_rises


def test_an_answer_is_withheld_where_what_it_rests_on_did_not_converge() -> None:
    found = useful_negatives(class_prior([2, 1]), most=2)
    first, second = found.rows
    assert found.useful == 1
    assert replace(found, rows=(first, replace(second, converged=False))).useful == 1
    for shaky in (
        replace(found, rows=(replace(first, converged=False), second)),
        replace(found, limit=replace(found.limit, converged=False)),
    ):
        assert shaky.useful is None
        assert [row.converged for row in shaky.unsettled] == [False]


def test_more_classes_than_newton_takes_have_an_answer() -> None:
    assert useful_negatives(class_prior([1] * (NEWTON_CLASSES + 1)), most=1).useful == 1


def test_progress_is_told_before_each_minimisation() -> None:
    seen: list[tuple[int, int]] = []
    useful_negatives(class_prior([1, 1]), most=2, progress=lambda what, done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3)]
