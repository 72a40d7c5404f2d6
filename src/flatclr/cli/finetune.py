"""`flatclr finetune`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.embed import Architecture, AsJson, DataDir, Device, Encoder, ImageSize, Quiet
from flatclr.cli.eval_display import EvaluationDisplay
from flatclr.cli.options import DATA, OUTPUT
from flatclr.evaluation.classifier import FinetunedClassifier, finetune
from flatclr.evaluation.classifier import FinetuneRequest as Defaults
from flatclr.files import require_place

Option = typer.Option
OPTIMISATION = "Optimisation"


def finetune_command(
    encoder: Encoder,
    epochs: Annotated[
        int | None,
        Option(
            help="How many passes over the labelled images.",
            rich_help_panel=OPTIMISATION,
            show_default="5, and at least 200 steps",
        ),
    ] = None,
    seed: Annotated[
        int, Option(help="The seed of the labels that are drawn and of training.", rich_help_panel=OPTIMISATION)
    ] = Defaults.seed,
    data: Annotated[
        str | None,
        Option(
            help="The labelled images: whatever flatclr train --data takes; sub-folders are classes.",
            rich_help_panel=DATA,
            show_default="those of the run",
        ),
    ] = None,
    labels: Annotated[
        str,
        Option(help="How many labels are used: a share such as 10%, or a number of images.", rich_help_panel=DATA),
    ] = "100%",
    data_dir: DataDir = None,
    image_size: ImageSize = None,
    architecture: Architecture = None,
    device: Device = "auto",
    out: Annotated[
        str | None,
        Option(
            help="The folder of the classifier.", rich_help_panel=OUTPUT, show_default="finetuned/ beside the encoder"
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an encoder further with labels, and keep the classifier.

    The accuracy is that on held-out images, with its 95 % interval. flatclr.evaluation.load_classifier reads what is
    written.
    """
    folder = require_place(out) if out is not None else _home(encoder) / "finetuned"
    if folder.is_file():
        raise ValueError(f"--out must be a folder, got the file {folder}; name another.")
    with EvaluationDisplay(quiet=as_json or quiet) as display:
        classifier = finetune(
            encoder,
            data,
            labels=labels,
            epochs=epochs,
            image_size=image_size,
            data_dir=data_dir,
            architecture=architecture,
            device=device,
            seed=seed,
            progress=display.progressed,
        )
    classifier.save(folder)
    if as_json:
        print(json.dumps({"classifier": str(folder), "classes": list(classifier.classes), **classifier.about}))
    else:
        print(_sentence(classifier))
        print(f"classifier: {folder}")


def _home(encoder: str) -> Path:
    path = Path(encoder)
    return path if path.is_dir() else path.parent if path.exists() else Path()


def _sentence(classifier: FinetunedClassifier) -> str:
    about, accuracy = classifier.about, classifier.accuracy
    return (
        f"accuracy {100 * accuracy.value:.1f} % [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}] (95 %) on "
        f"{about['test_images']:,} held-out images, {len(classifier.classes)} classes, from {about['labels']:,} labels "
        f"({100 * about['label_share']:.3g} %)"
    )
