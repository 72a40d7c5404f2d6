"""`flatclr train`"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer
import yaml

from flatclr.report.page import write_report
from flatclr.training.config import TrainConfig
from flatclr.training.launch import process_group
from flatclr.training.recipes import RECIPES
from flatclr.training.trainer import train

Option = typer.Option


def train_command(
    recipe: Annotated[str | None, Option(help="Start from a recipe; 'list' shows them.")] = None,
    resume: Annotated[str | None, Option(help="Go on with the run in this directory.")] = None,
    data: Annotated[
        str | None, Option(help="Folder, .npz, .npy, .tar shards or a name; default: embedded images.")
    ] = None,
    data_dir: Annotated[str | None, Option(help="Where named datasets are; also FLATCLR_DATA.")] = None,
    image_size: Annotated[int | None, Option(help="Side of the square images; default: that of the data.")] = None,
    objective: Annotated[
        str | None, Option(help="infonce, flatnce, holder, align_uniform, fmicl, rpc, dv, nwj, flo.")
    ] = None,
    ess_target: Annotated[
        str | None,
        Option(help="Hold the effective sample size of the negatives here; 0:0.5,20:0.2 goes there by epoch 20."),
    ] = None,
    temperature: Annotated[float | None, Option(help="A fixed temperature instead of ESS control.")] = None,
    encoder: Annotated[
        str | None, Option(help="cnn, mlp, resnet18, resnet34, resnet50, timm:NAME, torchvision:NAME.")
    ] = None,
    batch_size: Annotated[int | None, Option(help="Images of the global batch.")] = None,
    micro_batch: Annotated[
        int | None, Option(help="Encode this many images at once; the gradient is still that of the whole batch.")
    ] = None,
    epochs: Annotated[float | None, Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, Option(help="Optimizer steps, instead of epochs.")] = None,
    optimizer: Annotated[str | None, Option(help="sgd, adamw or lars.")] = None,
    learning_rate: Annotated[float | None, Option(help="Before scaling with the batch.")] = None,
    precision: Annotated[str | None, Option(help="fp32, bf16 or fp16.")] = None,
    graph: Annotated[bool | None, Option(help="Capture the step in a CUDA graph; --no-graph for debugging.")] = None,
    seed: Annotated[int | None, Option(help="Of everything random.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1; default: cuda where there is one.")] = None,
    out: Annotated[str | None, Option(help="Run directory; default: runs/<data>-<objective>-<seed>.")] = None,
    log_every: Annotated[int | None, Option(help="Steps between lines of metrics.")] = None,
    eval_every: Annotated[int | None, Option(help="Steps between evaluations.")] = None,
    checkpoint_every: Annotated[int | None, Option(help="Steps between checkpoints; default: an epoch.")] = None,
    wandb: Annotated[str | None, Option(help="Log to this Weights & Biases project, besides TensorBoard.")] = None,
    setting: Annotated[
        list[str] | None, Option("--set", help="Any other setting, NAME=VALUE with a YAML value; may be repeated.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON line per event instead of the display.")] = False,
) -> None:
    """Train an encoder without labels and write a run directory."""
    given = {name: value for name, value in locals().items() if value is not None}
    for name in ("recipe", "resume", "setting", "as_json"):
        given.pop(name, None)
    if recipe == "list":
        for name, make in RECIPES.items():
            print(f"{name:<18} {(make.__doc__ or '').strip().splitlines()[0] if make.__doc__ else ''}")
        return
    if ess_target is not None:
        given["ess_target"] = _targets(ess_target)
    given |= dict(_parsed(text) for text in setting or [])
    for one, other in (("temperature", "ess_target"), ("steps", "epochs")):
        if given.get(one) is not None and given.get(other) is not None:
            flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise ValueError(f"only one of {' and '.join(flags)} must be given, got both; leave one out.")
    if resume is not None and given:
        raise ValueError(f"--resume must stand alone, got {sorted(given)} too; a run goes on with its own settings.")
    config = _recipe(recipe).changed(**given) if resume is None else TrainConfig()

    from flatclr.cli.display import JsonLines, LiveDisplay

    with process_group() as ranks, JsonLines() if as_json else LiveDisplay(quiet=ranks.rank != 0) as display:
        result = train(config, resume=resume, on_event=[display])
        if ranks.rank == 0:
            display.report(write_report(result.path))


def _recipe(name: str | None) -> TrainConfig:
    if name is None:
        return TrainConfig()
    from flatclr.checks import require_one_of

    require_one_of("recipe", name, RECIPES)
    return RECIPES[name]()


def _targets(text: str) -> float | list[list[float]]:
    try:
        if ":" not in text:
            return float(text)
        return [[float(number) for number in point.split(":")] for point in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--ess-target must be a number or EPOCH:TARGET,EPOCH:TARGET, got {text!r}; say 0.25 or 0:0.5,20:0.2."
        ) from None


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set must be NAME=VALUE, got {text!r}; for example --set weight_decay=0.0005.")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {name} must have a YAML value, got {value!r}; say --set 'views={{}}'.") from error
    if isinstance(parsed, str):
        with suppress(ValueError):
            parsed = float(parsed)  # YAML 1.1 takes 1e-4 for text
    return name.strip().replace("-", "_"), parsed
