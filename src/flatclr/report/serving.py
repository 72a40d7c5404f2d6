"""`flatclr watch`: the pages of a folder of runs, served while the runs go on. Nothing is written."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import socketserver
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from flatclr.evaluation.results import RESULTS
from flatclr.files import json_ready, parse_json
from flatclr.report.bundle import plotly_gzipped
from flatclr.report.page import comparison_fragments, comparison_page, run_fragments, run_page
from flatclr.report.reading import RunRecord, find_runs, state_of
from flatclr.report.run_view import run_view, script_data
from flatclr.report.runs_view import DRAWN, Comparison, runs_data, runs_view
from flatclr.runs import CONFIG, ENVIRONMENT, EVALUATION, METRICS, PICTURES, RunDirectory

EVERY_MS = 2_000  # between two questions of a page
IDLE_S = 60.0  # after which a connection is given up that asks for nothing, or takes nothing
START_S = 120.0  # in which a process of its own begins to serve
LOCAL = "127.0.0.1"
NOTHING = "Nothing is here."
READ = (CONFIG, ENVIRONMENT, METRICS, PICTURES, EVALUATION, f"{EVALUATION}/{RESULTS}", RESULTS)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Stamp = tuple[tuple[int, int] | None, ...]


class Watched:
    """The runs of a folder as they are now; what has not changed is not read again.

    Args:
        root: the folder, or one run.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def records(self) -> dict[str, RunRecord]:
        """By name: the path below the folder."""
        with self._lock:
            found = {self._name(path): path for path in find_runs(self.root) if self._is_inside(path)}
            for name in set(self._known) - set(found):
                del self._known[name]
            for name, path in found.items():
                self._known.setdefault(name, _Known(path, name)).refresh()
            return {name: known.record for name, known in self._known.items() if known.record is not None}

    def _name(self, path: Path) -> str:
        return path.name if path == self.root else str(path.relative_to(self.root))

    def _is_inside(self, run: Path) -> bool:
        """Whether all that is read of a run lies in the folder, wherever links point."""
        try:
            return all(path.resolve().is_relative_to(self.root) for path in (run, *(run / name for name in READ)))
        except (OSError, RuntimeError):  # links in a circle
            return False


@dataclass
class _Known:
    """A run with what was read of it, and when that was written."""

    path: Path
    name: str
    record: RunRecord | None = None
    stamp: Stamp = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    read_to: int = 0
    file: int = 0

    def refresh(self) -> None:
        stamp = tuple(_stamp(self.path / name) for name in READ)
        try:
            if stamp != self.stamp:
                self._read_metrics()
                rows = [row for row in self.rows if isinstance(row.get("step", 0), int | float)]
                self.record = RunRecord.read(self.path, name=self.name, with_pictures=False, rows=rows)
                self.stamp = stamp
            elif self.record is not None:
                state = state_of(RunDirectory(self.path))
                if state != self.record.state:
                    self.record = replace(self.record, state=state)
        except (OSError, ValueError):  # half written, or gone: the next look may find it whole
            self.stamp = ()

    def _read_metrics(self) -> None:
        """The lines that are new; all of them where the file is another one."""
        path = self.path / METRICS
        if not path.is_file():
            self.rows, self.read_to = [], 0
            return
        status = path.stat()
        if status.st_ino != self.file or status.st_size < self.read_to:
            self.rows, self.read_to, self.file = [], 0, status.st_ino
        with path.open("rb") as file:
            file.seek(self.read_to)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.read_to += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                row = parse_json(line.decode(errors="replace"))
            except ValueError:
                continue
            if isinstance(row, dict):
                self.rows.append(row)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    content: bytes
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Site:
    """The pages of a folder, by address.

    Args:
        root: the folder of runs.
    """

    def __init__(self, root: Path) -> None:
        self.watched = Watched(root)

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Answer | None:
        """What stands at a path below the token; None where nothing does."""
        first, _, name = path.partition("/")
        if first == "" and not name:
            return self._home()
        if path == "data":
            return self._news(query.get("show", [""])[0])
        if path == "plotly.js":
            headers = {"Content-Encoding": "gzip", "Cache-Control": "max-age=86400, immutable"}
            return Answer(plotly_gzipped(), "text/javascript; charset=utf-8", headers)
        record = self.watched.records().get(unquote(name)) if first in ("run", "news") else None
        if record is None:
            return None
        return self._run(record) if first == "run" else self._run_news(record)

    def _comparison(self) -> Comparison:
        return Comparison.of(list(self.watched.records().values()))

    def _home(self) -> Answer:
        comparison = self._comparison()
        shown = [record.name for record in comparison.records[:DRAWN]]
        live = {"plotly": "plotly.js", "home": ".", "data": "data", "every": EVERY_MS}
        return _page(comparison_page(comparison, self.watched.root.name, live=live, link=_link, shown=shown))

    def _news(self, shown: str) -> Answer:
        comparison = self._comparison()
        names = [unquote(name) for name in shown.split(",") if name]
        return _json(
            {
                "data": runs_data(comparison, shown=names),
                "fragments": comparison_fragments(runs_view(comparison, link=_link)),
            }
        )

    def _run(self, record: RunRecord) -> Answer:
        whole = RunRecord.read(record.path, name=record.name, rows=record.rows)
        news = f"../news/{quote(record.name, safe='')}"
        live = {"plotly": "../plotly.js", "home": "../", "data": news, "every": EVERY_MS}
        return _page(run_page(whole, live=live))

    def _run_news(self, record: RunRecord) -> Answer:
        data = {**script_data(record), "pictures": _stamp(record.path / PICTURES)}
        return _json({"data": data, "fragments": run_fragments(record.name, run_view(record))})


