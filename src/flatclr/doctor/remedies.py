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
USUAL_UPDATE = 1e-3  # of a weight's length in a step
OF_THE_DATA = ("flip_probability", "mean", "std")  # fields of the views that another strength leaves as they are
WITH_OPTION = frozenset(  # settings that `flatclr train` has an option for; the others go through --set
    {"data", "data_dir", "labels", "image_size", "max_bad_images", "views_per_image", "positives", "view_size"}
    | {"encoder", "init", "objective", "ess_target", "temperature", "batch_size", "micro_batch", "epochs", "steps"}
    | {"optimizer", "learning_rate", "seed", "precision", "device", "log_every", "eval_every", "checkpoint_every"}
    | {"keep_checkpoints", "probe_every", "wandb"}
)


_FLAT = "objective = flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25))"
_FIXED = "objective = flatclr.FlatNCE(temperature=0.1)"
_CONTROLLED = "objective = flatclr.InfoNCE(temperature=flatclr.EssControl(target=0.25))"
_LOADER = "loader = torch.utils.data.DataLoader(dataset, shuffle=True, drop_last=True, "
_CROPS = "crop = torchvision.transforms.RandomResizedCrop(size, scale="
IN_A_LOOP = {  # what is changed in a training loop of one's own, by the fault
    "bound_saturated": _FLAT,
    "temperature_too_high": _CONTROLLED,
    "temperature_too_low": _CONTROLLED,
    "controller_clamped": _FLAT,
    "collapse": _FLAT,
    "dimensional_collapse": _FLAT,
    "learning_rate_too_high": "for group in optimizer.param_groups: group['lr'] = {rate:g}",
    "learning_rate_too_low": "for group in optimizer.param_groups: group['lr'] = {rate:g}",
    "gradient_noise": f"{_LOADER}batch_size=8 * batch_size)",
    "false_negatives": "loss = objective(z_a, z_b, ids=ids)  # images of one id are no negatives of each other",
    "views_too_weak": f"{_CROPS}{SMALL_CROPS})",
    "views_too_strong": f"{_CROPS}{LARGE_CROPS})",
    "data_starved": f"{_LOADER}batch_size=batch_size, num_workers=2 * workers)",
    "dead_batch_norm": "norm = torch.nn.GroupNorm(math.gcd(16, channels), channels)  # in place of each batch norm",
}


def code_for(name: str, evidence: Evidence) -> str | None:
    """The change that mends a fault as a line of Python, for runs that no command line can make again.

    >>> code_for("learning_rate_too_high", Evidence([{"step": 0, "learning_rate": 0.5}]))
    "for group in optimizer.param_groups: group['lr'] = 0.05"
    >>> code_for("split_leak", Evidence([])) is None
    True
    """
    line, rate = IN_A_LOOP.get(name), evidence.learning_rate
    if line == _FLAT and _is_flat_already(evidence):
        if name == "controller_clamped":
            return _FIXED
        name = "learning_rate_too_high"
        line = IN_A_LOOP[name]
    if line is None or "{rate" not in line:
        return line
    if rate is None:
        return line.replace("= {rate:g}", "*= 0.1" if name == "learning_rate_too_high" else "*= 10")
    return line.format(rate=another_rate(name, evidence, rate))


def _is_flat_already(evidence: Evidence) -> bool:
    """Whether the run has FlatNCE with the target of that line."""
    settings = evidence.settings
    return bool(settings) and all(
        settings.get(name, DEFAULTS[name]) == value for name, value in (("objective", "flatnce"), ("ess_target", 0.25))
    )


def another_rate(name: str, evidence: Evidence, rate: float) -> float:
    """The learning rate at which the longest step is about as long as is usual; at most a tenth where it is too high.

    A run that went too far with AdamW, whose steps are as long as its rate, is led back to the default at least.

    >>> another_rate("learning_rate_too_low", Evidence([{"step": 0, "update_ratio": 1e-5}]), 1e-5)
    0.001
    """
    updates = evidence.series("update_ratio")
    longest = max(*updates.values, 1e-12) if updates else None
    if name == "learning_rate_too_high":
        lower = rate * (0.1 if longest is None else min(0.1, USUAL_UPDATE / longest))
        settings = {**DEFAULTS, **evidence.settings} if evidence.settings else {}
        by_default = settings.get("optimizer") == DEFAULTS["optimizer"]
        return one_digit(min(lower, DEFAULTS["learning_rate"]) if by_default else lower)
    return one_digit(rate * (10.0 if longest is None else min(USUAL_UPDATE / longest, 1e4)))


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
    rate = evidence.learning_rate
    return None if rate is None else train_command(evidence, learning_rate=one_digit(rate / 10))


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
