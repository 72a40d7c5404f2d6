"""Training runs as runs of a study: a recipe, what differs from it, and the accuracies at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from flatclr.data import DATASETS, Dataset, ResidentImages, open_dataset, seeded_generator
from flatclr.data.digits import DIGITS
from flatclr.data.opening.known import data_folders
from flatclr.evaluation.evaluator import evaluate
from flatclr.evaluation.finetune import OWN
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.files import json_ready, parse_json, replace_files
from flatclr.models.network import Network, Normalisation
from flatclr.runs import RunDirectory, training_minutes
from flatclr.studies.study import Job, Numbers, Run
from flatclr.training.build import build
from flatclr.training.config import TrainConfig
from flatclr.training.errors import DivergedError, TrainingInterruptedError
from flatclr.training.recipes import RECIPES
from flatclr.training.trainer import train

EMBEDDED = "embedded"
ACCURACIES = "accuracies.json"  # of a run that is measured, in its folder
HELD_OUT = 5_000  # training images that settings are chosen on
RATES = {32: 0.06, 256: 0.24}  # SGD on CIFAR-10, chosen on held-out images: results/cifar10/learning_rate.md
# of CIFAR-10: more accurate for the same arithmetic than whole images, results/cifar10/time_to_accuracy.md
SMALL_VIEWS: Mapping[str, Any] = {"view_size": 16}
SMALL_VIEWS_CHANGE = f"views of {SMALL_VIEWS['view_size']} pixels, a quarter of the arithmetic of 32"
LOGGED = ("loss", "mi_nats", "ceiling_nats", "ess", "ess_with_positive", "beta", "alignment", "uniformity")
EVALUATED = ("knn", "linear", "pool_mi_best_nats", "effective_rank")
POINTS = 50  # of a kept curve, at most
QUICK: Mapping[str, Any] = {  # over any recipe: seconds on a CPU
    "encoder": "cnn",
    "encoder_options": {"width": 4},
    "embedding": 8,
    "head_width": 8,
    "precision": "fp32",
    "steps": 2,
    "warmup_epochs": 0.1,
    "log_every": 1,
    "eval_every": 2,
    "eval_start": False,
    "eval_samples": 64,
}
QUICK_IMAGES, QUICK_BATCH = 96, 16


def rate_at(batch: int) -> float:
    """rate(B) = rate(32) (B / 32)^p through the two rates that were chosen.

    >>> rate_at(32), rate_at(256), round(rate_at(64), 4)
    (0.06, 0.24, 0.0952)
    """
    power = math.log(RATES[256] / RATES[32]) / math.log(256 / 32)
    return float(f"{RATES[32] * (batch / 32) ** power:.3g}")


def training_run(
    arm: str,
    seed: int,
    config: Mapping[str, Any],
    *,
    quick: bool,
    recipe: str = "cifar10",
    data: str = "cifar10",
    protocols: Sequence[str] = ("knn", "linear"),
    held_out: bool = False,
    transfer: str | None = None,
    evaluation_recipe: str = OWN,
    shared: bool = False,
) -> Run:
    """A run of `flatclr.train` with the accuracies of these protocols at its end.

    Args:
        arm: as in `Run`.
        seed: as in `Run`.
        config: settings that differ from the recipe's.
        quick: a few steps of a tiny encoder on embedded images instead.
        recipe: of `flatclr train --recipe`.
        data: what `flatclr train --data` takes; "embedded" for the embedded images.
        protocols: of `flatclr eval`.
        held_out: whether it trains without, and is measured on, a part of the training images.
        transfer: data of the protocol transfer.
        evaluation_recipe: of `flatclr eval --recipe`.
        shared: as in `Run`.
    """
    given = dict(config)
    if quick:
        given = {**given, **QUICK, "batch_size": min(given.get("batch_size", QUICK_BATCH), QUICK_BATCH)}
        given.pop("epochs", None)
        data, transfer = EMBEDDED, None
        protocols = [name for name in protocols if name in ("knn", "linear")]
    settings = {
        "recipe": recipe,
        "config": given,
        "data": data,
        "protocols": list(protocols),
        "held_out": held_out,
        "transfer": transfer,
        "quick": quick,
    }
    if evaluation_recipe != OWN:
        settings["evaluation_recipe"] = evaluation_recipe
    return Run(arm, seed, measure, settings, shared)


def measure(job: Job) -> Numbers:
    """Train, from the last checkpoint where there is one; a run whose loss does not stay finite is a result too.

    One that ends for another reason, say too little memory beside other runs, has no numbers and is made again.
    """
    settings, folder = job.settings, job.folder / "run"
    data = data_of(settings)
    config = config_of(job).changed(data=None if data is not None else located(settings["data"]))
    try:
        train(config, data=data, auto_resume=True, stop=job.stop, progress=False)
    except DivergedError as error:
        return {**curves(folder, config), "stopped": str(error), **dict.fromkeys(settings["protocols"], math.nan)}
    return {**curves(folder, config), **accuracies(job, folder, data)}


def untrained(run: Run, arm: str) -> Run:
    """The encoder of a training run as it was before the first step, measured as the run is."""
    return replace(run, arm=arm, measure=measure_untrained)


def measure_untrained(job: Job) -> Numbers:
    """As `measure`, without training."""
    data = data_of(job.settings)
    config = config_of(job).changed(data=None if data is not None else located(job.settings["data"]))
    parts = build(config, data=data)
    network = parts.train_step.bare_network
    assert isinstance(network, Network)
    return accuracies(job, network.encoder, data, parts.normalisation)


def accuracies(job: Job, encoder: Any, data: Dataset | None, normalisation: Normalisation | None = None) -> Numbers:
    """By the protocols of the run; those that train take long, and each is kept when it is done.

    What is kept of a run under the same name at other settings does not count.
    """
    path, settings = job.folder / ACCURACIES, json.loads(json.dumps(json_ready(dict(job.settings))))
    kept = parse_json(path.read_bytes()) if path.exists() else {}
    scores: Numbers = kept["scores"] if kept.get("settings") == settings else {}
    protocols = job.settings["protocols"]
    long = [name for name in protocols if PROTOCOLS[name].trains or PROTOCOLS[name].elsewhere]
    for group in ([name for name in protocols if name not in long], *([name] for name in long)):
        if all(any(key.partition(",")[0] == name for key in scores) for name in group):
            continue
        found = evaluate(
            encoder,
            data,
            group,
            normalisation=normalisation,
            random_row=False,
            transfer_data=job.settings["transfer"] and located(job.settings["transfer"]),
            device=job.device,
            draws=2,
            recipe=job.settings.get("evaluation_recipe", OWN),
            progress=lambda *_: _stop_if_asked(job),
        )
        scores |= {", ".join(filter(None, (row.protocol, row.variant))): row.best.value for row in found.rows}
        job.folder.mkdir(parents=True, exist_ok=True)
        replace_files({path: json.dumps({"settings": settings, "scores": scores}).encode()})
    return scores


def _stop_if_asked(job: Job) -> None:
    if job.stop.reason is not None:
        raise TrainingInterruptedError(f"the evaluation was stopped by {job.stop.reason}; what is measured is kept.")


def config_of(job: Job) -> TrainConfig:
    recipe = RECIPES[job.settings["recipe"]]()
    given = {"temperature": None, "ess_target": None} if "temperature" in job.settings["config"] else {}
    changed = {**given, **job.settings["config"]}
    out = str(job.folder / "run")
    return recipe.changed(**changed, data=None, seed=job.seed, device=job.device, out=out)


def data_of(settings: Mapping[str, Any]) -> Dataset | None:
    """The images; of a smoke test few, and with held-out training images in the place of the test images.

    None for image files that are to be opened by the run itself.
    """
    dataset = _opened(settings["data"], tuple(data_folders(None)))
    train_part, test_part = dataset.train, dataset.test
    if not isinstance(train_part, ResidentImages) or not isinstance(test_part, ResidentImages):
        return None
    if settings.get("quick"):
        train_part, test_part = (_some(part, QUICK_IMAGES) for part in (train_part, test_part))
    if settings.get("held_out"):
        count = min(HELD_OUT, len(train_part) // 4)
        order = torch.randperm(len(train_part), generator=seeded_generator(0, "held out"))
        train_part, test_part = train_part.subset(order[count:], "train"), train_part.subset(order[:count], "held out")
    return Dataset(dataset.name, train_part, test_part)


@lru_cache(maxsize=1)  # a process makes one run after another
def _opened(name: str, places: tuple[Path, ...]) -> Dataset:
    return open_dataset(None if name == EMBEDDED else located(name), download=False)


def require_data(runs: Sequence[Run]) -> None:
    """Refuse, once and before any of these runs, what each would refuse: data that is not there or cannot be read.

    Raises:
        FileNotFoundError: there is nothing of this name.
        ValueError: what is there cannot be read.
    """
    trained_on, elsewhere = ({run.settings.get(name): None for run in runs} for name in ("data", "transfer"))
    for name in trained_on:
        if name not in (None, EMBEDDED):
            open_dataset(located(name), download=False)
    for name in elsewhere:
        if name not in (None, DIGITS):
            open_dataset(located(name))  # as the evaluation does


def located(name: str) -> str:
    """Data by name; a file or folder is looked for here, in $FLATCLR_DATA and in ./data, and kept by its name alone."""
    if name in DATASETS:
        return name
    places = (folder / name for folder in (Path(), *data_folders(None)))
    return str(next((place for place in places if place.exists()), name))


def _some(images: ResidentImages, count: int) -> ResidentImages:
    order = torch.randperm(len(images), generator=seeded_generator(0, "some"))
    return images.subset(order[:count], images.name)


def curves(folder: Any, config: TrainConfig) -> Numbers:
    """What metrics.jsonl says along the run, thinned, with minutes of training that a resume does not reset."""
    rows = RunDirectory.open(folder).metrics()
    clock = training_minutes(rows, config.batch_size)
    logs = [
        {name: row[name] for name in ("step", "epoch", *LOGGED) if name in row} for row in rows if row["kind"] == "log"
    ]
    evaluations = [
        {
            "minutes": clock[max(step for step in clock if step <= row["step"])],
            **{name: row[name] for name in ("step", "epoch", *EVALUATED) if name in row},
        }
        for row in rows
        if row["kind"] == "evaluation"
    ]
    return {"log": thinned(logs), "evaluations": thinned(evaluations), "minutes": clock[max(clock)]}


def thinned(rows: Sequence[dict[str, Any]], most: int = POINTS) -> list[dict[str, Any]]:
    """Evenly, the first and the last kept.

    >>> [row["step"] for row in thinned([{"step": n} for n in range(9)], most=3)]
    [0, 4, 8]
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]
