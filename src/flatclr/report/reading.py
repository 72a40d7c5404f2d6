"""A run as a page shows it: read once from its folder, whatever is missing there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from flatclr.evaluation.intervals import Score, wilson
from flatclr.evaluation.results import Evaluation, read_results
from flatclr.files import parse_json
from flatclr.report.panels import Panel, Rows, number, panels_for, samples_tested
from flatclr.runs import CONFIG, EVALUATION, PICTURES, RESOLVED, RunDirectory, training_minutes
from flatclr.training.config import describe_settings
from flatclr.training.settings import BY_DEFAULT, GROUPS

FINISHED, RUNNING, UNFINISHED = "finished", "running", "not finished"
SHARES = ("knn", "linear", "retrieval_at_1")
ALARMS = {
    "beta_clamped": "beta was at a clamp: the target cannot be reached within the limits, so move the target or them",
    "collapsed": "the embeddings had collapsed: lower the learning rate",
}
BACKWARD = 3  # what a step costs, in passes forward


@dataclass(frozen=True)
class RunRecord:
    """What a folder says of a run.

    Args:
        path: of the folder.
        name: that pages call it by.
        config: its settings.
        asked: those that were left to the run, as they were asked for.
        rows: its metrics.
        environment: where it ran.
        evaluation: what `flatclr eval` found; None where nothing.
        pictures: what is kept of its pictures; None where nothing.
        state: finished, running or not finished.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    rows: Rows
    asked: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    pictures: Mapping[str, Any] | None = None
    state: str = UNFINISHED

    @classmethod
    def read(
        cls, path: Path, *, name: str | None = None, with_pictures: bool = True, rows: Rows | None = None
    ) -> RunRecord:
        """
        Args:
            path: of the folder.
            name: that pages call it by; None: that of the folder.
            with_pictures: whether its pictures are read too.
            rows: its metrics, where they are known already.

        Raises:
            FileNotFoundError: where there is no run.
            ValueError: where its settings are damaged.
        """
        run = RunDirectory.open(path)
        config, asked = run.config_and_asked()
        return cls(
            path,
            path.resolve().name if name is None else name,
            config,
            run.metrics() if rows is None else rows,
            asked,
            run.environment(),
            read_results(path / EVALUATION) or read_results(path),
            _read_pictures(path) if with_pictures else None,
            state_of(run),
        )

    @property
    def resolved(self) -> Mapping[str, Any]:
        """What the run made of its settings and data."""
        found = self.environment.get(RESOLVED)
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The settings, with what the run resolved where they leave it open."""
        known = {name: value for name, value in self.resolved.items() if self.config.get(name) in (None, "auto")}
        return {**self.config, **known}

    @cached_property
    def steps(self) -> int:
        return int(max((number(row.get("step", 0)) for row in self.rows), default=0))

    @property
    def total_steps(self) -> int | None:
        found = self.resolved.get("total_steps")
        return found if isinstance(found, int) else None

    @cached_property
    def clock(self) -> dict[int, float]:
        """Minutes of training by step."""
        batch = self.config.get("batch_size")
        return training_minutes(self.rows, batch if isinstance(batch, int) else 0)

    @property
    def minutes(self) -> float:
        return self.clock[max(self.clock)]

    def rate(self, name: str) -> float:
        """The median over the log, NaN where nothing is logged."""
        rates = [value for row in self.rows if not math.isnan(value := number(row.get(f"{name}_per_second")))]
        return median(rates) if rates else math.nan

    @property
    def multiply_adds(self) -> float:
        """Of training up to here, forward and backward, at the size of whole images; NaN where it is not known."""
        cost, views, batch = (
            number(found)
            for found in (
                self.resolved.get("multiply_adds"),
                self.resolved.get("views_per_sample"),
                self.config.get("batch_size"),
            )
        )
        return BACKWARD * cost * views * batch * self.steps

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row.get("kind") == "evaluation"]

    @property
    def logged(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row.get("kind") == "log"]

    @cached_property
    def _last(self) -> dict[str, float]:
        found = ((key, number(value)) for row in self.rows for key, value in row.items())
        return {key: value for key, value in found if not math.isnan(value)}

    def last(self, key: str) -> float:
        """The last value of a metric, NaN where it was never measured."""
        return self._last.get(key, math.nan)

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """Those that its metrics fill."""
        return panels_for(self.rows)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Its settings as it resolved them, as a file gives them back."""
        return {
            name: plain(self.facts.get(name) if value in (None, "auto") else value)
            for name, value in self.config.items()
        }

    @cached_property
    def words(self) -> dict[str, str]:
        """The same in words."""
        return {name: "none" if value is None else text(value) for name, value in self.values.items()}

    def score(self, key: str, row: Mapping[str, Any]) -> Score:
        """A number of an evaluation, with its interval where it is a share of the test samples."""
        value, samples = number(row.get(key)), samples_tested(self.facts, row)
        if key not in SHARES or samples is None or not 0 <= value <= 1:
            return Score(value, math.nan, math.nan)
        return wilson(value, samples)

    def alarms(self) -> list[str]:
        """What the gauges of the run warned of."""
        logged, lines = self.logged, []
        for alarm, meaning in ALARMS.items():
            steps = [row.get("step", 0) for row in logged if row.get(alarm) is True]
            if steps:
                where = f"At {len(steps):,} of {len(logged):,} logged steps, first at step {steps[0]:,}"
                lines.append(f"{where}, {meaning}.")
        bad = int(max((number(row.get("bad_steps", 0)) for row in logged), default=0) or 0)
        if bad:
            lines.append(f"{bad:,} steps were skipped because loss or gradient was not finite.")
        return lines

    def settings(self) -> Iterator[tuple[str, list[SettingRow]]]:
        """By group, each as it was in the run."""
        described = describe_settings()
        known = {row.name for row in described}
        for group in GROUPS:
            rows = [self._setting(row.name, row.default, row.help) for row in described if row.group == group]
            yield group, [row for row in rows if row.name in self.config]
        others = [SettingRow(name, text(value), "", True) for name, value in self.config.items() if name not in known]
        if others:
            yield "others", others

    def _setting(self, name: str, default: Any, help: str) -> SettingRow:
        meaning, _, otherwise = help.removesuffix(".").partition(BY_DEFAULT)
        value = self.config.get(name)
        shown = self.facts.get(name) if value in (None, "auto") else value
        said = self._overruled(name) or (text(shown) if shown is not None else otherwise or "none")
        return SettingRow(name, said, f"{meaning}.", plain(self.asked.get(name, value)) != plain(default))

    def _overruled(self, name: str) -> str:
        """What holds instead of a setting that another one decides; "" where it holds itself."""
        if name == "ess_target" and self.config.get("temperature") is not None:
            return "no control, the temperature is fixed"
        per_epoch, total = self.resolved.get("steps_per_epoch"), self.total_steps
        if not per_epoch or total is None:
            return ""
        if name == "epochs" and self.config.get("steps") is not None:
            return f"{total / per_epoch:.4g}, by steps"
        return f"{total}, by epochs" if name == "steps" and self.config.get("steps") is None else ""


def state_of(run: RunDirectory) -> str:
    """Finished, running or neither."""
    return FINISHED if run.is_finished else RUNNING if run.is_at_work else UNFINISHED


@dataclass(frozen=True)
class SettingRow:
    """A setting of a run.

    Args:
        name: of the setting.
        value: in words.
        meaning: of the setting.
        is_changed: whether it is another than by default.
    """

    name: str
    value: str
    meaning: str
    is_changed: bool


def text(value: Any) -> str:
    """A setting as a page shows it.

    >>> text([[0, 0.5]]), text(True), text(1e-4)
    ('[[0, 0.5]]', 'true', '0.0001')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, default=str)


def plain(value: Any) -> Any:
    """As a file gives it back, which knows no tuples."""
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else json.loads(json.dumps(value, default=str))


def _read_pictures(path: Path) -> Mapping[str, Any] | None:
    try:
        content = parse_json((path / PICTURES).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def find_runs(folder: Path) -> list[Path]:
    """Every run below a folder, or the folder itself where it is one; what cannot be read is passed over."""
    if (folder / CONFIG).is_file():
        return [folder]
    return sorted(_below(folder, depth=3))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside: Sequence[Path] = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return
    for path in inside:
        if (path / CONFIG).is_file():
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)
