"""`flatclr embed`"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from flatclr.cli.eval_display import EvaluationDisplay
from flatclr.cli.options import DATA, ELSEWHERE, HARDWARE, MEASUREMENT, OUTPUT, quiet_option
from flatclr.evaluation.embedding import embed, require_target

Option = typer.Option
ENCODER_HELP = "A run directory, encoder.safetensors, timm:NAME, torchvision:NAME or a state-dict file."
Encoder = Annotated[str, typer.Argument(help=ENCODER_HELP)]
Data = Annotated[
    str | None,
    Option(
        help="The images, whatever flatclr train --data takes; or the sentences, a .txt file, or a .csv file with the "
        "columns text and label.",
        rich_help_panel=DATA,
        show_default="those of the run",
    ),
]
DataDir = Annotated[str | None, Option(help="The folder of named datasets.", rich_help_panel=DATA)]
Labels = Annotated[
    str | None,
    Option(
        help="Whether sub-folders of images are classes: folders, none or auto.",
        rich_help_panel=DATA,
        show_default="auto",
    ),
]
ImageSize = Annotated[
    int | None,
    Option(
        help="The side in pixels that images are brought to; arrays of another size than the encoder's need it.",
        rich_help_panel=DATA,
        show_default="that of the encoder",
    ),
]
Architecture = Annotated[
    str | None, Option(help="The architecture of a state-dict file, say resnet18.", rich_help_panel=ELSEWHERE)
]
Device = Annotated[
    str, Option(help="The device: cpu, cuda or cuda:1; auto: cuda where there is one.", rich_help_panel=HARDWARE)
]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of text.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, quiet_option("Show no progress.")]


def embed_command(
    encoder: Encoder,
    layer: Annotated[
        str | None,
        Option(
            help="The layer whose output is taken.", rich_help_panel=MEASUREMENT, show_default="the encoder's output"
        ),
    ] = None,
    data: Data = None,
    data_dir: DataDir = None,
    labels: Labels = None,
    image_size: ImageSize = None,
    architecture: Architecture = None,
    device: Device = "auto",
    out: Annotated[
        str,
        Option(
            help="The file to write: .npz with the arrays features, names and labels, or .parquet with a column per "
            "feature.",
            rich_help_panel=OUTPUT,
        ),
    ] = "embeddings.npz",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the features of images or sentences, with their names and labels, to one file.

    Images are sized and normalised as in the encoder's training. Sentences are told apart and read as there.
    """
    target = require_target(out)
    with EvaluationDisplay(quiet=as_json or quiet) as display:
        found = embed(
            encoder,
            data,
            image_size=image_size,
            labels=labels,
            layer=layer,
            data_dir=data_dir,
            architecture=architecture,
            device=device,
            progress=display.progressed,
        )
    found.save(target)
    told: dict[str, Any] = {"embeddings": str(target), found.kind: len(found), "features": found.features.shape[1]}
    told["labels"] = None if found.labels is None else len(set(found.labels))
    print(json.dumps(told) if as_json else _sentence(found.kind, told))


def _sentence(kind: str, told: dict[str, Any]) -> str:
    labels = "no labels" if told["labels"] is None else f"labels of {told['labels']} classes"
    return f"{told['embeddings']}: {told[kind]:,} {kind}, {told['features']} features each, names, {labels}"
