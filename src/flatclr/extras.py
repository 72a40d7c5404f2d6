"""Packages that only some uses need: imported when they are, with what to install where they are not there."""

from __future__ import annotations

import importlib
from types import ModuleType

EXTRAS = {  # package -> the extra of flatclr that brings it
    "datasets": "hub",
    "lightning": "lightning",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "pyarrow": "parquet",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "sklearn",
    "timm": "models",
    "torchvision": "models",
    "wandb": "wandb",
}


def needed(module: str, *, by: str, otherwise: str = "") -> ModuleType:
    """A module of an optional package.

    Args:
        module: its name, say "sklearn.datasets".
        by: what needs it, the subject of the message.
        otherwise: what else can be done.

    Raises:
        ImportError: it is not installed, or it is and cannot be imported.

    >>> needed("datasetz", by="hf:x")
    Traceback (most recent call last):
    ImportError: hf:x needs datasetz, which is not installed; pip install datasetz.
    """
    package = module.partition(".")[0]
    extra = EXTRAS.get(package)
    install = f"pip install {package}" if extra is None else f'pip install "flatclr[{extra}]"'
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != package:
            raise _broken(package, by, error, otherwise) from error
        raise ImportError(f"{by} needs {package}, which is not installed; {install}{otherwise}.") from error
    except Exception as error:  # packages with compiled parts fail in many ways
        raise _broken(package, by, error, otherwise) from error


def _broken(package: str, by: str, error: Exception, otherwise: str) -> ImportError:
    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    # timm and others import torchvision, which is the one that does not fit its torch
    fit = (
        "a torchvision built for the torch that is here" if "torchvision" in (package + reason) else f"{package} again"
    )
    return ImportError(f"{by} needs {package}, which is installed but broken ({reason}); install {fit}{otherwise}.")
