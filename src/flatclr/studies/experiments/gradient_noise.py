"""FlatNCE paper, Fig. 2: whose gradient is noisier, at small and at large batches?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from flatclr.data import seeded_generator
from flatclr.diagnostics import GradientNoise, gradient_noise
from flatclr.evaluation.intervals import Score
from flatclr.models.network import Network
from flatclr.models.trained import load_network
from flatclr.objectives import FlatNCE, InfoNCE, Objective
from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies.judging import Verdict, every, negated, score_text
from flatclr.studies.literature import FLATNCE
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study
from flatclr.studies.training_runs import SMALL_VIEWS, SMALL_VIEWS_CHANGE, config_of, data_of, rate_at, training_run
from flatclr.training.build import Parts, build
from flatclr.training.trainer import train

TEMPERATURE, TRAINING_BATCH, EPOCHS = 0.1, 256, 21.0
PRECISIONS = ("fp32", "bf16")
SMALL, LARGE = 32, 512
CHECKPOINTS = 3


def measure(job: Job) -> Numbers:
    """Train with kept checkpoints, then compare the two gradients on the same batches at each of them."""
    config, data = config_of(job), data_of(job.settings)
    train(config, data=data, auto_resume=True, stop=job.stop, progress=False)
    assert config.out is not None
    rows, nearer = [], []
    cells = len(job.settings["at"]) * len(job.settings["precisions"])
    for step in job.settings["at"]:
        state = load_network(config.out, step=step).state_dict()
        for precision in job.settings["precisions"]:
            distances = []
            for batch in job.settings["batches"]:
                parts = build(config.changed(batch_size=batch, precision=precision, keep_checkpoints=None), data=data)
                network = parts.train_step.bare_network
                assert isinstance(network, Network)
                network.load_state_dict(state)
                info, flat = (
                    noise_of(parts, network, kind(TEMPERATURE), job.settings["draws"]) for kind in (InfoNCE, FlatNCE)
                )
                quotients = info.quotients(flat)
                # small batches are the first images of large ones, so both are resampled together
                distances.append((quotients - 1).abs())
                layers = {name: info.ratio(name) / flat.ratio(name) for name in info.layers}
                rows.append(
                    {
                        "step": step,
                        "precision": precision,
                        "batch": batch,
                        "info": info.ratio(),
                        "flat": flat.ratio(),
                        "quotient": info.ratio() / flat.ratio(),
                        **ends_of(quotients, cells),
                        "layers": layers,
                    }
                )
            far, near = (abs(row["quotient"] - 1) for row in (rows[-len(distances)], rows[-1]))
            ends = ends_of(distances[-1] - distances[0], cells)
            nearer.append({"step": step, "precision": precision, "value": near - far, **ends})
    return {"rows": rows, "nearer": nearer}


def ends_of(values_R: Tensor, comparisons: int) -> dict[str, list[float]]:
    """The ends of a bootstrapped number's 95 % interval, of it alone and among so many."""
    tails = {"alone": 0.025, "among": 0.025 / comparisons}
    return {
        count: values_R.quantile(torch.tensor([tail, 1 - tail], dtype=values_R.dtype)).tolist()
        for count, tail in tails.items()
    }


def noise_of(parts: Parts, network: Network, objective: Objective, draws: int) -> GradientNoise:
    """Over batches drawn for it, the same for every objective."""

    def batches() -> Iterator[tuple[Tensor, ...]]:
        plan, keys = parts.loader.plan, [f"noise {number}" for number in range(draws)]
        orders = (torch.randperm(plan.samples, generator=seeded_generator(plan.seed, key)) for key in keys)
        for batch, key in zip(parts.loader.batches(o[: plan.batch_size] for o in orders), keys, strict=True):
            yield parts.train_step.inputs.draw(batch, key)(slice(0, plan.batch_size))

    def loss(model: nn.Module, views: tuple[Tensor, ...]) -> Tensor:
        value: Tensor = objective(*parts.train_step.embed(model, *views))
        return value

    network.train()
    return gradient_noise(network, loss, batches())