def _link(record: RunRecord) -> str:
    return f"run/{quote(record.name, safe='')}"


def _page(text: str) -> Answer:
    return Answer(text.encode(), "text/html; charset=utf-8")


def _json(content: Any) -> Answer:
    return Answer(json.dumps(json_ready(content), separators=(",", ":")).encode(), "application/json")


class Server(ThreadingHTTPServer):
    """Serves a folder of runs at an address with a random token; who does not know it sees nothing.

    Args:
        root: the folder.
        host: of the interface.
        port: 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 64  # a browser opens several connections at once

    def __init__(self, root: Path, *, host: str = LOCAL, port: int = 0) -> None:
        self.site, self.token = Site(root), secrets.token_urlsafe(16)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"host and port must be free to serve at, got {host}:{port} ({reason}); try --port 0."
            ) from None

    @cached_property
    def address(self) -> str:
        host = self.server_address[0]
        host = host.decode() if isinstance(host, bytes) else str(host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.server_address[1]}/{self.token}/"

    def server_bind(self) -> None:
        """Without the look at the name of this machine that HTTPServer takes, which can last."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was answered is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "flatclr", ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        token, _, rest = address.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._say(HTTPStatus.NOT_FOUND, NOTHING)
            return
        try:
            answer = self.server.site.answer(rest, parse_qs(address.query))
        except Exception as error:  # one page that fails must not be the end of the others
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            return
        if answer is None:
            self._say(HTTPStatus.NOT_FOUND, NOTHING)
            return
        tag = f'"{hashlib.sha256(answer.content).hexdigest()[:20]}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, replace(answer, content=b""), tag)
        else:
            self._send(HTTPStatus.OK, answer, tag)

    def _say(self, status: HTTPStatus, line: str) -> None:
        self._send(status, Answer(f"{line}\n".encode(), "text/plain; charset=utf-8"))

    def _send(self, status: HTTPStatus, answer: Answer, tag: str | None = None) -> None:
        self.send_response(status)
        headers = {**HEADERS, **answer.headers, "Content-Type": answer.kind, "Content-Length": str(len(answer.content))}
        for name, value in headers.items() | ({"ETag": tag}.items() if tag else set()):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not told of."""


def watched_beside(root: Path) -> str:
    """Serve a folder from a process of its own until this one ends; returns the address.

    A process, not a thread: a step that launches kernels would wait for every answer.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    context.Process(target=_serve_beside, args=(root, theirs), daemon=True).start()
    theirs.close()
    try:
        address: str | None = ours.recv() if ours.poll(START_S) else None
    except EOFError:
        address = None
    if address is None:
        raise RuntimeError("the process that serves the page must start, got none; use flatclr watch instead.")
    return address


def _serve_beside(root: Path, told: Connection[str, None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, meant for the run
    parent = os.getppid()
    with Server(root) as server:
        told.send(server.address)
        server.timeout = 1.0
        while os.getppid() == parent:  # a killed one cannot end this one
            server.handle_request()
