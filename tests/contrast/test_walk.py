"""A loss call reads downward once: few calls, in few files."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import flatclr

SOURCES = str(Path(flatclr.__file__).parent)
MOST_CALLS, MOST_FILES = 28, 8


@contextmanager
def recorded_walk() -> Iterator[list[tuple[str, str]]]:
    """(file, function) of every Python call into this package, in order; PyTorch's own frames are not counted."""
    walk: list[tuple[str, str]] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES):
            walk.append((code.co_filename.removeprefix(SOURCES + "/"), code.co_qualname))

    sys.setprofile(record)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def walk_of(call: Callable[[], object]) -> list[tuple[str, str]]:
    call()  # imports and caches
    with recorded_walk() as walk:
        call()
    return walk


def test_the_smallest_flat_nce_call_takes_few_calls_in_few_files() -> None:
    objective = flatclr.FlatNCE(temperature=0.1)
    z_a, z_b = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    walk = walk_of(lambda: objective(z_a, z_b))
    told = "\n".join(f"{file}: {function}" for file, function in walk)
    print(told)
    assert len(walk) <= MOST_CALLS, told
    assert len({file for file, _ in walk}) <= MOST_FILES, told


def test_the_walk_never_returns_to_a_module_above() -> None:
    """Once the reduction has begun, checks and gathering are over."""
    objective = flatclr.FlatNCE(temperature=0.1)
    z_a, z_b = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    files = [file for file, _ in walk_of(lambda: objective(z_a, z_b)) if file.startswith("contrast/")]
    entered = files.index("contrast/dense.py")
    assert not {"contrast/route.py", "contrast/relation.py"} & set(files[entered:])
