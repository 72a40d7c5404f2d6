"""Does a loss have the gradient of one process on several, and the value it should have? For any library's loss.

Shape suffixes: N pairs of the global batch, D features before a linear layer, d after it.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from flatclr.checks import require_count, require_number

PAIRS_PER_RANK, D, d = 4, 6, 5
TOLERANCE = 1e-4  # relative; losses of other libraries may round to half of float32's digits


@dataclass(frozen=True)
class LossCheck:
    """A loss on so many processes, beside the same batch on one.

    Args:
        ranks: how many processes shared the batch.
        value: on one process, and the mean over the processes.
        gradient_difference: of a weight before the loss, averaged over processes as DistributedDataParallel does;
            the largest difference, as a share of the largest gradient.
    """

    ranks: int
    value: tuple[float, float]
    gradient_difference: float

    @property
    def equal(self) -> bool:
        """Whether several processes descend what one would."""
        return self.gradient_difference <= TOLERANCE


def check_loss(
    loss: str,
    *,
    ranks: Sequence[int] = (2,),
    options: Mapping[str, Any] | None = None,
    arguments: Sequence[float] = (),
    seed: int = 0,
) -> list[LossCheck]:
    """Compare the gradient of a loss on several processes with that of one process on the whole batch.

    Args:
        loss: "MODULE:NAME" of a class or function; `loss(z_a, z_b)` of unit rows [N, d] is a number.
        ranks: numbers of processes to try.
        options: for the constructor of a class; "{rank}" and "{ranks}" stand for the process and how many there are.
        arguments: that follow z_a and z_b in the call.
        seed: of the batch.

    Returns:
        A check for each number of processes.

    Raises:
        ValueError: the loss cannot be imported, made or called.

    >>> check_loss("flatclr:InfoNCE", ranks=[1])[0].equal
    True
    """
    for count in ranks:
        require_count("ranks", count, advice="say 2.")
    checks = []
    for count in ranks:
        pairs = PAIRS_PER_RANK * count
        alone = _measured(loss, options or {}, arguments, pairs, seed, rank=0, ranks=1)
        together = alone if count == 1 else _spread(loss, dict(options or {}), list(arguments), count, seed)
        largest = alone[1].abs().max().clamp_min(1e-12)
        difference = float((together[1] - alone[1]).abs().max() / largest)
        checks.append(LossCheck(count, (float(alone[0]), float(together[0])), difference))
    return checks


def value_on_orthonormal_pairs(
    loss: str, *, pairs: int = 8, options: Mapping[str, Any] | None = None, arguments: Sequence[float] = ()
) -> float:
    """The loss where every pair is two copies of a direction of its own: a value that formulas tell.

    Args:
        loss, options, arguments: as for `check_loss`.
        pairs: how many.

    Returns:
        The value.

    >>> round(value_on_orthonormal_pairs("flatclr:InfoNCE", options={"temperature": 0.5}), 4)
    1.0629
    >>> round(info_nce_of_orthonormal_pairs(8, 0.5)["views"], 4)
    1.0629
    """
    made, z = _made(loss, options or {}, rank=0, ranks=1), torch.eye(pairs)
    return float(_called(made, loss, z, z.clone(), arguments))


def info_nce_of_orthonormal_pairs(pairs: int, temperature: float) -> dict[str, float]:
    """InfoNCE there, by pairing: log(1 + K exp(-1 / temperature)), K = 2N - 2 for "views" and N - 1 for "cross".

    Args:
        pairs: how many.
        temperature: of the loss.

    Returns:
        The value of each pairing.
    """
    require_number("temperature", temperature, above=0)
    negatives = {"views": 2 * pairs - 2, "cross": pairs - 1}
    return {name: math.log1p(k * math.exp(-1 / temperature)) for name, k in negatives.items()}


def _made(loss: str, options: Mapping[str, Any], *, rank: int, ranks: int) -> Any:
    module, colon, name = loss.partition(":")
    if not colon or not name:
        raise ValueError(f"a loss must be MODULE:NAME, got {loss!r}; say flatclr:InfoNCE.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"a loss must be importable, got {loss!r} ({error}); check both names.") from error
    if not isinstance(found, type):
        return found
    places = {"{rank}": rank, "{ranks}": ranks}
    given = {name: places.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    try:
        return found(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{loss} must be made with these options, got {given} ({error}); pass others.") from error


def _called(made: Any, loss: str, z_a: Tensor, z_b: Tensor, arguments: Sequence[float]) -> Tensor:
    try:
        value = made(z_a, z_b, *arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{loss} must take (z_a, z_b), got an error ({reason}); pass more with --argument.") from error
    if isinstance(value, Mapping):
        value = next(iter(value.values()))
    if not isinstance(value, Tensor) or value.dim() != 0:
        raise ValueError(f"{loss} must return a number, got {type(value).__name__}; wrap it in a function that does.")
    return value


def _measured(
    loss: str,
    options: Mapping[str, Any],
    arguments: Sequence[float],
    pairs: int,
    seed: int,
    *,
    rank: int,
    ranks: int,
) -> tuple[Tensor, Tensor]:
    """Value, and the gradient of a linear layer before the loss, on this process's share of the batch."""
    generator = torch.Generator().manual_seed(seed)
    inputs_2ND = torch.randn(2, pairs, D, generator=generator)
    weight_Dd = torch.randn(D, d, generator=generator).requires_grad_(True)
    own = slice(rank * pairs // ranks, (rank + 1) * pairs // ranks)
    z_a, z_b = (F.normalize(side[own] @ weight_Dd, dim=1) for side in inputs_2ND)
    value = _called(_made(loss, options, rank=rank, ranks=ranks), loss, z_a, z_b, arguments)
    value.backward()
    assert weight_Dd.grad is not None
    return value.detach(), weight_Dd.grad


def _spread(loss: str, options: dict[str, Any], arguments: list[float], ranks: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same on several processes: the mean value, and the gradient as DistributedDataParallel averages it."""
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, folder, loss, options, arguments, seed, [os.getcwd(), *sys.path])
        problem = Path(folder, "problem")
        try:
            spawn(_one_of_many, given, ranks)
        except Exception as error:  # of whichever process fails first, perhaps only because another did
            last = str(error).strip().splitlines()[-1]
            told = problem.read_text() if problem.exists() else last
            raise ValueError(f"{loss} must run on {ranks} processes, got: {told}") from error
        if problem.exists():
            raise ValueError(problem.read_text())
        value, gradient = torch.load(Path(folder, "found"), weights_only=True)
        return value, gradient


def _one_of_many(
    rank: int,
    ranks: int,
    folder: str,
    loss: str,
    options: dict[str, Any],
    arguments: list[float],
    seed: int,
    places: list[str],
) -> None:
    sys.path[:] = places
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    try:
        pairs = PAIRS_PER_RANK * ranks
        value, gradient = _measured(loss, options, arguments, pairs, seed, rank=rank, ranks=ranks)
        for part in (value, gradient):
            dist.all_reduce(part)
            part /= ranks
        if rank == 0:
            torch.save((value, gradient), Path(folder, "found"))
    except ValueError as error:
        Path(folder, "problem").write_text(str(error))
    finally:
        dist.destroy_process_group()
