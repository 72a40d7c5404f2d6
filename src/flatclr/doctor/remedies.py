"""Changes of a run as a command line that works as it is typed."""

from __future__ import annotations

import json
import shlex
from typing import Any

from flatclr.doctor.evidence import Evidence
from flatclr.training.config import OWN, describe_settings

WITH_OPTION = frozenset(  # settings that `flatclr train` has an option for; the others go through --set
    {"data", "data_dir", "labels", "image_size", "max_bad_images", "views_per_image", "positives", "view_size"}
    | {"encoder", "init", "objective", "ess_target", "temperature", "batch_size", "micro_batch", "epochs", "steps"}
    | {"optimizer", "learning_rate", "seed", "precision", "device", "log_every", "eval_every", "checkpoint_every"}
    | {"keep_checkpoints", "probe_every", "wandb"}
)


def train_command(evidence: Evidence, **changes: Any) -> str | None:
    """The command that trains as the run did, but for these settings.

    Args:
        evidence: of the run, with its settings.
        changes: settings to change; None goes back to the default.

    Returns:
        None where no command line can say it: the data, the encoder or the objective came from Python, or the run is
        one of another library.

    >>> photos = Evidence([], {"data": "photos", "objective": "infonce", "batch_size": 8})
    >>> train_command(photos, objective="flatnce")
    'flatclr train --data photos --batch-size 8 --objective flatnce'
    """
    settings = evidence.settings
    if settings.get("data") is None or OWN in (settings.get("encoder"), settings.get("objective")):
        return None
    defaults = {row.name: row.default for row in describe_settings()}
    passed_over = {"out", *evidence.left_open, *changes}
    if "ess_target" in changes or settings.get("temperature") is not None:
        passed_over |= {"ess_target" if "ess_target" not in changes else "temperature"}
    kept = {n: v for n, v in settings.items() if n not in passed_over and n in defaults and v != defaults[n]}
    wanted = {name: value for name, value in {**kept, **changes}.items() if value is not None}
    return " ".join(["flatclr train", *(_option(name, value) for name, value in wanted.items())])


def _option(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
    if name == "ess_target" and isinstance(value, list | tuple):
        text = ",".join(f"{epoch:g}:{target:g}" for epoch, target in value)
    if name in WITH_OPTION:
        return f"--{name.replace('_', '-')} {shlex.quote(text)}"
    return f"--set {shlex.quote(f'{name}={text}')}"


def one_digit(value: float) -> float:
    """
    >>> one_digit(0.00347)
    0.003
    """
    return float(f"{value:.0e}")
