"""Train the runs of a bench, or judge the doctor by those that are kept.

python -m benchmarks.doctor run BENCH [--data FILE] [--only TEXT] [--part 1/4]     goes on where it was stopped
python -m benchmarks.doctor table BENCH     judges once, and writes the page of the bench
python -m benchmarks.doctor again     judges the kept runs of all benches by the rules of today, and trains nothing
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.doctor.bench_a import BENCH as BENCH_A
from benchmarks.doctor.bench_b import BENCH as BENCH_B
from benchmarks.doctor.bench_c import BENCH as BENCH_C
from benchmarks.doctor.bench_d import BENCH as BENCH_D
from benchmarks.doctor.bench_e import BENCH as BENCH_E
from benchmarks.doctor.bench_f import BENCH as BENCH_F
from benchmarks.doctor.cases import Bench, keep, kept, run
from benchmarks.doctor.tables import again_page, judged, page, summary
from benchmarks.record import RESULTS

BENCHES = {bench.name: bench for bench in (BENCH_A, BENCH_B, BENCH_C, BENCH_D, BENCH_E, BENCH_F)}
FOLDER = RESULTS / "doctor"
AGAIN = "again.md"


def train(bench: Bench, path: Path, data: Path | None, only: str, part: tuple[int, int]) -> None:
    done = {record["case"] for record in kept(path)}
    images = bench.images(data)
    number, parts = part
    for case in bench.cases[number - 1 :: parts]:
        if case.name not in done and only in case.name:
            record = run(case, bench, images)
            keep(path, record)
            print(f"{record['seconds']:6.1f} s  {case.name}  {record['stopped'] or ''}", flush=True)


def judge(bench: Bench, path: Path) -> None:
    target = path.with_name(f"{bench.name}.md")
    if target.exists():
        raise SystemExit(f"a bench is judged once, got {target}, which is there; `again` judges by the rules of today.")
    order = [case.name for case in bench.cases]
    records = sorted(kept(path), key=lambda record: order.index(record["case"]))
    rows = judged(records)
    target.write_text(page(bench.name, rows, sum(record["seconds"] for record in records)), encoding="utf-8")
    print(f"{summary(rows)}\n{target}")


def judge_again(folder: Path) -> None:
    found = {name: judged(kept(folder / f"{name}.jsonl.gz")) for name in BENCHES}
    text = again_page({name: rows for name, rows in found.items() if rows})
    (folder / AGAIN).write_text(text, encoding="utf-8")
    print(text)


def _part(text: str) -> tuple[int, int]:
    number, parts = map(int, text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "again"))
    parser.add_argument("bench", nargs="?", choices=BENCHES)
    parser.add_argument(
        "--data",
        type=Path,
        help="the images of bench_b, bench_d, bench_e or bench_f, which are not at hand",
    )
    parser.add_argument("--only", default="", help="runs whose names hold this text")
    parser.add_argument("--part", type=_part, default=(1, 1), help="of the runs, say 2/4, where processes share them")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder that keeps the runs")
    given = parser.parse_args()
    if (given.bench is None) != (given.what == "again"):
        parser.error("run and table need a bench, again takes none.")
    if given.what == "again":
        judge_again(given.out)
        return
    bench = BENCHES[given.bench]
    path = given.out / f"{bench.name}.jsonl.gz"
    if given.what == "run":
        train(bench, path, given.data, given.only, given.part)
    else:
        judge(bench, path)


if __name__ == "__main__":
    main()
