"""Time to accuracy of one run: when the command was given, when each look at the accuracy was over, what it found.

    python -m benchmarks.cifar10.fast --seed 0                                      the recipe cifar10-fast
    python -m benchmarks.cifar10.fast --held-out --set head_width=2048 --name wide  a choice, on held-out images
    python -m benchmarks.cifar10.fast --epochs 40 --name short                      for the least time to 85 %
    python -m benchmarks.cifar10.fast --end-share 0.2 --end-size 24 --end-views 4   larger views at the end
    python -m benchmarks.cifar10.fast --plan tiny --out runs/toy --results runs/toy-results       a toy, for a CPU

A look classifies all test images, one view each, by ten neighbours with equal votes among all training images. With
--held-out 5,000 training images are left out of training and take the place of the test images: choices are made
there, and the last look is also taken with the batch statistics of whole images, and at the other 45,000 images, each
by the others: trained on, but without labels, and nine times as many. The raw metrics, the looks and the settings are
kept in results/cifar10/fast, with a table of all runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.cifar10 import data, kept
from benchmarks.cifar10.plan import FULL, SCALES, Scale
from flatclr.checks import require_number
from flatclr.cli.options import parsed_setting
from flatclr.evaluation.knn import knn_votes
from flatclr.files import replace_files
from flatclr.models.network import Network
from flatclr.runs import RunDirectory, machine
from flatclr.training import RECIPES, Event, Logged, TrainConfig
from flatclr.training.build import Parts, build
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit
from flatclr.training.validation import ImageValidation

HOME = kept.HOME / "fast"
RECIPE = "cifar10-fast"
TOY: dict[str, Any] = {"views_per_image": 4, "view_size": 14, "epochs": 4.0, "batch_size": 32, "learning_rate": 0.1}
NEIGHBOURS = 10
LOG_LINES = 40
OWN_SAMPLES = 1_000  # of the evaluation that a run makes at its end, which nothing here reads
SEEDS = range(3)  # that an aim is judged by
LOOKS = (0.5, 0.75, 0.9, 1.0)  # shares of a run
TITLE = "Time to accuracy on CIFAR-10"


@dataclass(frozen=True)
class Aim:
    """An accuracy that runs of this name are to reach in time, one for each seed.

    Args:
        name: of the runs, before their seed.
        goal: kNN accuracy with ten equal votes.
        seconds: that it may take.
        options: of the command.
    """

    name: str
    goal: float
    seconds: int
    options: str

    def command(self, seed: int) -> str:
        return f"python -m benchmarks.cifar10.fast --seed {seed} {self.options} --name {self.name}"


AIMS = (
    Aim("short", 0.85, 90, "--epochs 40 --looks 1.0"),
    Aim("full", 0.903, 300, "--epochs 215 --looks 0.97 1.0"),  # those of the recipe: 195 steps of 6.3 ms an epoch
)
GOALS = tuple(aim.goal for aim in AIMS)


def since_start() -> float:
    """Seconds since this process was started, with what Python took to import."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started


@dataclass
class Watch:
    """Listens to a run; looks at its accuracy at certain log lines and notes when each look was over.

    With `choosing` the last look is taken with the batch statistics of whole images too, and at the training images.
    """

    parts: Parts
    shares: Sequence[float]
    choosing: bool = False
    looks: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        total, every = self.parts.schedule.total_steps, self.parts.config.log_every
        # the last step is a log line too
        self.steps = {total if share == 1 else every * max(1, round(share * total / every)) for share in self.shares}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Logged) and event.step in self.steps:
            begun = since_start()
            accuracy = ten_neighbours(self.parts)
            row = {"kind": "look", "step": event.step, "epoch": round(event.epoch, 3), "knn10": accuracy}
            row |= {"begun": round(begun, 2), "seconds": round(since_start(), 2)}
            if self.choosing and event.step == max(self.steps):
                row["whole"] = ten_neighbours(self.parts, recalibrate=True)
                row["trained on"] = ten_neighbours(self.parts, trained_on=True)
            self.looks.append(row)
            print(json.dumps(self.looks[-1]), flush=True)


def ten_neighbours(parts: Parts, *, recalibrate: bool | None = None, trained_on: bool = False) -> float:
    """Share of the test images, one view each, whose class ten training images with equal votes name.

    With `trained_on` of the training images instead, each by ten others.
    """
    validation, network = parts.validation, parts.train_step.bare_network
    assert isinstance(validation, ImageValidation)
    assert isinstance(network, Network)
    validation = replace(validation, samples=max(len(validation.source), len(validation.data.test or ())))
    if recalibrate is not None:
        validation = replace(validation, recalibrate=recalibrate)
    with validation.ready(network.encoder):
        train, labels = validation.features(network.encoder, validation.source)
        assert labels is not None
        if trained_on:
            return _by_others(train, labels)
        test, truth = validation.features(network.encoder, validation.data.test)  # type: ignore[arg-type]
    assert truth is not None
    named = knn_votes(train, labels, test, k=NEIGHBOURS, temperature=math.inf).argmax(1)
    return share_of(named == truth)