def plan(of: Plan) -> list[Run]:
    steps = 2 if of.quick else round(EPOCHS * (50_000 // TRAINING_BATCH))
    every = 1 if of.quick else steps // CHECKPOINTS
    config = {
        "objective": "infonce",
        **SMALL_VIEWS,
        "temperature": TEMPERATURE,
        "batch_size": TRAINING_BATCH,
        "learning_rate": rate_at(TRAINING_BATCH),
        "steps": every * CHECKPOINTS,
        "keep_checkpoints": f"every:{every}",
        "eval_every": 10**6,
    }
    trained = training_run("InfoNCE 0.1", 0, config, quick=of.quick).settings
    settings = {**trained, "config": {**trained["config"], "steps": every * CHECKPOINTS}}
    small = {"draws": 4, "batches": [8, 32], "precisions": ["fp32"]}
    full = {"draws": 64, "batches": [SMALL, LARGE], "precisions": list(PRECISIONS)}
    at = {"at": [every * number for number in range(1, CHECKPOINTS + 1)]}
    settings |= {**(small if of.quick else full), **at}
    return [Run("InfoNCE 0.1", seed, measure, settings) for seed in of.seeds]


def rows_of(found: Found, **chosen: object) -> list[dict[str, object]]:
    rows = [{**row, "seed": kept.seed} for kept in found for row in kept.numbers["rows"]]
    return [row for row in rows if all(row[name] == value for name, value in chosen.items())]


def table(found: Found) -> list[Row]:
    return [
        {
            "seed": str(row["seed"]),
            "step": f"{row['step']:,}",
            "precision": str(row["precision"]),
            "K": str(row["batch"]),
            "InfoNCE": f"{row['info']:.2f}",
            "FlatNCE": f"{row['flat']:.2f}",
            "InfoNCE / FlatNCE": score_text(_quotient(row)),
        }
        for row in rows_of(found)
    ]


def _quotient(row: Mapping[str, Any], count: str = "alone") -> Score:
    return Score(row["quotient"], *row[count])


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    last = max(int(str(row["step"])) for row in rows_of(found))
    for row, colour in zip(rows_of(found, step=last, precision="fp32", seed=0), COLOURS, strict=False):
        layers = row["layers"]
        assert isinstance(layers, dict)
        axes.plot(
            range(len(layers)), list(layers.values()), "o-", markersize=3, color=colour, label=f"K = {row['batch']}"
        )
    axes.axhline(1, color=MUTED, linewidth=1)
    axes.set_xlabel("layer, from the input on")
    axes.set_ylabel("noise of InfoNCE / FlatNCE")
    axes.set_title("tr Cov / |mean|^2 at the last checkpoint")
    axes.legend()
    return {"figure": figure}


def judge_small(found: Found) -> Verdict:
    least = min(int(str(row["batch"])) for row in rows_of(found))
    alone, among = ([_quotient(row, count) for row in rows_of(found, batch=least)] for count in ("alone", "among"))
    shown = ", ".join(map(score_text, alone))
    says = f"Quotients at K = {least}, by checkpoint and precision: {shown}."
    return Verdict(every(alone, among, 1.0), says, min(alone, key=lambda score: score.value))


def judge_large(found: Found) -> Verdict:
    batches = sorted({int(str(row["batch"])) for row in rows_of(found)})
    cells = [cell for kept in found for cell in kept.numbers["nearer"]]
    alone, among = ([negated(Score(cell["value"], *cell[count])) for cell in cells] for count in ("alone", "among"))
    shown = ", ".join(score_text(negated(score)) for score in alone)
    says = f"Distance of the quotient from 1 at K = {batches[-1]} less that at {batches[0]}: {shown}."
    return Verdict(every(alone, among), says, max((negated(score) for score in alone), key=lambda score: score.value))


STUDY = Study(
    name="gradient-noise",
    title="Whose gradient is noisier?",
    source=f"{FLATNCE}, Fig. 2",
    experiment=(
        f"ResNet-18 on CIFAR-10, InfoNCE at temperature {TEMPERATURE:g}, batch {TRAINING_BATCH}, {EPOCHS:g} epochs. At "
        f"three checkpoints, tr Cov / |mean|^2 of the gradients of 64 batches of K = {SMALL} and {LARGE} images, of "
        "InfoNCE and of FlatNCE at the same weights, batches and temperature, in float32 and bfloat16."
    ),
    changed=(
        f"{SMALL_VIEWS_CHANGE}; both are measured along one run instead of each along its own, so that only the "
        "objective differs."
    ),
    claims=(
        Claim(
            f"{FLATNCE}, Fig. 2",
            "At small batches InfoNCE's gradient is noisier than FlatNCE's.",
            f"quotient above 1 at K = {SMALL}, bootstrap interval, at every checkpoint and precision",
            judge_small,
        ),
        Claim(
            f"{FLATNCE}, Fig. 2",
            "At large batches the two are alike.",
            f"the quotient is nearer to 1 at K = {LARGE}, bootstrap interval, at every checkpoint and precision",
            judge_large,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=1,
    budget="about 5 GPU minutes",
    brackets="95 % intervals of a bootstrap over batches",
)
