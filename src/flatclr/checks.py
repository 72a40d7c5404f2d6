"""Validators with one message shape: what was expected, what arrived, what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

LARGEST_COUNT = 2**63 - 1  # that a size of a tensor can be
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def shown(value: Any) -> str:
    """A value for a message: on one line, and not longer than that.

    >>> shown("a" * 200)[:5], len(shown("a" * 200)), shown(torch.zeros(2, 1))
    ("'aaaa", 80, 'tensor([[0.], [0.]])')
    """
    return " ".join(repr(value).split())[:80]


def require_one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse an unknown name and suggest the nearest known one.

    >>> require_one_of("pairing", "two_veiw", ["two_view", "cross"])
    Traceback (most recent call last):
    ValueError: pairing must be one of 'two_view', 'cross', got 'two_veiw'; did you mean 'two_view'?
    """
    if isinstance(value, str) and value in allowed:
        return
    names = list(allowed)
    near = difflib.get_close_matches(str(value), names, n=1)
    advice = f"did you mean {near[0]!r}?" if near else "pick one of these."
    listed = ", ".join(repr(n) for n in names)
    raise ValueError(f"{name} must be one of {listed}, got {shown(value)}; {advice}")


def require_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    advice: str = "pass a finite number in that range.",
) -> None:
    """Refuse anything but a finite real number strictly between `above` and `below`."""
    low = "" if above == -math.inf else f" > {above:g}"
    high = "" if below == math.inf else f"{' and' if low else ''} < {below:g}"
    expected = f"{name} must be a finite number{low}{high}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{expected}, got {shown(value)}; {advice}")
    if not (math.isfinite(value) and above < float(value) < below):
        raise ValueError(f"{expected}, got {value}; {advice}")


def checked_device(name: str | torch.device) -> torch.device:
    """The device a user names; "auto" is cuda where there is one.

    >>> checked_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expected = "device must be 'auto', 'cpu', 'cuda' or 'cuda:1'"
    if not isinstance(name, str | torch.device):
        raise TypeError(f"{expected}, got {shown(name)}; pick one.")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{expected}, got {name!r}; pick one.") from error
    usable = {"cuda": True, "cpu": not device.index, "mps": torch.backends.mps.is_available()}
    if not usable.get(device.type, False):
        raise ValueError(f"{expected}, got {str(name)!r}, which this machine or this package does not have; pick one.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device must be one of the {torch.cuda.device_count()} CUDA devices here, got {name!r}; pass 'auto'."
        )
    return device


def require_count(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None, advice: str) -> None:
    """Refuse anything but a whole number from `at_least` to `at_most`."""
    expected = f"{name} must be a whole number >= {at_least}" + (f" and <= {at_most}" if at_most is not None else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{expected}, got {shown(value)}; {advice}")
    if value < at_least or (at_most is not None and value > at_most):
        raise ValueError(f"{expected}, got {value}; {advice}")
    if value > LARGEST_COUNT:
        raise ValueError(f"{expected} and of 64 bits, got {shown(value)}; {advice}")


def require_switch(name: str, value: Any) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}; pass a bool.")


def require_rising_counts(name: str, value: Any) -> None:
    """Refuse anything but whole numbers >= 1 in rising order.

    >>> require_rising_counts("dims", [64, 32])
    Traceback (most recent call last):
    ValueError: dims must be whole numbers in rising order, got [64, 32]; say [32, 64].
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise TypeError(f"{name} must be whole numbers in rising order, got {shown(value)}; say [32, 64, 128].")
    for count in value:
        require_count(name, count, advice="say [32, 64, 128].")
    if list(value) != sorted(set(value)):
        raise ValueError(f"{name} must be whole numbers in rising order, got {list(value)}; say {sorted(set(value))}.")


SEEDS = range(-(2**63), 2**64)  # what a torch.Generator takes


def require_seed(name: str, value: Any, *, least: int = SEEDS.start) -> None:
    """Refuse anything but a whole number that every generator of random numbers takes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}; pass one, say 0.")
    if value not in SEEDS or value < least:
        raise ValueError(f"{name} must be a whole number from {least} to 2**64 - 1, got {value}; pass one, say 0.")


def require_matrix(name: str, value: Any, shape: str = "[N, d]") -> None:
    """Refuse anything but a non-empty two-dimensional floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor of shape {shape}, got {type(value).__name__}; use torch.as_tensor."
        )
    if value.dim() != 2:
        raise ValueError(
            f"{name} must have shape {shape}, got {list(value.shape)}; flatten or stack it to two dimensions."
        )
    if value.dtype not in FLOAT_TYPES:
        raise TypeError(f"{name} must be a floating-point tensor, got {value.dtype}; call .float() on it.")
    require_dense(name, value)
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {list(value.shape)}; skip empty batches.")