def _by_others(features: Tensor, labels: Tensor) -> float:
    """The nearest neighbour of an image is itself; its vote is taken back."""
    votes = knn_votes(features, labels, features, k=NEIGHBOURS + 1, temperature=math.inf)
    votes -= torch.nn.functional.one_hot(labels, votes.shape[1])
    return share_of(votes.argmax(1) == labels)


def share_of(right: Tensor) -> float:
    """In float64: in float32 9,030 of 10,000 would be below 90.3 %."""
    return right.double().mean().item()


def changed_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What differs from the recipe, by the options given."""
    given = dict(parsed_setting(text) for text in args.set)
    named = {"epochs": args.epochs, "views_per_image": args.views, "view_size": args.view_size}
    given |= {name: value for name, value in named.items() if value is not None}
    return given


def config_of(args: argparse.Namespace, scale: Scale, images: int) -> TrainConfig:
    """The recipe, or its toy, with what was asked for; it evaluates itself at the end alone."""
    base = RECIPES[RECIPE]() if scale is FULL else RECIPES[scale.recipe]().changed(**scale.base, **TOY)
    config = base.changed(**changed_settings(args))
    if args.end_size is not None:
        require_number("--end-share", args.end_share, above=0, below=1)
        end = round((1 - args.end_share) * config.epochs, 2)
        sizes = [[args.end_views or config.views_per_image, args.end_size]]
        config = config.changed(size_schedule=[[0, config.view_size], [end, sizes]])
    steps = round(config.epochs * (images // config.batch_size))
    return config.changed(
        seed=args.seed,
        data=None,
        log_every=max(1, steps // LOG_LINES),
        eval_every=steps,
        eval_start=False,
        eval_samples=OWN_SAMPLES,
        checkpoint_every=steps,
        out=None,
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, look, keep; returns the row of the run."""
    scale = SCALES[args.plan]
    name = f"{args.name}{'-held-out' if args.held_out else ''}-s{args.seed}"
    home, folder = args.results, args.out / name
    for path in (home / kept.RUNS / name, folder):
        if path.exists():
            raise ValueError(f"a run must have a name of its own, got {name!r}, which {path} has; pass another --name.")
    images = data.dataset(scale, args.data, held_out=args.held_out)
    config = config_of(args, scale, len(images.train))
    parts = build(config, data=images)
    directory = RunDirectory.create(folder, {**config.to_dict(), "data": images.name})
    watch = Watch(parts, args.looks, choosing=args.held_out)
    with directory.locked():
        ready = {"kind": "process", "does": "train", "command": args.command, **machine()}
        ready |= {"shared": args.shared, "seconds": round(since_start(), 2)}
        fit(Recorder(parts, directory, [watch]))
    end = {"kind": "end", "seconds": round(since_start(), 2)}
    lines = "".join(json.dumps(row) + "\n" for row in (ready, *watch.looks, end))
    replace_files({folder / kept.CLOCK: lines.encode()})
    kept.keep(folder, home)
    return row_of(kept.KeptRun(home / kept.RUNS / name))


def row_of(found: kept.KeptRun) -> dict[str, Any]:
    """What the table says of a run."""
    looks = [row for row in found.clock if row["kind"] == "look"]
    config = found.config
    return {
        "run": found.name,
        "images": "held out" if "held-out" in found.name else "test",
        "differs from the recipe in": _differences(config),
        "epochs": f"{config.epochs:g}",
        "kNN % at the end": _percent(looks[-1]["knn10"]),
        "with statistics of whole images": _percent(looks[-1].get("whole")),
        "of images trained on": _percent(looks[-1].get("trained on")),
        **{name: "" if found.processes[0].get("shared") else value for name, value in _times(found, looks).items()},
    }


