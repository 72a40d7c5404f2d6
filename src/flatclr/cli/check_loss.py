"""`flatclr check-loss`"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from flatclr.cli.options import OUTPUT, parsed_setting, quiet_option
from flatclr.diagnostics.check_loss import (
    LossCheck,
    check_loss,
    info_nce_of_orthonormal_pairs,
    value_on_orthonormal_pairs,
)
from flatclr.heartbeat import Heartbeat
from flatclr.training.display import Lines

Option = typer.Option
LOSS, PAIRS = "Loss", 8
DIFFERS = 1
PLACES = {"{rank}": 0, "{ranks}": 1}  # what stands for the process and how many there are, with one


def check_loss_command(
    loss: Annotated[
        str, typer.Argument(help="The loss as MODULE:NAME, a class or function; it is called with (z_a, z_b).")
    ],
    ranks: Annotated[
        str, Option(help="The numbers of processes to try, separated by commas.", rich_help_panel=LOSS)
    ] = "2",
    option: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the class, with a YAML value; may be repeated. '{rank}' and '{ranks}' stand for the "
            "process and how many there are.",
            rich_help_panel=LOSS,
        ),
    ] = None,
    argument: Annotated[
        list[float] | None,
        Option(help="A number that follows z_a and z_b in the call; may be repeated.", rich_help_panel=LOSS),
    ] = None,
    temperature: Annotated[
        float | None,
        Option(
            help="The temperature of the loss, to compare its value with InfoNCE's at known inputs.",
            rich_help_panel=LOSS,
        ),
    ] = None,
    seed: Annotated[int, Option(help="The seed of the batch.", rich_help_panel=LOSS)] = 0,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON line per result instead of text.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, quiet_option("Print nothing; the exit code tells.")] = False,
) -> None:
    """Test whether a loss has the same gradient on several processes as on one, and its value at known inputs.

    The gradient is that of a weight before the loss, averaged over processes as DistributedDataParallel does. Exit code
    1 means that it differs.
    """
    options = dict(_parsed(text) for text in option or [])
    counts = _counts(ranks)
    value = value_on_orthonormal_pairs(loss, pairs=PAIRS, options=_alone(options), arguments=argument or ())
    known = {} if temperature is None else info_nce_of_orthonormal_pairs(PAIRS, temperature)
    if as_json:
        print(json.dumps({"pairs": PAIRS, "value": value, "info_nce": known}), flush=True)
    elif not quiet:
        print(_of_value(loss, value, known), flush=True)
    equal, lines = True, Lines(Console(stderr=True, quiet=as_json or quiet))
    for number, count in enumerate(counts):  # each is said when it is known: processes take seconds to start
        lines.moved(f"loss on {count} processes", number, len(counts))
        with Heartbeat(lines.alive):
            (check,) = check_loss(loss, ranks=[count], options=options, arguments=argument or (), seed=seed)
        equal = equal and check.equal
        if as_json or not quiet:
            print(json.dumps({**asdict(check), "equal": check.equal}) if as_json else _of_gradient(check), flush=True)
        lines.said()
    if not equal:
        raise typer.Exit(DIFFERS)


def _of_value(loss: str, value: float, known: dict[str, float]) -> str:
    said = f"{loss} is {value:.6g} on {PAIRS} orthonormal pairs"
    for pairing, expected in known.items():
        same = "as" if abs(value - expected) <= 1e-5 * max(1.0, abs(expected)) else "not as"
        said += f"; {same} InfoNCE by pairing {pairing}, {expected:.6g}"
    return f"{said}."


def _of_gradient(check: LossCheck) -> str:
    verdict = "the same as" if check.equal else "NOT that of"
    return (
        f"on {check.ranks} processes the gradient is {verdict} one process (largest difference "
        f"{check.gradient_difference:.2g} of the largest entry; values {check.value[0]:.6g} and {check.value[1]:.6g})"
    )


def _alone(options: dict[str, Any]) -> dict[str, Any]:
    return {name: PLACES.get(str(value), value) for name, value in options.items()}


def _parsed(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return (name.strip(), value) if value in PLACES else parsed_setting(text)


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--ranks must be whole numbers with commas between, got {text!r}; say 2,4.") from None