def require_dense(name: str, value: Tensor) -> None:
    """Refuse a tensor that stores its values in another way than one after another."""
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {value.layout}; call .to_dense() on it.")


def require_values(name: str, value: Tensor) -> None:
    """Refuse a tensor of the device that knows shapes only."""
    if value.is_meta:
        raise TypeError(f"{name} must have values, got a tensor on the meta device; make it on a real one.")


def require_class_numbers(name: str, value: Any, rows: int) -> None:
    """Refuse anything but one whole number from 0 up for each of so many rows."""
    if not isinstance(value, Tensor) or value.shape != (rows,) or value.is_floating_point() or value.is_complex():
        got = f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be {rows} class numbers, one per row, got {got}; pass a tensor of integers.")
    require_dense(name, value)
    if rows and int(value.min()) < 0:
        raise ValueError(f"{name} must be class numbers from 0 up, got {int(value.min())}; leave out unlabelled rows.")


def view_names(count: int) -> tuple[str, ...]:
    """How messages call the views: two are z_a and z_b.

    >>> view_names(3)
    ('z_1', 'z_2', 'z_3')
    """
    return ("z_a", "z_b") if count <= 2 else tuple(f"z_{v + 1}" for v in range(count))


def require_views(views: Sequence[Tensor], negatives: Tensor | None) -> None:
    """Refuse views (and extra negatives) that do not fit together."""
    if len(views) < 2:
        raise ValueError(
            f"a contrast must have at least 2 views, got {len(views)}; pass z_a and z_b, or one tensor [V, N, d]."
        )
    names, z_a = view_names(len(views)), views[0]
    for name, z in zip(names, views, strict=True):
        require_matrix(name, z)
    for name, z in zip(names[1:], views[1:], strict=True):
        if z.shape != z_a.shape:
            raise ValueError(
                f"{names[0]} and {name} must have the same shape, got {list(z_a.shape)} and {list(z.shape)}; "
                "row i of both must be views of sample i."
            )
        _require_same_kind(name, z, z_a)
    require_values(names[0], z_a)
    if negatives is None:
        return
    require_matrix("negatives", negatives, "[M, d]")
    if negatives.shape[1] != z_a.shape[1]:
        raise ValueError(
            f"negatives must have shape [M, {z_a.shape[1]}], got {list(negatives.shape)}; "
            "fill the queue with embeddings of the same head."
        )
    _require_same_kind("negatives", negatives, z_a)


def _require_same_kind(name: str, value: Tensor, reference: Tensor) -> None:
    if value.dtype != reference.dtype:
        raise TypeError(f"{name} must have z_a's dtype {reference.dtype}, got {value.dtype}; cast one with .to(dtype).")
    if value.device != reference.device:
        raise ValueError(
            f"{name} must be on z_a's device {reference.device}, got {value.device}; move one with .to(device)."
        )


def unusable_rows(name: str, rows: Tensor, *, directions: bool) -> str | None:
    """What is wrong with NaN, Inf or, where only the direction counts, zero rows. Waits for the device."""
    bad = ~torch.isfinite(rows).all(dim=1)
    if bad.any():
        return (
            f"{name} must be finite, got NaN or Inf in {int(bad.sum())} of {len(rows)} rows, first in row "
            f"{int(bad.nonzero()[0])}; look for a diverging encoder, a too large learning rate or fp16 overflow."
        )
    zero = (rows == 0).all(dim=1)
    if directions and zero.any():
        return (
            f"{name} must have no zero rows to be normalised, got {int(zero.sum())} of {len(rows)}, first in row "
            f"{int(zero.nonzero()[0])}; look for dead units at the end of the projection head."
        )
    return None


LARGEST_SCALE = 1e30  # larger inverse temperatures make scores that float32 cannot hold sums and differences of


def refuse_transforms() -> None:
    """Called before every hand-written gradient: the transforms of torch.func cannot see into it."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "a contrast must be called outside torch.func and vmap, got a call inside one; use loss.backward() or "
            "torch.autograd.grad, and a loop over batches."
        )


def refuse_double_backward(of: str = "a contrast", advice: str = "write it in plain PyTorch for those") -> None:
    """Called first in every hand-written backward: what it kept does not carry the graph a second derivative needs."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"second derivatives must not be asked of {of}, got create_graph=True; {advice}.")