def _times(found: kept.KeptRun, looks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {
        **{f"seconds to {100 * goal:g} %": _first(looks, goal) for goal in GOALS},
        "seconds to the last look": f"{looks[-1]['seconds']:.0f}",
        "of these looking": f"{sum(row['seconds'] - row['begun'] for row in looks):.0f}",
        "seconds in all": f"{found.clock[-1]['seconds']:.0f}",
    }


def write_table(home: Path) -> Path:
    """README.md beside the kept runs, made from them alone."""
    rows = [row_of(found) for found in kept.kept_runs(home).values()]
    text = (
        f"# {TITLE}\n\nOne run each, by `python -m benchmarks.cifar10.fast`. Seconds are wall-clock time since the "
        "command was given, with start, compilation, capture and looks, of runs alone on their GPU. A look classifies "
        "whole images, one view each, by ten neighbours with equal votes among all training images. Times are upper "
        "limits: a goal may have been reached between two looks.\n\n"
    )
    aims, missing = _aims(kept.kept_runs(home))
    empty = f"Still to be run:\n\n```sh\n{missing}\n```\n\n" if missing else ""
    commands = "\n".join(found.processes[0]["command"] for found in kept.kept_runs(home).values())
    path = home / "README.md"
    replace_files(
        {path: f"{text}{record.markdown(aims)}\n\n{empty}{record.markdown(rows)}\n\n```sh\n{commands}\n```\n".encode()}
    )
    return path


def _aims(found: Mapping[str, kept.KeptRun]) -> tuple[list[dict[str, Any]], str]:
    """What the runs of each aim reached, and the commands of those that are missing, or shared their GPU."""
    rows, missing = [], []
    alone = {name: run for name, run in found.items() if not run.processes[0].get("shared")}
    for aim in AIMS:
        names = {seed: f"{aim.name}-s{seed}" for seed in SEEDS}
        there = [alone[name] for name in names.values() if name in alone]
        missing += [aim.command(seed) for seed, name in names.items() if name not in alone]
        looks = [[row for row in run.clock if row["kind"] == "look"] for run in there]
        rows.append(
            {
                "runs": aim.name,
                "kNN % to reach": f"{100 * aim.goal:g}",
                "within seconds": str(aim.seconds),
                "seeds": f"{len(there)} of {len(SEEDS)}",
                "seconds it took": _range([_first(of_run, aim.goal) for of_run in looks]),
                "kNN % at the end": _range([_percent(of_run[-1]["knn10"]) for of_run in looks]),
                "commits": ", ".join(dict.fromkeys(str(run.processes[0]["commit"]) for run in there)),
            }
        )
    return rows, "\n".join(missing)


def _range(values: Sequence[str]) -> str:
    """Each, by seed, and of more than one their mean.

    >>> _range(["85", "82"]), _range(["85", "not reached"])
    ('85, 82 (mean 83.5)', '85, not reached')
    """
    known = all(value.replace(".", "", 1).isdigit() for value in values)
    mean = f" (mean {sum(map(float, values)) / len(values):.4g})" if len(values) > 1 and known else ""
    return ", ".join(values) + mean


def _first(looks: Sequence[Mapping[str, Any]], goal: float) -> str:
    return next((f"{row['seconds']:.0f}" for row in looks if row["knn10"] >= goal), "not reached")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _differences(config: TrainConfig) -> str:
    """Of what a run may try; not where it is, nor how often it speaks."""
    recipe, own = RECIPES[RECIPE]().to_dict(), config.to_dict()
    left_out = (*kept.INCIDENTAL, "seed", "epochs", "log_every", "eval_every", "eval_start", "eval_samples")
    found = [f"{name} {json.dumps(own[name])}" for name in own if own[name] != recipe[name] and name not in left_out]
    return ", ".join(found) or "nothing"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cifar10.fast", description=f"{TITLE}: one run.")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--name", default="fast", help="of the run, before its seed (default: %(default)s)")
    parser.add_argument("--held-out", action="store_true", help="measure on held-out training images, to choose by")
    parser.add_argument("--epochs", type=float, help="default: the recipe's")
    parser.add_argument("--views", type=int, help="of each image (default: the recipe's)")
    parser.add_argument("--view-size", type=int, help="in pixels (default: the recipe's)")
    parser.add_argument(
        "--end-size", type=int, help="of views in the last part of the run (default: it does not change)"
    )
    parser.add_argument("--end-views", type=int, help="how many there are then (default: as many)")
    parser.add_argument("--end-share", type=float, default=0.2, help="of the run that is its last part (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting, as YAML")
    parser.add_argument("--looks", type=float, nargs="+", default=list(LOOKS), help="shares of the run (%(default)s)")
    parser.add_argument("--plan", choices=SCALES, default=FULL.name, help="tiny: a toy for a CPU, in seconds")
    parser.add_argument("--data", type=Path, help="folder that holds cifar-10-batches-bin")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10-fast"), help="run directories (%(default)s)")
    parser.add_argument("--results", type=Path, default=HOME, help="what is kept of them (default: %(default)s)")
    parser.add_argument("--shared", action="store_true", help="other work has the GPU too, so that no time is told")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser().parse_args(given)
    args.command = shlex.join(["python", "-m", "benchmarks.cifar10.fast", *given])
    try:
        row = run(args)
        print(record.markdown([row]))
        print(write_table(args.results))
    except (ValueError, TypeError, OSError) as error:
        print(f"fast: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
