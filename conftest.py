"""Names every doctest may use."""

import importlib.util
from typing import Any

import pytest
import torch

import flatclr

if not importlib.util.find_spec("triton"):  # optional: without it these cannot be imported
    collect_ignore = ["src/flatclr/kernels/fused_device.py", "src/flatclr/kernels/fused_triton.py"]


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, flatclr=flatclr)
