"""Changes of a run as a command line that works as it is typed."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from flatclr.data.views import ViewConfig
from flatclr.doctor.evidence import Evidence
from flatclr.models.encoders import OWN_ENCODERS
from flatclr.training.config import OWN, describe_settings

DEFAULTS = {row.name: row.default for row in describe_settings()}
USUAL_CROPS = ViewConfig.crop_scale
SMALL_CROPS, LARGE_CROPS = (0.08, 1.0), (0.5, 1.0)  # shares of an image
OF_THE_DATA = ("flip_probability", "mean", "std")  # fields of the views that another strength leaves as they are
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
        None where they are no change, or where no command line can say it: the data, the encoder or the objective came
        from Python, or the run is one of another library.

    >>> photos = Evidence([], {"data": "photos", "objective": "infonce", "batch_size": 8})
    >>> train_command(photos, objective="flatnce")
    'flatclr train --data photos --batch-size 8 --objective flatnce'
    >>> train_command(photos, batch_size=8) is None
    True
    """
    settings = evidence.settings
    if settings.get("data") is None or OWN in (settings.get("encoder"), settings.get("objective")):
        return None
    before = _apart_from_defaults(evidence, settings)
    after = _apart_from_defaults(evidence, {**settings, **changes}, set(changes))
    told = {name: value for name, value in changes.items() if value is not None}
    if {name: value for name, value in {**after, **told}.items() if value != DEFAULTS.get(name)} == before:
        return None
    kept = {name: value for name, value in after.items() if name not in changes}
    return " ".join(["flatclr train", *(_option(name, value) for name, value in {**kept, **told}.items())])


def _apart_from_defaults(
    evidence: Evidence, settings: Mapping[str, Any], changed: Collection[str] = ()
) -> dict[str, Any]:
    """Settings that a command has to say; of two that exclude each other, the one that holds."""
    passed_over = {"out", *(evidence.left_open - set(changed))}
    if "ess_target" in changed:
        passed_over |= {"temperature"}
    elif settings.get("temperature") is not None:
        passed_over |= {"ess_target"}
    if settings.get("steps") is not None:
        passed_over |= {"epochs"}
    known = {name: value for name, value in settings.items() if name in DEFAULTS and name not in passed_over}
    back = {name for name in changed if known.get(name) is None}
    return {name: value for name, value in known.items() if name not in back and value != DEFAULTS[name]}


def of_run(evidence: Evidence, command: str, *options: str) -> str | None:
    """A command about the run itself; None of another library's.

    >>> of_run(Evidence([], run="my runs/a"), "report")
    "flatclr report 'my runs/a'"
    """
    return None if evidence.run is None else " ".join(["flatclr", command, shlex.quote(evidence.run), *options])


def slower(evidence: Evidence) -> str | None:
    """To train at a tenth of the learning rate."""
    rate = evidence.settings.get("learning_rate")
    return train_command(evidence, learning_rate=one_digit(rate / 10)) if isinstance(rate, int | float) else None


def grouped_norm(evidence: Evidence) -> str | None:
    """To train with group normalisation, where the encoder has it."""
    made, options = OWN_ENCODERS.get(str(evidence.settings.get("encoder"))), evidence.settings.get("encoder_options")
    if made is None or "norm" not in inspect.signature(made).parameters:
        return None
    return train_command(evidence, encoder_options={**(options or {}), "norm": "group"})


def stronger_views(evidence: Evidence) -> dict[str, Any]:
    """Usual crops, and smaller ones where the run had those."""
    return _views(evidence, USUAL_CROPS if _smallest_crop(evidence) > USUAL_CROPS[0] else SMALL_CROPS)


def milder_views(evidence: Evidence) -> dict[str, Any]:
    """Usual crops, and larger ones where the run had those."""
    return _views(evidence, USUAL_CROPS if _smallest_crop(evidence) < USUAL_CROPS[0] else LARGE_CROPS)


def _views(evidence: Evidence, crops: tuple[float, float]) -> dict[str, Any]:
    """The views that are usual, at these crops; only the data knows whether a mirror image is another one."""
    own = evidence.settings.get("views") or {}
    return {**{name: own[name] for name in OF_THE_DATA if name in own}, "crop_scale": list(crops)}


def _smallest_crop(evidence: Evidence) -> float:
    return float((evidence.settings.get("views") or {}).get("crop_scale", USUAL_CROPS)[0])


def _option(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
    if name == "ess_target" and isinstance(value, list | tuple):
        text = ",".join(f"{epoch:g}:{target:g}" for epoch, target in value)
    if name in WITH_OPTION and value is not None:
        return f"--{name.replace('_', '-')} {shlex.quote(text)}"
    return f"--set {shlex.quote(f'{name}={text}')}"


def one_digit(value: float) -> float:
    """
    >>> one_digit(0.00347)
    0.003
    """
    return float(f"{value:.0e}")
