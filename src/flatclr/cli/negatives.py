"""`flatclr negatives`"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

from flatclr.checks import require_count
from flatclr.cli.options import DATA, ESTIMATE, OUTPUT, quiet_option
from flatclr.files import json_ready
from flatclr.studies.latent_classes import class_prior
from flatclr.studies.useful_negatives import (
    DEFAULT_MOST,
    DEFAULT_WITHIN,
    MOST_CLASSES,
    AtNegatives,
    UsefulNegatives,
    useful_negatives,
)

Option = typer.Option
NOT_TOLD = 1


def negatives_command(
    classes: Annotated[
        int | None,
        Option(
            help="How many classes; equally frequent unless a prior is given.",
            rich_help_panel=DATA,
            show_default="those of the prior",
        ),
    ] = None,
    prior: Annotated[
        str | None,
        Option(
            metavar="FREQUENCIES",
            help="The frequency of each class, separated by commas; they need not sum to 1.",
            rich_help_panel=DATA,
            show_default="balanced",
        ),
    ] = None,
    most: Annotated[int, Option(help="The most negatives to try.", rich_help_panel=ESTIMATE)] = DEFAULT_MOST,
    within: Annotated[
        float,
        Option(help="Which part of the loss with many negatives counts as no difference.", rich_help_panel=ESTIMATE),
    ] = DEFAULT_WITHIN,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object instead.", rich_help_panel=OUTPUT)] = False,
    quiet: Annotated[bool, quiet_option("Print the answer alone.")] = False,
) -> None:
    """Say how many negatives are useful, given the frequencies of your classes.

    For the best representation of the latent-class model, computed without sampling: positives are of the anchor's
    class, and negatives of any. Ends with exit code 1 where the minimisations that the answer rests on did not
    converge.
    """
    from flatclr.cli.eval_display import EvaluationDisplay

    with EvaluationDisplay(quiet=as_json or quiet) as display:
        found = useful_negatives(_prior(classes, prior), most=most, within=within, progress=display.progressed)
    if as_json:
        content = {
            "useful": found.useful,
            "converged": not found.unsettled,
            "rows": [asdict(row) for row in found.rows],
            "limit": asdict(found.limit),
        }
        print(json.dumps(json_ready(content)))
    elif quiet:
        print(_answer(found))
    else:
        _show(found)
    if found.unsettled:
        raise typer.Exit(NOT_TOLD)


def _prior(classes: int | None, text: str | None) -> Tensor:
    if text is None:
        if classes is None:
            raise ValueError("classes must be known, got neither --classes nor --prior; say --classes 10.")
        require_count("classes", classes, at_least=2, at_most=MOST_CLASSES, advice="join rare classes.")
        return class_prior([1.0] * classes)
    try:
        frequencies = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"prior must be numbers separated by commas, got {text!r}; say 0.7,0.2,0.1.") from error
    if classes is not None and classes != len(frequencies):
        raise ValueError(
            f"prior must have a frequency for each of {classes} classes, got {len(frequencies)}; leave out --classes."
        )
    return class_prior(frequencies)


def _show(found: UsefulNegatives) -> None:
    console = Console()
    table = Table(
        Column("negatives", justify="right"),
        Column("supervised loss", justify="right"),
        Column("nearest classes, cosine", justify="right"),
        Column("pairs of classes that coincide", justify="right"),
        Column("some negative is of the anchor's class", justify="right"),
    )
    for row in (*found.rows, found.limit):
        table.add_row(
            "many" if row.negatives is None else str(row.negatives),
            f"{row.supervised:.6f}",
            f"{row.nearest_cosine:.4f}",
            str(len(row.together)),
            "" if row.collision is None else f"{row.collision:.1%}",
        )
    console.print(table)
    console.print(_answer(found), highlight=False, markup=False)


def _answer(found: UsefulNegatives) -> str:
    tried = found.rows[-1].negatives
    if found.unsettled:
        where = ", ".join("many" if row.negatives is None else str(row.negatives) for row in found.unsettled)
        return (
            f"How many negatives are useful could not be told: the minimisation did not converge at k = {where}. "
            "Join classes that are very rare."
        )
    if found.useful is None:
        return f"More than {tried} negatives are useful: pass a larger --most."
    many = "negative is" if found.useful == 1 else "negatives are"
    harm = " More do not hurt it." if found.never_rises else " Somewhere more raise it."
    if not all(row.converged for row in found.rows):
        harm = " Whether more hurt could not be told."
    never = _never(found.limit)
    return (
        f"{found.useful} {many} enough: with more, the supervised loss of the best representation falls by less than "
        f"{found.within:.2g} of itself, and no more classes separate.{harm}{never}"
    )


def _never(limit: AtNegatives) -> str:
    if not limit.together:
        return ""
    pairs = ", ".join(f"{first} and {second}" for first, second in limit.together[:3])
    return f" However many there are, {len(limit.together)} pairs of classes coincide ({pairs}), counted from 0."
