"""The outcome of an examination."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run.

    Args:
        name: of the fault, the same in every run: a word for programs.
        title: the fault in a few words, for people.
        cost: the share, from 0 to 1, of what the run could have learnt that the fault costs; an estimate, by which
            findings are ordered.
        evidence: the numbers that show it.
        cause: why they are as they are, in a sentence.
        remedy: what to change, in a sentence.
        command: the change as a command line; None where none does it.
        series: the metrics of metrics.jsonl that show it over the steps.
    """

    name: str
    title: str
    cost: float
    evidence: str
    cause: str
    remedy: str
    command: str | None = None
    series: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What an examination found.

    Args:
        verdict: one sentence.
        healthy: whether nothing was found.
        findings: the most costly first.

    >>> diagnosis = Diagnosis("Nothing is wrong.", healthy=True, findings=())
    >>> diagnosis.to_dict()
    {'verdict': 'Nothing is wrong.', 'healthy': True, 'findings': []}
    """

    verdict: str
    healthy: bool
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        found = [asdict(finding) | {"series": list(finding.series)} for finding in self.findings]
        return {"verdict": self.verdict, "healthy": self.healthy, "findings": found}

    def to_frame(self) -> pd.DataFrame:
        """A row for each finding."""
        import pandas as pd

        columns = list(Finding.__dataclass_fields__)
        return pd.DataFrame([asdict(finding) for finding in self.findings], columns=columns)

    def _repr_html_(self) -> str:
        shown = self.to_frame().drop(columns=["name", "series"])
        table = "" if self.healthy else shown.to_html(index=False, float_format="{:.2f}".format, border=0)
        return f"<p>{html.escape(self.verdict)}</p>{table}"
