"""`flatclr export`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flatclr.cli.options import OUTPUT, quiet_option
from flatclr.evaluation.features import weights_digest
from flatclr.evaluation.opening import finished_run
from flatclr.evaluation.results import markdown_table, read_results
from flatclr.models.export import export_folder, export_onnx, require_export_target, require_file_target
from flatclr.models.saving import load_encoder

Option = typer.Option


def export_command(
    encoder: Annotated[
        str, typer.Argument(help="What is exported: a run directory, an encoder folder or encoder.safetensors.")
    ],
    onnx: Annotated[
        str | None,
        Option(help="The ONNX file to write; it is checked with onnxruntime.", rich_help_panel=OUTPUT),
    ] = None,
    folder: Annotated[
        str | None,
        Option(
            help="The Hugging Face style folder to write, with a model card, config.json and model.safetensors.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print nothing.")] = False,
) -> None:
    """Take an encoder away, as an ONNX file or as a folder for the Hugging Face hub."""
    if onnx is None and folder is None:
        raise ValueError("export must be told what to write, got neither --onnx nor --folder; pass one or both.")
    if onnx is not None:
        require_file_target(onnx)
    if folder is not None:
        require_export_target(folder)
    finished_run(Path(encoder))
    loaded = load_encoder(encoder)
    written: dict[str, object] = {}
    if onnx is not None:
        written |= {"onnx": onnx, "largest_difference": export_onnx(loaded, onnx)}
    if folder is not None:
        home = Path(encoder) if Path(encoder).is_dir() else Path(encoder).parent
        digest = weights_digest(loaded)
        found = [read_results(place) for place in (home / "evaluation", home)]  # of the command, of Python
        tables = [markdown_table(one) for one in found if one is not None and one.encoder_sha256 == digest]
        export_folder(loaded, folder, results="\n\n".join(tables))
        written["folder"] = folder
    if quiet and not as_json:
        return
    print(json.dumps(written) if as_json else "\n".join(f"{key}: {value}" for key, value in written.items()))
