"""Pages in a real browser: figures are drawn and answer the mouse, runs overlay, news arrive, nothing leaks out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatclr.report.page import comparison_page, write_report
from flatclr.report.runs_view import Comparison, records_of
from flatclr.report.serving import Server
from flatclr.runs import RunDirectory
from tests.support.browser import MISSING, Browser, Page, chromium, open_browser
from tests.support.reports import evaluation_row, log_row, new_run, pictures

pytestmark = [pytest.mark.browser, pytest.mark.skipif(chromium() is None, reason=MISSING)]

ROWS = [evaluation_row(0, 0.6), *(log_row(step) for step in range(10, 310, 10)), evaluation_row(300, 0.8)]
WIDTHS = (1440, 390)
BUTTONS = "[...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title).join('|')"
HARMLESS = {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}  # plotly has one that uploads the chart
EMPTY = "[...document.querySelectorAll('[data-panel]')].filter(e => !e.data || !e.querySelector('.main-svg')).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = new_run(tmp_path_factory.mktemp("runs") / "mine", ROWS)
    run.note({"steps_per_epoch": 100, "test_samples": 500, "total_steps": 300})
    run.write_json("pictures.json", pictures())
    return write_report(run.path)


def hovered(page: Page, selector: str, x: float = 0.5, y: float = 0.5) -> None:
    """Point at a place of an element, by shares of its width and height."""
    page.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    box = page.run(f"JSON.parse(JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect()))")
    for shift in (3, 0):  # a mouse comes from somewhere
        page.point(box["x"] + x * box["width"] - shift, box["y"] + y * box["height"])


def brightness(page: Page, colour: str) -> int:
    """Of a colour as scripts write it, 0 to 3 * 255."""
    return sum(map(int, page.run(f"{colour}.match(/\\d+/g).join()").split(",")[:3]))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_run_can_be_read_and_pointed_at(browser: Browser, report: Path, width: int) -> None:
    with browser.page(width=width) as page:
        page.open(report)
        assert page.run(EMPTY) == 0
        assert page.run("document.querySelectorAll('[data-panel]').length") > 10
        assert page.run("document.documentElement.scrollWidth") <= width
        assert set(page.run(BUTTONS).split("|")) <= HARMLESS
        for dark in (False, True):
            page.shade(dark=dark)
            paper = brightness(page, "getComputedStyle(document.body).backgroundColor")
            for ink in (
                "getComputedStyle(document.body).color",
                "getComputedStyle(document.querySelector('[data-panel=loss] .xtick text')).fill",
            ):
                apart = brightness(page, ink) - paper
                assert abs(apart) > 3 * 100
                assert (apart > 0) is dark
        hovered(page, "[data-panel=loss] .nsewdrag")
        page.wait("document.querySelector('[data-panel=loss] .hoverlayer').textContent.includes('loss')")
        hovered(page, "#map .points path.point")
        page.wait("document.getElementById('glance').style.display === 'block'")
        assert page.run("document.querySelector('#glance span').textContent") == "cat"
        assert page.problems == []
        assert page.hosts == set()


def test_smoothing_axes_and_scales_can_be_chosen(browser: Browser, report: Path) -> None:
    with browser.page() as page:
        page.open(report)
        loss = "document.querySelector('[data-panel=loss]')"
        assert page.run(f"{loss}.data.length") == 2  # the raw line behind the smooth one
        page.run(
            "const s = document.getElementById('smoothing'); s.value = 0; s.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert page.run(f"{loss}.data.length") == 1
        page.run(
            "const a = document.getElementById('axis'); a.value = 'epoch'; a.dispatchEvent(new Event('change', {bubbles: true}))"
        )
        assert page.run(f"Math.max(...{loss}.data[0].x)") == 3
        page.run("document.querySelector('[data-log=loss]').click()")
        assert page.run(f"{loss}.layout.yaxis.type") == "log"
        assert page.run(f"{loss}.querySelectorAll('.ytick').length") >= 2
        assert page.problems == []


def test_two_runs_overlay_and_their_table_sorts(browser: Browser, tmp_path: Path) -> None:
    for name, knn, batch in (("a", 0.7, 32), ("b", 0.8, 64)):
        new_run(tmp_path / name, [*ROWS[:-1], evaluation_row(300, knn)], batch_size=batch)
    page_file = tmp_path / "several.html"
    page_file.write_text(comparison_page(Comparison.of(records_of([tmp_path / "a", tmp_path / "b"])), "runs"))
    drawn = "new Set(document.querySelector('[data-panel=loss]').data.map(t => t.name)).size"
    names = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[1].textContent).join()"
    with browser.page(width=390) as page:
        page.open(page_file)
        assert page.run(drawn) == 2
        assert page.run(names) == "b,a"
        page.run("document.querySelector('#runs thead th:nth-child(2)').click()")
        page.run("document.querySelector('#runs thead th:nth-child(2)').click()")
        assert page.run(names) == "a,b"
        page.run("document.querySelector('[data-show=\"1\"]').click()")
        assert page.run(drawn) == 1
        page.run(
            "const s = document.getElementById('search'); s.value = 'batch_size=64'; s.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert page.run("document.querySelectorAll('#runs tbody tr:not([hidden])').length") == 1
        assert page.run("document.querySelectorAll('#parallel .axis-title').length") >= 2
        assert set(page.run(BUTTONS).split("|")) <= HARMLESS
        assert page.run("document.documentElement.scrollWidth") <= 390
        assert page.problems == []
        assert page.hosts == set()


def test_news_of_runs_arrive_while_the_page_is_open(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatclr.report.serving.EVERY_MS", 100)
    run: RunDirectory = new_run(tmp_path / "first", ROWS[:10])
    server = Server(tmp_path)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    last = "Math.max(...document.querySelector('[data-panel=loss]').data.at(-1).x)"
    try:
        with browser.page() as page:
            page.open(server.address)
            assert page.run(last) == 90
            run.append_metrics(log_row(777))
            page.wait(f"{last} === 777")
            new_run(tmp_path / "second", ROWS, batch_size=64)
            page.wait("document.querySelectorAll('#runs tbody tr').length === 2")
            page.run("document.querySelector('#runs a').click()")
            page.wait(
                "document.querySelector('h1')?.textContent.startsWith('first') || document.querySelector('h1')?.textContent.startsWith('second')"
            )
            page.open(f"{server.address}run/first")
            run.append_metrics(log_row(888))
            page.wait(f"{last} === 888")
            (run.path / "encoder.safetensors").touch()
            page.wait(
                "document.querySelector('h1').textContent.includes('finished') && !document.querySelector('h1').textContent.includes('not')"
            )
            assert page.problems == []
            assert page.hosts == {server.address.split("/")[2]}
            server.shutdown()
            server.server_close()
            page.wait("document.getElementById('connection').textContent.includes('does not answer')")
    finally:
        server.shutdown()
        server.server_close()
