"""Pickled arrays and plain values, from files that nobody has to trust."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from flatclr.data.named.reading import reason_of, require_file


def load_plain_pickle(path: Path) -> dict[str, Any]:
    """A pickled dictionary of plain values and arrays; a file that asks for anything else is refused unexecuted."""
    with require_file(path.parent, (path.name,)).open("rb") as file:
        try:
            content = _PlainUnpickler(file, encoding="bytes").load()
        except ForbiddenPickleError as error:
            raise ValueError(
                f"{path} must hold only arrays and plain values, got a reference to {error}; "
                "do not trust this file: download the dataset again from its official address."
            ) from None
        except Exception as error:  # a damaged pickle can fail in any way
            raise ValueError(
                f"{path} must be a readable pickle, got {reason_of(error)}; the file is truncated or damaged: "
                "download it again."
            ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(content).__name__}; download it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class ForbiddenPickleError(pickle.UnpicklingError):
    pass


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ForbiddenPickleError(f"_codecs.encode to {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT, _FROM_BUFFER = np.zeros(1).__reduce__()[0], np.zeros(1).__reduce_ex__(5)[0]
_PLAIN_NAMES: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,  # where numpy 2 keeps it
    "numpy.core.numeric._frombuffer": _FROM_BUFFER,
    "numpy._core.numeric._frombuffer": _FROM_BUFFER,
    "_codecs.encode": _encode_latin1,  # how protocol 2 writes bytes
}


class _PlainUnpickler(pickle.Unpickler):
    """Knows the few names an array needs and looks up no others, so nothing in the file can run."""

    def find_class(self, module: str, name: str) -> Any:
        known = _PLAIN_NAMES.get(f"{module}.{name}")
        if known is None:
            raise ForbiddenPickleError(f"{module}.{name}")
        return known
