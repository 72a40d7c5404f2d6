"""What the tests of a contrast share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _plans_are_made_anew() -> None:
    """A plan remembers tiles and strips of its shape, which tests make small."""
    whole = sys.modules.get("flatclr.contrast.kernels.whole_triton")
    if whole is not None:
        whole._plan.cache_clear()
