"""A study whose first run decides what comes next, and which shares its runs with `tests.support.other_study`."""

from __future__ import annotations

from flatclr.studies import Claim, Found, Plan, Run, Study, Verdict
from tests.support.toy_study import draw, measure


def plan(of: Plan) -> list[Run]:
    """What the first run decides is to be made before the last."""
    runs = {arm: Run(arm, 0, measure, {"level": level}, shared=True) for arm, level in (("first", 1.0), ("last", 3.0))}
    decided = Run("decided", 0, measure, {"level": 2.0}, shared=True)
    return [runs["first"], *([decided] if runs["first"].name in of.found else []), runs["last"]]


def judge(found: Found) -> Verdict:
    return Verdict("held", "All are there.")


STUDY = Study(
    name="sharing",
    title="Sharing",
    source="nowhere",
    experiment="Numbers are drawn.",
    changed="nothing.",
    claims=(Claim("nowhere", "Runs are shared.", "always", judge),),
    plan=plan,
    table=lambda found: [{"arm": kept.arm, "nats": f"{kept.numbers['nats']:.3f}"} for kept in found],
    draw=draw,
    seeds=1,
    budget="no time",
    empty=lambda found: [] if len(found) > 2 else [{"empty": "decided", "filled by": "`flatclr study sharing`"}],
    summary=lambda verdicts: [f"It {verdicts[0].word}."],
)
