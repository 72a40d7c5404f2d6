"""`flatclr eval`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.options import DATA, ELSEWHERE, HARDWARE, MEASUREMENT, OUTPUT, option_of, quiet_option
from flatclr.evaluation.evaluator import evaluate
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.evaluation.request import EvaluationRequest as Defaults
from flatclr.evaluation.results import RESULTS, Evaluation, Row
from flatclr.files import require_place
from flatclr.models.network import Normalisation

Option = typer.Option
NAMES = ", ".join(PROTOCOLS)


def eval_command(
    encoder: Annotated[
        str,
        typer.Argument(
            help="What is measured: a run directory, also of a run that is not at its end, encoder.safetensors, "
            "timm:NAME, torchvision:NAME or a state-dict file."
        ),
    ],
    protocol: Annotated[
        str,
        Option(
            help=f"The protocols, separated by commas: {NAMES}; 'auto' runs those that the data allows, transfer only "
            "with --transfer-data; 'all' adds the transfer to digits.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = "auto",
    layer: Annotated[
        str | None,
        Option(
            help="The layer to probe; 'all' probes every layer by depth, projection head included.",
            rich_help_panel=MEASUREMENT,
            show_default="the output",
        ),
    ] = None,
    draws: Annotated[
        int, Option(help="How many subsets of labels the protocol semi draws.", rich_help_panel=MEASUREMENT)
    ] = Defaults.draws,
    recipe: Annotated[
        str,
        Option(
            help="How finetune, semi and transfer train: own, or paper, that of FlatNCE (Adam without a penalty, 100 "
            "epochs, transfer data resized bicubically).",
            rich_help_panel=MEASUREMENT,
        ),
    ] = Defaults.recipe,
    random_row: Annotated[
        bool, Option(help="Whether random weights are measured too.", rich_help_panel=MEASUREMENT)
    ] = Defaults.random_row,
    seed: Annotated[
        int, Option(help="The seed of splits, draws and random weights.", rich_help_panel=MEASUREMENT)
    ] = Defaults.seed,
    data: Annotated[
        str | None,
        Option(
            help="The images to measure on, whatever flatclr train --data takes; or the sentences, a .csv file with "
            "the columns text and label, or train.csv,test.csv.",
            rich_help_panel=DATA,
            show_default="those of the run, else the embedded images",
        ),
    ] = None,
    data_dir: Annotated[str | None, option_of("data_dir")] = None,
    image_size: Annotated[
        int | None,
        Option(
            help="The side in pixels that images are brought to.",
            rich_help_panel=DATA,
            show_default="that of the encoder",
        ),
    ] = None,
    transfer_data: Annotated[
        str | None,
        Option(help="The data of the protocol transfer.", rich_help_panel=DATA, show_default="scikit-learn's digits"),
    ] = None,
    architecture: Annotated[
        str | None,
        Option(
            help="The architecture of a state-dict file: cnn, resnet18, timm:NAME and so on.", rich_help_panel=ELSEWHERE
        ),
    ] = None,
    prefix: Annotated[
        str,
        Option(
            help="What the keys of a state-dict file begin with, where it is not a usual prefix.",
            rich_help_panel=ELSEWHERE,
        ),
    ] = Defaults.prefix,
    mean: Annotated[
        str | None,
        Option(
            help="The mean of the images in [0, 1] that the weights were trained on, one number per channel, separated "
            "by commas.",
            rich_help_panel=ELSEWHERE,
        ),
    ] = None,
    std: Annotated[
        str | None, Option(help="The standard deviation that goes with --mean.", rich_help_panel=ELSEWHERE)
    ] = None,
    device: Annotated[
        str, Option(help="The device: cpu, cuda or cuda:1; auto: cuda where there is one.", rich_help_panel=HARDWARE)
    ] = "auto",
    out: Annotated[
        str | None,
        Option(
            help="The folder of results.json and the figure.",
            rich_help_panel=OUTPUT,
            show_default="evaluation/ beside the encoder",
        ),
    ] = None,
    cache: Annotated[
        bool,
        Option(help="Whether features are kept on disk, so that they are computed only once.", rich_help_panel=OUTPUT),
    ] = True,
    as_json: Annotated[
        bool,
        Option("--json", help="Print one JSON line per result instead of the display.", rich_help_panel=OUTPUT),
    ] = False,
    quiet: Annotated[bool, quiet_option("Print only where the results are.")] = False,
) -> None:
    """Measure an encoder by fixed protocols, with 95 % intervals, beside the same encoder with random weights."""
    from flatclr.cli.eval_display import EvaluationDisplay

    folder = require_place(out) if out is not None else _home(encoder) / "evaluation"
    with EvaluationDisplay(quiet=as_json or quiet) as display:
        found = evaluate(
            encoder,
            data,
            protocol if "," not in protocol else [name.strip() for name in protocol.split(",")],
            layer=layer,
            transfer_data=transfer_data,
            data_dir=data_dir,
            image_size=image_size,
            architecture=architecture,
            prefix=prefix,
            normalisation=_normalisation(mean, std),
            random_row=random_row,
            draws=draws,
            recipe=recipe,
            seed=seed,
            device=device,
            cache=folder / "features" if cache else None,
            out=folder,
            progress=display.progressed,
            on_row=_print_row if as_json else display.ready,
        )
    if as_json:
        _print_end(found, folder)
    elif quiet:
        print(folder / RESULTS)
    else:
        display.table(found, folder)
        if found.set_aside:
            print(f"earlier results of other weights or settings are kept in {folder / found.set_aside}")


def _print_row(row: Row) -> None:
    print(json.dumps({"kind": "row", **asdict(row)}), flush=True)


def _print_end(found: Evaluation, folder: Path) -> None:
    end = {
        "kind": "end",
        "results": str(folder / RESULTS),
        "skipped": found.skipped,
        "weights": found.report,
        "set_aside": found.set_aside,
    }
    print(json.dumps(end))


def _home(encoder: str) -> Path:
    path = Path(encoder)
    return path if path.is_dir() else path.parent if path.exists() else Path()


def _normalisation(mean: str | None, std: str | None) -> Normalisation | None:
    if mean is None and std is None:
        return None
    try:
        return Normalisation(*(tuple(float(part) for part in (text or "").split(",")) for text in (mean, std)))
    except ValueError as error:
        raise ValueError(
            f"--mean and --std must be numbers with commas between, got {mean!r} and {std!r}; "
            "pass both, such as --mean 0.5,0.5,0.5 --std 0.25,0.25,0.25."
        ) from error
