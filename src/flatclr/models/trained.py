"""Networks of finished runs: the head from the last checkpoint, beside the encoder that was saved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from flatclr.checkpoint import Loaded, has_checkpoints, load_checkpoint, steps_in
from flatclr.files import parse_json, warn_unchecked
from flatclr.models.encoders import build_encoder
from flatclr.models.heads import head_from_state
from flatclr.models.network import Network, Normalisation, TwoTowers
from flatclr.models.saving import read_encoder
from flatclr.runs import CHECKPOINTS, CONFIG, SIDES, RunDirectory

TOWERS = ("tower_x.", "tower_y.")  # what the names of each side begin with in a checkpoint


def load_network(run: str | Path, *, into: nn.Module | None = None, step: int | None = None) -> Network | TwoTowers:
    """Encoder and projection head of a run, with the weights of its last checkpoint, or of another.

    The encoder is that of `load_encoder`, with the batch statistics of whole images where the run was told to
    recalibrate them.

    Args:
        run: the run directory.
        into: a module of the encoder's architecture, for a run on images whose encoder was not built by name.
        step: of the checkpoint, among those that `keep_checkpoints` kept; None: the last.

    Returns:
        The network in evaluation mode on the CPU. Of a run on images it is a `Network`, and
        `(z,) = network(network.normalisation(images))`; of a run on paired data it is `TwoTowers`, and
        `z_x, z_y = network(x, y)` are to be compared by cosine. The random state is left as it was.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     config = flatclr.TrainConfig(steps=1, batch_size=8, eval_samples=50, eval_start=False, encoder="mlp")
    ...     config = config.changed(encoder_options={"width": 8}, device="cpu", out=folder)
    ...     network = flatclr.load_network(flatclr.train(config).path)
    >>> (z,) = network(network.normalisation(torch.rand(3, 1, 28, 28)))
    >>> z.shape
    torch.Size([3, 128])
    """
    opened = RunDirectory.open(Path(run))
    loaded = _read(opened, step)
    state, checked = _network_state(opened, loaded), not loaded.unchecked
    sides = [opened.path / name for name in SIDES]
    network: Network | TwoTowers
    if sides[0].is_dir():
        read = [_tower(side, _part(state, name)) for side, name in zip(sides, TOWERS, strict=True)]
        network = TwoTowers(*(tower for tower, _ in read))
        checked = checked and all(whole for _, whole in read)
    elif any(name.startswith(TOWERS) for name in state):
        built = _described(opened, loaded)
        towers = [_network(encoder, _part(state, name)) for encoder, name in zip(built, TOWERS, strict=True)]
        network = TwoTowers(*towers)
    elif unfinished(opened.path):
        network = _network(_checkpointed_encoder(opened, loaded, into), state)
    else:
        network, whole = _tower(opened.path, state, into)
        checked = checked and whole
    if not checked:
        warn_unchecked(opened.path)
    return network.eval()


def unfinished(run: Path) -> bool:
    """Whether a run has a checkpoint that is newer than its encoder, or no encoder yet."""
    if (run / SIDES[0]).is_dir():
        return False
    newest = max(steps_in(run / CHECKPOINTS), default=None)
    document = run / "encoder.json"
    if newest is None or not document.is_file():
        return newest is not None
    try:
        steps = parse_json(document.read_bytes())["description"]["steps"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(steps, int) and newest > steps


def paired_run(run: Path) -> bool:
    """Whether a run is on pairs: it has an encoder for each side, or a checkpoint of two towers."""
    if not (run / CONFIG).is_file():
        return False
    if (run / SIDES[0]).is_dir() or (run / "encoder.json").is_file() or not has_checkpoints(run / CHECKPOINTS):
        return (run / SIDES[0]).is_dir()
    opened = RunDirectory.open(run)
    return any(name.startswith(TOWERS) for name in _network_state(opened, _load(opened)))


def load_checkpointed_encoder(run: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """The encoder of a run on images that goes on or was stopped, from its newest checkpoint.

    Args:
        run: the run directory.
        into: a module of the encoder's architecture, where it was not built by name.

    Returns:
        The encoder in evaluation mode on the CPU, with `.normalisation`, `.description` and the `.step` it is of.
    """
    opened = RunDirectory.open(Path(run))
    return _checkpointed_encoder(opened, _load(opened), into)


def _checkpointed_encoder(run: RunDirectory, loaded: Loaded, into: nn.Module | None) -> nn.Module:
    (encoder,) = [into] if into is not None else _described(run, loaded)
    encoder.load_state_dict(_part(_network_state(run, loaded), "encoder."))
    about = loaded.state.get("encoders") or [{}]
    normalisation = about[0].get("normalisation")
    given = None if normalisation is None else Normalisation(*(tuple(part) for part in normalisation))
    for name, value in (
        ("normalisation", given),
        ("description", {"data": about[0].get("data"), "steps": loaded.step}),
        ("step", loaded.step),
    ):
        object.__setattr__(encoder, name, value)
    return encoder.eval()


def _described(run: RunDirectory, loaded: Loaded) -> list[nn.Module]:
    """The encoders as a checkpoint describes them, with random weights."""
    specs = [about.get("spec") for about in loaded.state.get("encoders") or []]
    if not specs or None in specs:
        raise ValueError(
            f"{run.path} must say how its encoder is built, got a checkpoint that does not; pass into=module, or "
            f"finish it with flatclr train --resume {run.path}."
        )
    with torch.random.fork_rng(devices=()):
        return [
            build_encoder(s["name"], channels=s["channels"], image_size=s["image_size"], **s["options"]) for s in specs
        ]


def _network(encoder: nn.Module, state: Mapping[str, Tensor]) -> Network:
    network = Network(encoder, head_from_state(_part(state, "head.")))
    network.load_state_dict(state)
    return network


def load_head(run: str | Path) -> nn.Sequential | None:
    """Projection head of a run on images, from its last checkpoint.

    Args:
        run: the run directory.

    Returns:
        The head in evaluation mode on the CPU; None where the run has no checkpoint any more.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     config = flatclr.TrainConfig(steps=1, batch_size=8, eval_samples=50, eval_start=False, encoder="mlp")
    ...     config = config.changed(encoder_options={"width": 8}, device="cpu", out=folder)
    ...     head = flatclr.models.load_head(flatclr.train(config).path)
    >>> head[-1].out_features
    128
    """
    opened = RunDirectory.open(Path(run))
    if not has_checkpoints(opened.checkpoints):
        return None
    return head_from_state(_part(_network_state(opened, _load(opened)), "head."))


def _load(run: RunDirectory) -> Loaded:
    """The newest whole checkpoint; what is not as it should be is said."""
    loaded = _read(run)
    if loaded.unchecked:
        warn_unchecked(run.path)
    return loaded


def _read(run: RunDirectory, step: int | None = None) -> Loaded:
    """A checkpoint; newer ones that are damaged are told."""
    loaded = load_checkpoint(run.checkpoints, identity=run.identity(), step=step)
    for problem in loaded.passed_over:
        warnings.warn(f"passed over a damaged checkpoint of {run.path}, {problem}", stacklevel=1)
    return loaded


def _network_state(run: RunDirectory, loaded: Loaded) -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = loaded.state["train_step"]["network"]
    except (KeyError, TypeError):
        raise ValueError(f"{run.checkpoints} must hold the state of a run, got another; restore it.") from None
    return state


def _tower(folder: Path, state: Mapping[str, Tensor], into: nn.Module | None = None) -> tuple[Network, bool]:
    """Of a saved encoder, and whether that came with a checksum."""
    encoder, checked = read_encoder(folder, into)
    saved = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    parameters = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    network = Network(encoder, head_from_state(_part(state, "head.")))
    network.load_state_dict(state)
    if all(torch.equal(parameter, parameters[name]) for name, parameter in encoder.named_parameters()):
        encoder.load_state_dict(saved, strict=False)  # statistics of an older checkpoint's weights are its own
    return network, checked


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
