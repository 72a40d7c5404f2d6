"""Names every doctest may use."""

from typing import Any

import pytest
import torch

import flatclr


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, flatclr=flatclr)
