"""The literature's experiments: what each claims, run again and judged by a criterion written before."""

from flatclr.studies.entry import Progress, StudyResult, run
from flatclr.studies.execution import Ended
from flatclr.studies.experiments import STUDIES, load_study
from flatclr.studies.judging import Verdict
from flatclr.studies.study import Claim, Found, Job, Kept, Plan, Run, Study

__all__ = [
    "STUDIES",
    "Claim",
    "Ended",
    "Found",
    "Job",
    "Kept",
    "Plan",
    "Progress",
    "Run",
    "Study",
    "StudyResult",
    "Verdict",
    "load_study",
    "run",
]
