"""A study that plans a run of `tests.support.sharing_study` under another name, and one of its own."""

from __future__ import annotations

from dataclasses import replace

from flatclr.studies import Plan, Run
from tests.support.sharing_study import STUDY as SHARING
from tests.support.toy_study import measure


def plan(of: Plan) -> list[Run]:
    return [
        Run("the same as last", 0, measure, {"level": 3.0}, shared=True),
        Run("last", 0, measure, {"level": 4.0}, shared=True),  # the name of another run there
        Run("last", 1, measure, {"level": 3.0}, shared=True),  # another seed
    ]


STUDY = replace(SHARING, name="other", plan=plan)
