"""`flatclr eval`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flatclr.evaluation.evaluator import evaluate
from flatclr.evaluation.protocols import PROTOCOLS
from flatclr.evaluation.request import EvaluationRequest as Defaults
from flatclr.evaluation.results import RESULTS, Evaluation, Row
from flatclr.models.network import Normalisation

Option = typer.Option
NAMES = ", ".join(PROTOCOLS)


def eval_command(
    encoder: Annotated[
        str,
        typer.Argument(help="Run directory, encoder.safetensors, timm:NAME, torchvision:NAME or a state-dict file."),
    ],
    protocol: Annotated[str, Option(help=f"{NAMES}, several with commas between, or all.")] = "all",
    data: Annotated[
        str | None, Option(help="What train --data takes; default: the run's own, else the embedded images.")
    ] = None,
    data_dir: Annotated[str | None, Option(help="Where named datasets are; also FLATCLR_DATA.")] = None,
    image_size: Annotated[int | None, Option(help="Side of the square images; default: the encoder's own.")] = None,
    transfer_data: Annotated[str | None, Option(help="Data of transfer; default: scikit-learn's digits.")] = None,
    layer: Annotated[
        str | None, Option(help="Probe this layer instead of the output; all: every layer by depth, head included.")
    ] = None,
    architecture: Annotated[str | None, Option(help="Of a state-dict file: cnn, resnet18, timm:NAME ...")] = None,
    prefix: Annotated[
        str, Option(help="What the keys of a state-dict file begin with, if not a usual one.")
    ] = Defaults.prefix,
    mean: Annotated[
        str | None, Option(help="Of the images in [0, 1], by channel with commas between, for weights from elsewhere.")
    ] = None,
    std: Annotated[str | None, Option(help="Deviation that goes with --mean.")] = None,
    draws: Annotated[int, Option(help="Label subsets of semi.")] = Defaults.draws,
    random_row: Annotated[bool, Option(help="Measure random weights too.")] = Defaults.random_row,
    seed: Annotated[int, Option(help="Of splits, draws and random weights.")] = Defaults.seed,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1; auto: cuda where there is one.")] = "auto",
    out: Annotated[str | None, Option(help="Folder of results.json and the figure; default: by the encoder.")] = None,
    cache: Annotated[
        bool, Option(help="Keep features beside the encoder, so that they are computed only once.")
    ] = True,
    as_json: Annotated[bool, Option("--json", help="Print one JSON line per result instead of the display.")] = False,
) -> None:
    """Measure an encoder: every protocol with 95 % intervals, beside random weights."""
    from flatclr.cli.eval_display import EvaluationDisplay

    folder = Path(out) if out is not None else _home(encoder) / "evaluation"
    with EvaluationDisplay(quiet=as_json) as display:
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
            seed=seed,
            device=device,
            cache=folder / "features" if cache else None,
            out=folder,
            progress=display.progressed,
            on_row=_print_row if as_json else display.ready,
        )
    if as_json:
        _print_end(found, folder)
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
