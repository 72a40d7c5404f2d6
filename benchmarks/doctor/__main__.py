"""python -m benchmarks.doctor run BENCH [--data FILE] [--only TEXT]; python -m benchmarks.doctor table BENCH"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.doctor.bench_a import BENCH as BENCH_A
from benchmarks.doctor.cases import keep, kept, run
from benchmarks.record import RESULTS

BENCHES = {bench.name: bench for bench in (BENCH_A,)}
FOLDER = RESULTS / "doctor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    bench = BENCHES[arguments.bench]
    path = arguments.out / f"{bench.name}.jsonl.gz"
    done = {record["case"] for record in kept(path)}
    images = bench.images(arguments.data)
    for case in bench.cases:
        if case.name not in done and arguments.only in case.name:
            record = run(case, bench, images)
            keep(path, record)
            print(f"{record['seconds']:6.1f} s  {case.name}  {record['stopped'] or ''}", flush=True)


if __name__ == "__main__":
    main()
