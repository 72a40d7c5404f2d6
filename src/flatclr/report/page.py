"""report.html: one page about one run, which needs nothing but itself."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flatclr.files import parse_json, replace_files
from flatclr.plots import inline_svg
from flatclr.report.figures import PANELS, Panel, Rows, available, draw_panels, number
from flatclr.runs import ENVIRONMENT, REPORT, RunDirectory
from flatclr.training.config import describe_settings
from flatclr.training.settings import BY_DEFAULT

ALARMS = {
    "beta_clamped": "beta was at a clamp: the target cannot be reached within the limits, so move the target or them",
    "collapsed": "the embeddings had collapsed: lower the learning rate",
}
EVALUATED = {  # key: label, format
    "knn": ("kNN accuracy", "{:.1%}"),
    "retrieval_at_1": ("retrieval at 1", "{:.1%}"),
    "effective_rank": ("effective rank", "{:.1f}"),
    "pool_mi_nats": ("pool MI at the training beta, nats", "{:.3f}"),
    "pool_mi_best_nats": ("pool MI at the best beta, nats", "{:.3f}"),
    "pool_best_beta": ("best beta", "{:g}"),
    "pool_ceiling_nats": ("ceiling of pool MI, nats", "{:.3f}"),
    "collision_rate": ("collision rate", "{:.3f}"),
}
CSS = """
:root { color-scheme: light dark; --ink: #24292f; --faint: #5c6670; --page: #ffffff; --line: #d5dae0; --warn: #a33b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe4ea; --faint: #9aa5b1; --page: #15181c; --line: #363c44; --warn: #ffa261; }
}
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.under { color: var(--faint); margin-top: 0.2rem; }
.alarm { color: var(--warn); }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.2rem 1.2rem 0.2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: 0.85rem; }
"""


def write_report(path: str | Path) -> Path:
    """Write `report.html` into a run directory, finished or not; returns where it is."""
    run = RunDirectory.open(Path(path))
    target = run.path / REPORT
    replace_files({target: report_page(run).encode()})
    return target


def report_page(run: RunDirectory) -> str:
    """The page as text."""
    config, rows = run.config(), [row for row in run.metrics() if isinstance(row, dict)]
    name = html.escape(run.path.resolve().name)
    figures = "".join(_figure(panel, rows, config) for panel in available(PANELS, rows))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · FlatCLR</title>
<style>{CSS}</style>
</head>
<body>
<h1>{name}</h1>
<p class="under">{html.escape(_summary(run, config, rows))}</p>
<h2>Last evaluation</h2>
{_evaluation_table(rows)}
<h2>Alarms and bad steps</h2>
{_alarms(rows)}
<h2>Figures</h2>
{f'<div class="figures">{figures}</div>' if figures else "<p>The run has logged nothing yet.</p>"}
<h2>Settings</h2>
{_table(_settings(config))}
<h2>Environment</h2>
{_table(_environment(run).items())}
</body>
</html>
"""


def _summary(run: RunDirectory, config: Mapping[str, Any], rows: Rows) -> str:
    steps = max((row.get("step", 0) for row in rows), default=0)
    encoders = list(run.path.glob("encoder.safetensors")) + list(run.path.glob("encoder_*/encoder.safetensors"))
    state = "finished" if encoders else "not finished: there is no encoder file yet"
    parts = [str(config.get("objective")), f"batch {config.get('batch_size')}", f"{steps:,} steps", *_pace(rows), state]
    return ", ".join(parts)


def _pace(rows: Rows) -> list[str]:
    """Medians over the log; of runs that counted no views, images alone."""
    found = []
    for name in ("images", "views"):
        rates = [number(row[f"{name}_per_second"]) for row in rows if f"{name}_per_second" in row]
        found += [f"{median(rates):,.0f} {name}/s"] if rates else []
    return found


def _figure(panel: Panel, rows: Rows, config: Mapping[str, Any]) -> str:
    picture = inline_svg(draw_panels([panel], rows, config))
    return f"<figure>{picture}<figcaption>{html.escape(panel.caption)}</figcaption></figure>\n"


def _evaluation_table(rows: Rows) -> str:
    evaluations = [row for row in rows if row.get("kind") == "evaluation"]
    if not evaluations:
        return "<p>The run has evaluated nothing yet.</p>"
    first, last = evaluations[0], evaluations[-1]
    shown = [first, last] if first.get("step") == 0 and last is not first else [last]
    lines = ["<th></th>" + "".join(f"<th>{_step(row)}</th>" for row in shown)]
    for key, (label, form) in EVALUATED.items():
        if any(key in row for row in shown):
            cells = "".join(f'<td class="number">{_cell(row.get(key), form)}</td>' for row in shown)
            lines.append(f"<td>{label}</td>{cells}")
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _step(row: Mapping[str, Any]) -> str:
    return "untrained" if row.get("step") == 0 else f"step {row.get('step', 0):,}"


def _alarms(rows: Rows) -> str:
    logged = [row for row in rows if row.get("kind") == "log"]
    lines = []
    for alarm, meaning in ALARMS.items():
        steps = [row.get("step", 0) for row in logged if row.get(alarm) is True]
        if steps:
            where = f"At {len(steps):,} of {len(logged):,} logged steps, first at step {steps[0]:,}"
            lines.append(f'<p class="alarm">{where}, {meaning}.</p>')
    if not lines:
        lines = [f"<p>No alarm at any of the {len(logged):,} logged steps.</p>"]
    bad = max((row.get("bad_steps", 0) for row in logged), default=0)
    kind = ' class="alarm"' if bad else ""
    return "".join(lines) + f"<p{kind}>Steps skipped because loss or gradient was not finite: {bad:,}.</p>"


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """With what holds where a setting has no value."""
    meaning = {row.name: row.help.removesuffix(".").partition(BY_DEFAULT)[2] for row in describe_settings()}
    for name, value in config.items():
        yield name, meaning.get(name) or "none" if value is None else value


def _environment(run: RunDirectory) -> dict[str, Any]:
    path = run.path / ENVIRONMENT
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {ENVIRONMENT: "missing or unreadable"}
    return content if isinstance(content, dict) else {ENVIRONMENT: "unreadable"}


def _table(items: Iterable[tuple[str, Any]]) -> str:
    rows = (f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(_text(v))}</td></tr>" for k, v in items)
    return f"<table>{''.join(rows)}</table>"


def _text(value: Any) -> str:
    return (
        json.dumps(value) if isinstance(value, Mapping | Sequence | bool) and not isinstance(value, str) else str(value)
    )


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "not measured"
    return form.format(value) if isinstance(value, int | float) else html.escape(str(value))
