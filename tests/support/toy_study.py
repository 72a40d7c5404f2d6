"""A study of a few sums, for tests of the frame.

python -m tests.support.toy_study OUT SECONDS [JOBS]     makes it in a process that can be killed
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

from flatclr.plots import new_figure
from flatclr.studies import Claim, Found, Job, Plan, Run, Study, Verdict
from flatclr.studies.judging import above

ARMS = {"one": 1.0, "two, larger": 2.0}


def measure(job: Job) -> dict[str, float]:
    """The setting and some noise; notes that it was called."""
    log = job.folder.parent.parent / "calls.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"{job.folder.name}\n")
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
    if job.settings.get("fails") and os.environ.get("TOY_FAILS"):
        raise RuntimeError("this one fails\nand says much")
    return {"nats": job.settings["level"] + 0.1 * torch.randn(()).item()}


def plan(of: Plan) -> list[Run]:
    runs = [
        Run(arm, seed, measure, {"level": level, "fails": arm == "one" and seed == 0, "quick": of.quick})
        for seed in of.seeds
        for arm, level in ARMS.items()
    ]
    if all(run.name in of.found for run in runs):  # follows from what the others found
        best = max(of.found.mean(arm, "nats").value for arm in ARMS)
        runs.append(Run("best again", 0, measure, {"level": round(best, 6), "fails": False, "quick": of.quick}))
    return runs


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(2, 2)
    figure.subplots().plot([1, 2])
    return {"figure": figure}


def judge(found: Found) -> Verdict:
    score = found.difference("two, larger", "one", "nats")
    return Verdict(above(score), "Two is more.", score, "nats")


STUDY = Study(
    name="toy",
    title="Toy",
    source="nowhere",
    experiment="Numbers are drawn.",
    changed="nothing.",
    claims=(
        Claim("nowhere", "Two is larger than one.", "difference above 0", judge),
        Claim(
            "nowhere",
            "One alone is enough.",
            "always",
            lambda found: Verdict("held", "Yes."),
            lambda run: run.arm == "one",
        ),
    ),
    plan=plan,
    table=lambda found: [{"arm": arm, "nats": f"{found.mean(arm, 'nats').value:.2f}"} for arm in found.arms],
    draw=draw,
    seeds=3,
    budget="no time",
)


def main() -> None:
    from flatclr import studies

    studies.STUDIES["toy"] = __spec__.name
    os.environ["TOY_SECONDS"] = sys.argv[2]
    studies.run("toy", out=Path(sys.argv[1]), device="cpu", jobs=int(sys.argv[3]) if len(sys.argv) > 3 else 1)


if __name__ == "__main__":
    main()
