"""report.html: one page about one run or several, which needs nothing but itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flatclr.extras import needed
from flatclr.files import json_ready, replace_files
from flatclr.report.bundle import plotly_inline
from flatclr.report.reading import RunRecord
from flatclr.report.run_view import run_view, script_data
from flatclr.report.runs_view import Comparison, Link, runs_data, runs_view
from flatclr.runs import REPORT, RunDirectory

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def write_report(path: str | Path, *, pictures_note: str = "") -> Path:
    """Write `report.html` into a run directory, finished or not.

    Args:
        path: of the run.
        pictures_note: what the page says of its pictures.

    Returns:
        The page.

    Raises:
        FileNotFoundError: where there is no run.
        ImportError: plotly is not installed.
    """
    run = RunDirectory.open(Path(path))
    page = run_page(RunRecord.read(run.path), pictures_note=pictures_note)
    target = run.path / REPORT
    replace_files({target: page.encode()})
    return target


def run_page(record: RunRecord, *, pictures_note: str = "", live: Mapping[str, Any] | None = None) -> str:
    """The page of a run as text; `live` says where a served one asks for news."""
    view = run_view(record, pictures_note=pictures_note)
    fragments = run_fragments(record.name, view)
    return rendered("run.html", record.name, script_data(record), live, run=view, fragments=fragments)


def run_fragments(title: str, view: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a run's page that change while it goes on."""
    parts = _parts()
    return {
        "head": parts.run_head(title, view),
        "verdict": parts.verdict(view["diagnosis"], view["alarms"]),
        "tiles": parts.tiles(view["tiles"]),
        "evaluations": parts.evaluations(view["evaluations"]),
        "figures": parts.figures(view["groups"]),
    }


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write one page about several runs; returns it.

    Raises:
        ImportError: plotly is not installed.
    """
    folder = out.resolve().parent

    def link(record: RunRecord) -> str | None:
        page = record.path.resolve() / REPORT
        return quote(os.path.relpath(page, folder)) if page.is_file() else None

    page = comparison_page(comparison, folder.name, link=link)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_files({out: page.encode()})
    return out


def comparison_page(
    comparison: Comparison,
    title: str,
    *,
    live: Mapping[str, Any] | None = None,
    link: Link | None = None,
    shown: Sequence[str] | None = None,
) -> str:
    """The page of several runs as text.

    Args:
        comparison: of the runs.
        title: of the page.
        live: says where a served page asks for news.
        link: from a run to the address of its own page.
        shown: names of the runs whose curves it holds; None: of all.
    """
    fragments = comparison_fragments(runs_view(comparison, link=link))
    return rendered("runs.html", title, runs_data(comparison, shown=shown), live, fragments=fragments)


def comparison_fragments(view: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page that change while runs go on."""
    parts = _parts()
    return {
        "head": parts.faint(view["summary"]),
        "ranking": parts.ranking(view["ranking"]),
        "differing": parts.differing(view["differing"]),
        "table": parts.run_table(view["table"]),
        "seeds": parts.seeds(view["groups_table"]),
        "figures": parts.figures(view["groups"]),
    }


def rendered(template: str, title: str, data: Mapping[str, Any], live: Mapping[str, Any] | None, **view: Any) -> str:
    """A page from its template, with everything it takes inside."""
    return (
        templates()
        .get_template(template)
        .render(
            title=title,
            version=sys.modules["flatclr"].__version__,
            css=_file("page.css"),
            js=_file("page.js"),
            plotly="" if live else plotly_inline(),
            data={**data, "live": live},
            live=live,
            **view,
        )
    )


@lru_cache(maxsize=1)
def templates() -> Environment:
    jinja2 = needed("jinja2", by="a report page")
    made: Environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["script_json"] = script_json
    return made


def _parts() -> Any:
    return templates().get_template("parts.html").module


@lru_cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def script_json(content: Any) -> str:
    """JSON that may stand in a <script>: nothing in it ends the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(json_ready(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
