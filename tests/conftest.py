"""Settings every test shares."""

import os

import hypothesis
import pytest
import torch

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


@pytest.fixture(params=["dense", "streamed"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both routes of PyTorch's operations, to be passed on; streamed tiles are so small that every batch has several."""
    if request.param == "streamed":
        monkeypatch.setattr(tiled_torch, "tile_edge", lambda device: 3)
    return str(request.param)
