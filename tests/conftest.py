"""Settings every test shares."""

import os

import hypothesis
import pytest
import torch

from flatclr.contrast import route
from flatclr.contrast.kernels import tiled_torch

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # tensors this small only wait for each other's threads


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["kept", "streamed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through the core: the kept tile, and streaming with tiles so small that every batch has several."""
    if request.param == "streamed":
        monkeypatch.setattr(route, "LARGEST_DENSE", 0)
        monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 3)
    return str(request.param)
