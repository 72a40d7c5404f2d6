"""The same estimates with networks trained on a GPU and on the CPU: do they agree, and how long do they take?

    python -m benchmarks.mi_device --seconds 400        goes on where it stopped; results/mi_device/README.md

The CPU has one thread. The second part has the cells of mutinfo's tables that the default reads worst, on the GPU with
600 s an estimate, beside the same cells on a CPU with the default's 60 s (results/mi_mutinfo).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks import mi_draws, mi_mutinfo, record
from flatclr.files import read_json_lines
from flatclr.mi import tasks

FOLDER = record.RESULTS / "mi_device"
DEVICES, BUDGET_SECONDS, LONG_SECONDS, HARDEST = ("cuda", "cpu"), 60.0, 600.0, 8
AGAIN = "cuda again"


def cells() -> Iterator[mi_draws.Draw]:
    """Every kind of network that an estimate may train, and the default where it has most to do."""
    bent, beside_noise = tasks.sheared(tasks.gaussian_pairs(3)), tasks.sheared(tasks.gaussian_pairs(10))
    for method in ("infonce", "flatnce", "dv", "doe", "club"):
        yield mi_draws.Draw(f"sheared 3 + 3, 2000 rows, {method}", bent, 2_000, 0, BUDGET_SECONDS, method)
    for name, task, rows in (
        ("student 5 + 5", tasks.student(5, 5, 2), 5_000),
        ("sheared 3 + 3", bent, 10_000),
        ("sheared 10 + 10", beside_noise, 10_000),
        ("sheared 10 + 10", beside_noise, 50_000),
    ):
        yield mi_draws.Draw(f"{name}, {rows} rows, auto", task, rows, 0, BUDGET_SECONDS)


def hardest() -> list[mi_draws.Draw]:
    """The worst read of mutinfo's cells, worst first."""
    known = {row["cell"]: row for row in read_json_lines(mi_mutinfo.FOLDER / "draws.jsonl")}
    found = [draw for draw in mi_mutinfo.draws(LONG_SECONDS) if draw.cell in known]
    return sorted(found, key=lambda draw: -off(known[draw.cell]))[:HARDEST]


def off(row: dict[str, Any]) -> float:
    return float(abs(row["nats"] - row["true_nats"]))


def draws() -> Iterator[mi_draws.Draw]:
    """Both devices, then the long ones on the GPU; last the first cells there once more, for the same numbers."""
    for draw in cells():
        for device in DEVICES:
            yield replace(draw, cell=f"{draw.cell}; {device}", device=device)
    for draw in hardest():
        yield replace(draw, cell=f"{draw.cell}; cuda", device="cuda")
    for draw in cells():
        yield replace(draw, cell=f"{draw.cell}; {AGAIN}", device="cuda")


def shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    error = row["standard_error"]
    return f"{row['nats']:.3f}" + (" without an error" if error is None else f" +- {error:.3f}")


def agreement(rows: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    table = []
    for draw in cells():
        gpu, cpu, again = (rows.get(f"{draw.cell}; {name}") for name in (*DEVICES, AGAIN))
        if gpu is None or cpu is None:
            continue
        error = gpu["standard_error"]
        table.append(
            {
                "cell": draw.cell,
                "true": f"{draw.task.mi_nats:.3f}",
                "GPU": shown(gpu),
                "CPU": shown(cpu),
                "apart, in errors": "-" if error is None else f"{abs(gpu['nats'] - cpu['nats']) / error:.2f}",
                "by, GPU": gpu["method"],
                "by, CPU": cpu["method"],
                "GPU s": f"{gpu['wall_seconds']:.1f}",
                "CPU s": f"{cpu['wall_seconds']:.1f}",
                "again the same": "-" if again is None else ("yes" if again["nats"] == gpu["nats"] else "no"),
            }
        )
    return table


def long_looks(rows: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    known = {row["cell"]: row for row in read_json_lines(mi_mutinfo.FOLDER / "draws.jsonl")}
    return [
        {
            "cell": draw.cell,
            "GPU, 600 s": shown(rows[f"{draw.cell}; cuda"]),
            "CPU, 60 s": shown(known[draw.cell]),
            "GPU s": f"{rows[f'{draw.cell}; cuda']['wall_seconds']:.1f}",
            "CPU s": f"{known[draw.cell]['cpu_seconds']:.1f}",
        }
        for draw in hardest()
        if f"{draw.cell}; cuda" in rows
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    by_cell = {row["cell"]: row for row in rows}
    tables = [record.markdown(table) for table in (agreement(by_cell), long_looks(by_cell)) if table]
    return "\n\n".join([__doc__ or "", *tables, f"{mi_draws.measured_on(rows)}\n"])


def main() -> None:
    given = mi_draws.parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.mi_device: expected a CUDA device, got none; run it on a machine that has one.")
    torch.zeros(1, device="cuda")  # the first use of a device takes seconds
    mi_draws.go_on(draws(), FOLDER, summary, given)


if __name__ == "__main__":
    main()
