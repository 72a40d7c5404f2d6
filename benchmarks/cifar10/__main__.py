"""`python -m benchmarks.cifar10 plan | run | tables`"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cifar10 import kept
from benchmarks.cifar10.plan import FULL, SCALES, SHARING, STAGES, Rates, Scale, planned
from benchmarks.cifar10.runs import Site, execute
from flatclr.checks import require_number, require_one_of


def show_plan(args: argparse.Namespace) -> int:
    scale, there = SCALES[args.plan], kept.kept_runs(args.results)
    measured = kept.measured_rates(there, scale)
    rates = measured or scale.starting_rates
    source = "measured" if measured else "not measured yet"
    print(f"learning rates by batch size ({source}): {', '.join(f'{b}: {r:g}' for b, r in rates.items())}")
    for stage in args.stage or STAGES:
        runs = planned([stage], scale, rates)
        total = sum(run.gpu_seconds for run in runs)
        optional = ", optional" if STAGES[stage].optional else ""
        print(f"\n{stage}: {STAGES[stage].title} ({len(runs)} runs, about {total:.0f} GPU seconds{optional})")
        for run in runs:
            state = "kept" if run.name in there else "alone" if run.alone else ""
            shown = shlex.join(["flatclr", *run.arguments()]) if args.commands else run.name
            print(f"  {run.gpu_seconds:5.0f} s  {state:<5} {shown}")
    return 0


def make_runs(args: argparse.Namespace) -> int:
    """0: all are there; 1: some failed; 3: some are left for the next time."""
    require_number("--minutes", args.minutes, above=0)
    deadline = time.monotonic() + 60 * args.minutes
    site = Site(SCALES[args.plan], args.runs, args.results, args.data)
    stages = args.stage or [name for name, stage in STAGES.items() if not stage.optional]
    _require_known(args.only, [run.name for run in planned(stages, site.scale, site.scale.starting_rates)])
    choosing = [stage for stage in stages if not STAGES[stage].uses_rates]
    resting = [stage for stage in stages if STAGES[stage].uses_rates]
    for group in filter(None, (choosing, resting)):
        rates = _rates(site.scale, args.results, starting=args.starting_rates) if group is resting else {}
        wanted = [run for run in planned(group, site.scale, rates) if not args.only or run.name in args.only]
        outcome = execute(wanted, site, deadline=deadline, parallel=args.parallel, whole=args.whole)
        if not outcome.complete:
            return 1 if outcome.failed else 3
    return 0


def write_tables(args: argparse.Namespace) -> int:
    from benchmarks.cifar10 import pages

    for path in pages.write(args.results, SCALES[args.plan], docs=args.docs):
        print(path)
    return 0


def _rates(scale: Scale, home: Path, *, starting: bool) -> Rates:
    measured = kept.measured_rates(kept.kept_runs(home), scale)
    if measured is None and not starting:
        raise ValueError(
            f"all runs of the stage lr must be in {home / kept.RUNS} before others, got fewer; run --stage lr, or pass "
            "--starting-rates to go without."
        )
    return measured or scale.starting_rates


def _require_known(names: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in names or ():
        require_one_of("--only", name, known)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cifar10", description="CIFAR-10 on one GPU.")
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--plan", choices=SCALES, default=FULL.name, help="tiny: a stand-in for a CPU, in minutes")
    common.add_argument("--results", type=Path, default=kept.HOME, help="what is kept of runs (default: %(default)s)")
    staged = argparse.ArgumentParser(add_help=False)
    staged.add_argument("--stage", nargs="+", choices=STAGES, help="default: all but the optional ones")

    shown = commands.add_parser("plan", parents=[common, staged], help="list the runs with estimated GPU seconds")
    shown.add_argument("--commands", action="store_true", help="as commands, instead of by name")
    shown.set_defaults(command=show_plan)

    made = commands.add_parser("run", parents=[common, staged], help="make the runs that are missing")
    made.add_argument("--runs", type=Path, default=Path("runs/cifar10"), help="run directories (default: %(default)s)")
    made.add_argument("--data", type=Path, help="folder that holds cifar-10-batches-bin")
    made.add_argument("--only", nargs="+", metavar="NAME", help="these runs of the stages alone")
    made.add_argument("--minutes", type=float, default=9.0, help="stop before so many are over (default: %(default)s)")
    made.add_argument("--parallel", type=int, default=SHARING, help="runs that share the GPU (default: %(default)s)")
    made.add_argument("--whole", action="store_true", help="start only what should be finished in time")
    made.add_argument("--starting-rates", action="store_true", help="do not wait for the stage lr")
    made.set_defaults(command=make_runs)

    written = commands.add_parser("tables", parents=[common], help="write tables and figures from what is kept")
    written.add_argument("--docs", action="store_true", help="and the headline table of docs/benchmarks.md")
    written.set_defaults(command=write_tables)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        code: int = args.command(args)
    except (ValueError, TypeError, OSError) as error:
        print(f"cifar10: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cifar10: stopped; the same command goes on from the last checkpoints.", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as for Ctrl-C, leaving no process behind
    sys.exit(main())
