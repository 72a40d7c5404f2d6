"""Which laws of information every method keeps on images: rows masked, functions added, pairs stacked.

    python -m benchmarks.mi_images --data DIR --seconds 1800    goes on where it stopped; results/mi_images/README.md

DIR holds `mnist.npz` (array `train_images`) and `cifar-10-batches-bin/`. Images are 2 x 2 pixels averaged, CIFAR-10 in
grey: 14 x 14 and 16 x 16 columns. x is an image, y its upper half, 1,000 rows each. Then

    independence      y of another image: 0
    masking           y is the upper fourth: no more than the upper half tells
    data processing   y, and the differences of its neighbouring rows, which y determines: a ratio of 1
    additivity        two images side by side, and both upper halves: a ratio of 2

y is a part of x, so no method can be right about the value itself: it is the entropy of y, some hundreds of nats. The
laws hold all the same. Reference: Song & Ermon 2020, who tried four methods.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import mi_draws, record
from flatclr.files import read_json_lines
from flatclr.mi import FitSettings, estimate, tasks
from flatclr.mi.methods import METHODS
from flatclr.runs import machine

ROWS, SETTINGS, BUDGET_SECONDS, PATIENCE_SECONDS = 1_000, FitSettings(steps=200, hidden=64), 10.0, 20
FOLDER = record.RESULTS / "mi_images"
PARTS = ("value", "independence", "masking", "data processing", "additivity")
Array = tasks.Array
_LEAST_NATS = 0.05  # of a value that ratios are taken of


def images_of(name: str, data: Path, count: int) -> Array:
    """[N, H, W] in [0, 1], 2 x 2 pixels averaged."""
    if name == "MNIST":
        with np.load(data / "mnist.npz") as file:
            pixels = file["train_images"][:count].reshape(count, 28, 28) / 255
    else:
        raw = np.fromfile(data / "cifar-10-batches-bin" / "data_batch_1.bin", np.uint8, count * 3073)
        pixels = raw.reshape(count, 3073)[:, 1:].reshape(count, 3, 32, 32).mean(1) / 255
    n, height, width = pixels.shape
    averaged: Array = pixels.reshape(n, height // 2, 2, width // 2, 2).mean((2, 4))
    return averaged


def flat(images: Array) -> Array:
    return images.reshape(len(images), -1)


def pairs_of(images: Array) -> dict[str, tuple[Array, Array]]:
    """x and y of each part of the table; images are twice ROWS."""
    first, second = images[:ROWS], images[ROWS : 2 * ROWS]
    half = images.shape[1] // 2
    x, y = flat(first), flat(first[:, :half])
    return {
        "value": (x, y),
        "independence": (x, flat(second[:, :half])),
        "masking": (x, flat(first[:, : half // 2])),
        "data processing": (x, np.hstack([y, flat(np.diff(first[:, :half], axis=1))])),
        "additivity": (np.hstack([x, flat(second)]), np.hstack([y, flat(second[:, :half])])),
    }


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """TimeoutError in the main thread after so many seconds of work: some methods look at no clock.

    A thread looks at it and sends the signal to the main thread alone: of a signal to the process, as of an interval
    timer, which another thread may take, a main thread that never waits may hear nothing.
    """
    began, over, main = time.process_time(), threading.Event(), threading.main_thread().ident
    assert main is not None

    def stop(number: int, frame: object) -> None:
        if not over.is_set():
            raise TimeoutError(f"no answer within {seconds:g} s.")

    def look() -> None:
        while not over.wait(min(1.0, seconds)):
            if time.process_time() - began >= seconds:
                signal.pthread_kill(main, signal.SIGVTALRM)

    before, watch = signal.signal(signal.SIGVTALRM, stop), threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        signal.signal(signal.SIGVTALRM, before)


def read(method: str, x: Array, y: Array) -> dict[str, Any]:
    start = time.process_time()
    try:
        with patience(PATIENCE_SECONDS):
            found = estimate(x, y, method, settings=SETTINGS, budget_seconds=BUDGET_SECONDS).to_dict()
    except (TimeoutError, ValueError) as error:
        return {"nats": None, "told": str(error), "cpu_seconds": round(time.process_time() - start, 2)}
    kept = {name: found[name] for name in ("nats", "standard_error", "lower_nats", "kind", "method")}
    return {**kept, "cpu_seconds": round(time.process_time() - start, 2)}


def run(data: Path, path: Path, *, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["images"], row["asked"], row["part"]) for row in read_json_lines(path)}
    torch.set_num_threads(1)
    where, end = machine(), time.monotonic() + seconds
    with path.open("a") as file:
        for name in ("MNIST", "CIFAR-10"):
            pairs = pairs_of(images_of(name, data, 2 * ROWS))
            for method in METHODS:
                for part in PARTS:
                    if (name, method, part) in done:
                        continue
                    if time.monotonic() > end:
                        return
                    row = {"images": name, "asked": method, "part": part, **read(method, *pairs[part])}
                    print(row, flush=True)
                    file.write(json.dumps({**row, "environment": where}) + "\n")
                    file.flush()


def summary(rows: list[dict[str, Any]]) -> str:
    pages = []
    for name in dict.fromkeys(row["images"] for row in rows):
        table = []
        for method in dict.fromkeys(row["asked"] for row in rows if row["images"] == name):
            found = {row["part"]: row for row in rows if (row["images"], row["asked"]) == (name, method)}
            nats = {part: found.get(part, {}).get("nats") for part in PARTS}
            table.append(
                {
                    "method": method,
                    "I(x; y)": _number(nats["value"]),
                    "independence (0)": _number(nats["independence"]),
                    "masking (at most 1)": _ratio(nats["masking"], nats["value"]),
                    "data processing (1)": _ratio(nats["data processing"], nats["value"]),
                    "additivity (2)": _ratio(nats["additivity"], nats["value"]),
                    "CPU s": f"{sum(row['cpu_seconds'] for row in found.values()):.0f}",
                }
            )
        pages.append(f"## {name}\n\n{record.markdown(table)}\n")
    end = (
        f"-: not run yet, refused, no answer within {PATIENCE_SECONDS} CPU s, or the ratio of a value not above 0. "
        f"Networks: {SETTINGS.steps} steps, {SETTINGS.hidden} units, {BUDGET_SECONDS:g} s an estimate. Seed 0. "
        f"{mi_draws.measured_on(rows)}\n"
    )
    return "\n".join([f"# Self-consistency on images\n\n{__doc__}", *pages, end])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if abs(value) < 1e4 else f"{value:.0e}"


def _ratio(value: float | None, whole: float | None) -> str:
    return _number(value / whole) if value is not None and whole is not None and whole > _LEAST_NATS else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist.npz and cifar-10-batches-bin")
    parser.add_argument("--seconds", type=float, default=1800.0, help="after which no estimate is begun")
    given = parser.parse_args()
    path = FOLDER / "rows.jsonl"
    run(given.data, path, seconds=given.seconds)
    found = list(read_json_lines(path))
    if found:
        (FOLDER / "README.md").write_text(summary(found))


if __name__ == "__main__":
    main()
