"""How often the doctor is right: of broken runs, whether the fault is named first or second; of sound ones, whether
nothing is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flatclr.doctor.diagnosis import Diagnosis
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.examination import diagnose

HEALTHY = "nothing"


def examined(record: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis of a run that was kept."""
    return diagnose(Evidence(record["rows"], record["settings"]))


def judged(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run: what was wrong, what was found, and whether that is right."""
    rows = []
    for record in records:
        found = [finding.name for finding in examined(record).findings]
        fault = record["fault"]
        right = not found if fault is None else fault in found[:2]
        rows.append({"run": record["case"], "fault": fault or HEALTHY, "found": found, "right": right})
    return rows
