"""A study from its name to its page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flatclr.checks import checked_device, require_count, require_number, require_one_of
from flatclr.files import require_place
from flatclr.runs import machine
from flatclr.studies.execution import Ended, Site, execute, threads_for
from flatclr.studies.experiments import STUDIES, load_study
from flatclr.studies.judging import Verdict
from flatclr.studies.keeping import find
from flatclr.studies.pages import COMMAND, PAGE, judge, require_same_size, write_overview, write_page
from flatclr.studies.study import Found, Plan, Row, Run, Study
from flatclr.studies.training_runs import require_data
from flatclr.training.stopping import StopRequest

HOME, QUICK_HOME = Path("runs/studies"), Path("runs/studies-quick")


@dataclass(frozen=True)
class Size:
    """How large a study is asked to be."""

    seeds: range
    quick: bool
    options: Mapping[str, float | str]


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Args:
        done: finished runs, those of earlier calls included.
        total: planned runs; more may follow from what these find.
        ended: the run that has just ended; None at the start.
    """

    done: int
    total: int
    ended: Ended | None = None


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Args:
        study: the study with its claims.
        table: a row per arm.
        verdicts: one for each of `study.claims`.
        figures: the files by name.
        page: the file that holds it all.
        overview: the file with every claim of the literature.
        found: the numbers of every finished run.
        planned: how many runs there are to be.
        failed: runs that ended without numbers, by name, and why.
    """

    study: Study
    table: list[Row]
    verdicts: list[Verdict]
    figures: dict[str, Path]
    page: Path
    overview: Path
    found: Found
    planned: int
    failed: dict[str, str]

    @property
    def complete(self) -> bool:
        """Whether every planned run is finished."""
        return len(self.found) == self.planned


def run(
    name: str,
    *,
    quick: bool = False,
    device: str = "auto",
    seeds: int | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    options: Mapping[str, float | str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: StopRequest | None = None,
) -> StudyResult:
    """Make a study: the runs that are missing, then the table, the figures, the verdicts and the page.

    Every finished run is kept as a file at once, so a study that was killed goes on where it was.

    Args:
        name: of the study; `flatclr study list` names them.
        quick: a smoke test of the same code in seconds, which says nothing of the claims.
        device: "cpu", "cuda", "cuda:1", or "auto": cuda where there is one.
        seeds: how many; None: those of the study.
        out: the folder of all studies, in which this one has a folder of its name; None: runs/studies.
        jobs: how many runs share the device, each in a process of its own.
        minutes: after which no run is begun, and those that can go on later are stopped; None: no limit.
        options: of the study, by name, to change; `load_study(name).options` has them all.
        progress: called when a run ends.
        stop: once asked, no run is begun, and those at work stop; training runs save what they need to go on.

    Returns:
        Table, verdicts, figures and numbers.

    Raises:
        ValueError: for an unknown name, a number out of range, data that cannot be read, or a folder that holds other
            runs under these names.
        FileNotFoundError: for data that is not there.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> result = flatclr.studies.run("cost", out=folder.name)
    >>> result.verdicts[0].word
    'cannot be told here'
    >>> folder.cleanup()
    """
    study = load_study(name)
    require_count("jobs", jobs, advice="1 makes one run after another.")
    if seeds is not None:
        require_count("seeds", seeds, advice="the study has a number of its own; leave it out.")
    if minutes is not None:
        require_number("minutes", minutes, above=0)
    chosen = str(checked_device(device))
    home = (require_place(out) if out is not None else QUICK_HOME if quick else HOME) / study.name
    if home.parent.exists() and not home.parent.is_dir():
        raise ValueError(f"out must be a folder, got the file {home.parent}; name another.")
    require_same_size(home, quick=quick)
    deadline = None if minutes is None else time.time() + 60 * minutes
    sized = Size(
        range((1 if quick else study.seeds) if seeds is None else seeds), quick, _options(study, options or {})
    )
    environment = {**machine(), "device": chosen, "jobs": jobs}
    site = Site(home, chosen, threads_for(jobs), deadline, environment)
    planned, found, failed = _made(study, site, sized, jobs=jobs, tell=progress or _nobody, stop=stop or StopRequest())
    verdicts = judge(study, planned, found)
    command = _command(study, sized, out)
    figures = write_page(study, home, planned, found, verdicts, command=command, quick=quick)
    overview = write_overview(home.parent, [load_study(other) for other in STUDIES])
    table = study.table(found) if len(found) else []
    return StudyResult(study, table, verdicts, figures, home / PAGE, overview, found, len(planned), failed)


def _made(
    study: Study, site: Site, size: Size, *, jobs: int, tell: Callable[[Progress], None], stop: StopRequest
) -> tuple[list[Run], Found, dict[str, str]]:
    """All runs, those that follow from what others found included, as far as time and luck allow."""
    failed: dict[str, str] = {}
    begun: set[str] = set()
    planned, found = _planned(study, site, size)
    if not site.late:  # else none is begun, and the page is of what there is
        require_data([run for run in planned if run.name not in found])
    site.home.mkdir(parents=True, exist_ok=True)  # before any work: a place that cannot be is said at once
    tell(Progress(len(found), len(planned)))

    def next_run() -> Run | None:
        """The first that is missing by what is known now, so that what a run decides need not wait for the others."""
        nonlocal planned, found
        planned, found = _planned(study, site, size)
        run = next((run for run in planned if run.name not in found and run.name not in begun), None)
        if run is not None:
            begun.add(run.name)
        return run

    for done, ended in enumerate(execute(next_run, site, jobs=jobs, stop=stop), start=len(found) + 1):
        tell(Progress(done, len(planned), ended))
        if ended.problem and not ended.stopped:
            failed[ended.run] = ended.problem
    return *_planned(study, site, size), failed


def _planned(study: Study, site: Site, size: Size) -> tuple[list[Run], Found]:
    """The plan and what there is of it; later runs may depend on earlier ones, so it is asked until it is the same.

    Runs that are not asked for are in it where they are kept.
    """
    found = Found()
    while True:
        planned = study.plan(Plan(size.seeds, size.quick, found, size.options))
        there = find(site.home, planned)
        if len(there) <= len(found):  # fewer: a plan that takes back what it has seen would be asked for ever
            return [run for run in planned if run.asked or run.name in there], there
        found = there


def _options(study: Study, given: Mapping[str, float | str]) -> dict[str, float | str]:
    """Those of the study with what is given in their place."""
    for name, value in given.items():
        if not study.options:
            raise ValueError(f"{study.name} must be run without options, got {name!r}; it has none.")
        require_one_of(f"option of {study.name}", name, study.options)
        if isinstance(study.options[name], str) != isinstance(value, str):
            kind = "a text" if isinstance(study.options[name], str) else "a number"
            raise ValueError(f"{name} must be {kind}, got {value!r}; say {name}={study.options[name]}.")
    return {**study.options, **given}


def _command(study: Study, size: Size, out: str | Path | None) -> str:
    """What makes the same again."""
    parts = [*COMMAND.split(), study.name]
    parts += ["--quick"] if size.quick else []
    parts += ["--seeds", str(len(size.seeds))] if len(size.seeds) != (1 if size.quick else study.seeds) else []
    changed = {name: value for name, value in size.options.items() if value != study.options[name]}
    parts += [part for name, value in changed.items() for part in ("--set", f"{name}={value}")]
    parts += ["--out", str(out)] if out is not None and not Path(out).is_absolute() else []
    return shlex.join(parts)


def _nobody(_: Progress) -> None: ...
