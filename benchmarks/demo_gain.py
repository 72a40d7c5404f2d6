"""What `make demo` shows: accuracy of its encoder beside the untrained one, and how long both acts take.

    python -m benchmarks.demo_gain [--seeds 3]

Needs an idle machine for the time. Appends to results/demo_gain.jsonl.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks import record
from flatclr.files import parse_json

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"
PROTOCOLS = ("knn", "linear")


def measured(seed: int, *more: str) -> dict[str, Any]:
    """One whole demo: seconds, and both accuracies in percent, before training and after it."""
    with tempfile.TemporaryDirectory() as folder:
        out, started = Path(folder) / "demo", time.monotonic()
        command = [sys.executable, str(DEMO), "--seed", str(seed), "--out", str(out), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        rows = parse_json((out / "training" / "results.json").read_bytes())["rows"]
    found: dict[str, Any] = {"seed": seed, "seconds": round(seconds)}
    for name in PROTOCOLS:
        by_weights = {row["weights"]: 100 * row["scores"]["top1"]["value"] for row in rows if row["protocol"] == name}
        found |= {f"{name} untrained %": round(by_weights["random"], 1), f"{name} %": round(by_weights["trained"], 1)}
        found |= {f"{name} gain": round(by_weights["trained"] - by_weights["random"], 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    rows = [measured(seed) for seed in track(range(args.seeds), "demos", console=Console(stderr=True))]
    print(record.markdown(rows))
    command = shlex.join(["python", "-m", "benchmarks.demo_gain", *sys.argv[1:]])
    print(f"appended to {record.append('demo_gain', rows, command).relative_to(record.RESULTS.parent)}")


if __name__ == "__main__":
    main()
