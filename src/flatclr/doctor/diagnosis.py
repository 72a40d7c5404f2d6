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
            findings are ordered. Where `price` says what it costs instead, it is but a place in that order.
        evidence: the numbers that show it.
        cause: why they are as they are, in a sentence.
        remedy: what to change, in a sentence.
        command: the change as a command line; None where none does it.
        series: the metrics of metrics.jsonl that show it over the steps.
        price: what it costs, in words, where that is nothing of what the run could have learnt; None elsewhere.
        code: where there is no command, the change as a line of Python for a training loop of one's own; None where no
            line does it.

    >>> Finding("split_leak", "Test images are seen", 0.6, "", "", "", price="nothing of what was learnt").costs
    'nothing of what was learnt'
    """

    name: str
    title: str
    cost: float
    evidence: str
    cause: str
    remedy: str
    command: str | None = None
    series: tuple[str, ...] = ()
    price: str | None = None
    code: str | None = None

    @property
    def costs(self) -> str:
        """What it costs, in words: its price, or about so much of what could have been learnt."""
        return self.price or f"about {self.cost:.0%}"


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
        shown = self.to_frame().drop(columns=["name", "series", "price", "code"])
        shown["cost"] = [finding.costs for finding in self.findings]
        shown["command"] = [finding.command or finding.code for finding in self.findings]
        table = "" if self.healthy else shown.to_html(index=False, border=0)
        return f"<p>{html.escape(self.verdict)}</p>{table}"
