"""How many negatives are useful."""

from __future__ import annotations

from dataclasses import replace

from flatclr.studies.latent_classes import class_prior
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
