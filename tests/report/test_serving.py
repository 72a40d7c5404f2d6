"""What `flatclr watch` serves: the runs of a folder, to who knows the address, and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatclr.report.serving import Server, Watched
from tests.support.reports import ROWS, Elements, log_row, new_run, only


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    new_run(tmp_path / "runs" / "a", ROWS)
    new_run(tmp_path / "runs" / "more" / "b c", [only(row, "knn") for row in ROWS], batch_size=64)
    made = Server(tmp_path / "runs")
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def asked(address: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def test_the_folder_and_its_runs_have_pages(server: Server) -> None:
    status, page, headers = asked(server.address)
    assert status == 200
    assert headers["Referrer-Policy"] == "no-referrer"
    Elements(page.decode())
    assert 'href="run/more%2Fb%20c"' in page.decode()
    assert b"b c" in asked(f"{server.address}run/more%2Fb%20c")[1]
    _, library, headers = asked(f"{server.address}plotly.js")
    assert headers["Content-Encoding"] == "gzip"
    assert b"plotly.js v" in gzip.decompress(library)[:200]
    news = json.loads(asked(f"{server.address}data?show=a")[1])
    assert [curve["label"] for curve in news["data"]["panels"]["loss"]["curves"]] == ["a"]


def test_nothing_is_said_without_the_token_or_outside_of_the_folder(server: Server, tmp_path: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    base = server.address.removesuffix(f"{server.token}/")
    for path in ("", "x/", f"{server.token}x/", f"{server.token}/run/", f"{server.token}/run/gone"):
        assert asked(base + path)[0] == 404
    new_run(tmp_path / "outside", ROWS)
    for name in ("..%2Foutside", "%2Fetc%2Fpasswd", "..", "a%2F..%2F..%2Foutside"):
        assert asked(f"{server.address}run/{name}")[0] == 404
    request = urllib.request.Request(server.address, data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(request, timeout=20)


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside, folder = new_run(tmp_path / "outside", ROWS).path, tmp_path / "runs"
    new_run(folder / "mine", ROWS)
    (folder / "whole").symlink_to(outside)
    round_about = new_run(folder / "round", ROWS).path / "pictures.json"
    round_about.symlink_to(round_about)
    for name in ("metrics.jsonl", "environment.json", "evaluation"):
        sly = new_run(folder / f"sly-{name}", ROWS).path
        (sly / name).unlink(missing_ok=True)
        (sly / name).symlink_to(outside / name)
    assert list(Watched(folder).records()) == ["mine"]


def test_watching_writes_nothing(server: Server, tmp_path: Path) -> None:
    def contents() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}

    before = contents()
    for path in ("", "data?show=a", "run/a", "news/a"):
        assert asked(server.address + path)[0] == 200
    assert contents() == before


def test_what_has_not_changed_is_not_sent_again(server: Server, tmp_path: Path) -> None:
    status, _, headers = asked(f"{server.address}news/a")
    assert status == 200
    assert asked(f"{server.address}news/a", **{"If-None-Match": headers["ETag"]})[0] == 304
    with (tmp_path / "runs" / "a" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(log_row(30)) + "\n")
    assert asked(f"{server.address}news/a", **{"If-None-Match": headers["ETag"]})[0] == 200


def test_metrics_are_read_on_from_where_they_were_and_anew_where_they_were_replaced(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs" / "a", [log_row(10)])
    watched = Watched(tmp_path / "runs")

    def steps() -> list[int]:
        return [row["step"] for row in watched.records()["a"].rows]

    assert steps() == [10]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(log_row(20)) + '\n{"step": 30, "ki')
    assert steps() == [10, 20]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('nd": "log"}\n')
    assert steps() == [10, 20, 30]
    run.drop_metrics_after(10)
    assert steps() == [10]
    (run.path / "config.yaml").write_text("[")  # half written
    assert steps() == [10]


def test_two_hundred_runs_are_listed_quickly(tmp_path: Path) -> None:
    rows = "".join(json.dumps(log_row(step)) + "\n" for step in range(1, 51))
    first = new_run(tmp_path / "runs" / "0", []).path
    settings = (first / "config.yaml").read_bytes()
    for number in range(200):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_bytes(settings)
        (folder / "metrics.jsonl").write_text(rows)
    server = Server(tmp_path / "runs")
    page = server.site.answer("", {})
    assert page is not None
    assert page.content.count(b"<tr data-run=") == 200
    assert len(page.content) < 2_000_000
    began = time.process_time()
    assert server.site.answer("data", {"show": ["0,1"]}) is not None
    assert time.process_time() - began < 1.5  # nothing is read twice
    server.server_close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes begun in the background of a shell do not hear of interrupts, nor do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    new_run(tmp_path / "runs" / "a", ROWS)
    command = [sys.executable, "-m", "flatclr", "watch", str(tmp_path / "runs"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    watchdog = threading.Timer(120, process.kill)  # a line that never comes would be waited for without end
    watchdog.start()
    told = json.loads(process.stdout.readline())
    watchdog.cancel()
    assert told["runs"] == 1
    assert asked(told["address"])[0] == 200
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said == "flatclr: no longer watching.\n"
    assert process.returncode == 0
