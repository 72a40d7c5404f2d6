"""The tests that need a CUDA device, in processes side by side: most of their time goes into compiling kernels.

python -m scripts.gpu_tests [--processes 11] [PATH ...]

Prints how many passed, failed and were skipped, and the names of those that failed. Exit code 1 where one failed, where
a process ended before its report, or where there was nothing to run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MOST_PROCESSES = 11  # share a GPU and sixteen cores well
OUTCOMES = ("passed", "failed", "skipped")


class Share:
    """Every so-and-so-manieth test, and what became of it."""

    def __init__(self, number: int, processes: int) -> None:
        self.number, self.processes = number, processes
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self.number :: self.processes]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":  # of set-up and tear-down only what went wrong
            self.counts[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid)


def work(number: int, processes: int, report: Path, paths: Sequence[str]) -> int:
    """Run one share, and write its report last."""
    share = Share(number, processes)
    code = pytest.main(["-m", "gpu", "-q", "-p", "no:cacheprovider", *paths], plugins=[share])
    broken = code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    report.write_text(json.dumps({"counts": share.counts, "failed": share.failed, "broken": broken}))
    return int(broken)


def run(processes: int, paths: Sequence[str]) -> int:
    """Run all shares, each with its output in a file that is shown where something went wrong."""
    with tempfile.TemporaryDirectory() as home:
        started = [_start(number, processes, Path(home), paths) for number in range(processes)]
        for process in started:
            process.wait()
        reports = [_report_of(Path(home, f"{number}.json")) for number in range(processes)]
        bad = [number for number, report in enumerate(reports) if report["failed"] or report["broken"]]
        for number in bad:
            print(Path(home, f"{number}.log").read_text(errors="replace"))
    counts = sum((Counter(report["counts"]) for report in reports), Counter[str]())
    print(f"{counts.total()} tests: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    for name in (name for report in reports for name in report["failed"]):
        print(f"failed: {name}")
    if unfinished := sum(report["broken"] for report in reports):
        print(f"{unfinished} of {processes} processes did not come to their end")
    return int(bool(bad) or not counts.total())


def _start(number: int, processes: int, home: Path, paths: Sequence[str]) -> subprocess.Popen[bytes]:
    share = ["--share", str(number), "--report", str(home / f"{number}.json"), "--processes", str(processes)]
    with (home / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.gpu_tests", *share, *paths], stdout=log, stderr=subprocess.STDOUT
        )


def _report_of(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"counts": {}, "failed": [], "broken": True}
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.gpu_tests", description="The tests that need a GPU.")
    parser.add_argument("paths", nargs="*", default=["tests"], help="of tests (default: tests)")
    most = min(MOST_PROCESSES, os.cpu_count() or 1)
    parser.add_argument("--processes", type=int, default=most, help="side by side (default: %(default)s)")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.processes < 1:
        parser.error(f"--processes must be a whole number >= 1, got {args.processes}; one runs them in turn.")
    if args.share is not None:
        return work(args.share, args.processes, args.report, args.paths)
    return run(args.processes, args.paths)


if __name__ == "__main__":
    sys.exit(main())
