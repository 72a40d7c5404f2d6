"""How often the doctor is right.

A broken run counts where its fault is named first or second, a sound one where nothing is named.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.record import markdown, where
from flatclr.doctor.diagnosis import Diagnosis
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.examination import diagnose

SOUND = "nothing"
ROOT = Path(__file__).parents[2]


def examined(record: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis of a run that was kept."""
    return diagnose(Evidence(record["rows"], record["settings"]))


def judged(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run: what was wrong, what was found, and whether that is right."""
    rows = []
    for record in records:
        found = [finding.name for finding in examined(record).findings]
        fault = record["fault"] or SOUND
        right = not found if fault == SOUND else fault in found[:2]
        rows.append({"run": record["case"], "fault": fault, "found": found, "right": right})
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """Both rates in a line."""
    broken = [row for row in rows if row["fault"] != SOUND]
    sound = [row for row in rows if row["fault"] == SOUND]
    named = sum(row["right"] for row in broken)
    first = sum(row["found"][:1] == [row["fault"]] for row in broken)
    alarms = sum(not row["right"] for row in sound)
    return (
        f"Of {len(broken)} broken runs the fault is named first or second in {named} ({named / len(broken):.0%}), "
        f"first in {first}. Of {len(sound)} sound runs {alarms} are called broken."
    )


def page(name: str, rows: list[dict[str, Any]], seconds: float) -> str:
    """The results of a bench as a page: rates, confusion table, and every run."""
    commits = (
        f"Thresholds and rules: commit {_last_commit('src/flatclr/doctor')}. Runs of the bench: commit "
        f"{_last_commit(f'benchmarks/doctor/{name}.py')}."
    )
    runs = [
        {**row, "found": ", ".join(row["found"]) or SOUND, "right": "yes" if row["right"] else "no"} for row in rows
    ]
    parts = [
        f"# Bench {_letter(name)} of the doctor",
        f"`python -m benchmarks.doctor run {name}`, then `python -m benchmarks.doctor table {name}`; "
        f"{seconds / 60:.1f} CPU minutes on {where()}.",
        commits,
        summary(rows),
        "## Confusion",
        "Rows: what was wrong. Columns: what was named first.",
        _confusion(rows),
        "## Runs",
        markdown(runs),
    ]
    return "\n\n".join(parts) + "\n"


def again_page(benches: Mapping[str, list[dict[str, Any]]]) -> str:
    """All benches by the rules of today: what they name, and every run in which that is wrong."""
    wrong = [
        {"bench": _letter(name), "run": row["run"], "fault": row["fault"], "found": ", ".join(row["found"]) or SOUND}
        for name, rows in benches.items()
        for row in rows
        if not row["right"]
    ]
    parts = [
        "# The benches of the doctor by the rules of today",
        "`python -m benchmarks.doctor again` judges the runs that were kept. **The rules have seen these runs**, but "
        "for those of a bench that was made after them: what was wrong was mended, so these rates say that the mends "
        "hold, and not how often the doctor is right. That is on the page that each bench got when it was judged, "
        "once, by rules that had not seen it.",
        f"Rules: commit {_last_commit('src/flatclr/doctor')}.",
        "\n".join(f"- Bench {_letter(name)}: {summary(rows)}" for name, rows in benches.items()),
        "## Runs that are judged wrongly",
        markdown(wrong),
    ]
    return "\n\n".join(parts) + "\n"


def _confusion(rows: list[dict[str, Any]]) -> str:
    counted = Counter((row["fault"], (row["found"] or [SOUND])[0]) for row in rows)
    names = list(dict.fromkeys([row["fault"] for row in rows] + [first for _, first in counted]))
    table = [
        {"": fault, **{name: counted.get((fault, name), "") for name in names}}
        for fault in dict.fromkeys(row["fault"] for row in rows)
    ]
    return markdown(table)


def _letter(name: str) -> str:
    return name[-1].upper()


def _last_commit(path: str) -> str:
    done = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
