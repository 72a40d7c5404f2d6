"""Flows that lose no information: RealNVP couplings for vectors and images, with inverse and log-determinant.

A flow built here starts as the identity, and its Jacobian is known: mutual information of what goes in is that of what
comes out, whatever it learns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatclr.checks import require_count, require_dense, shown

LARGEST_LOG_SCALE = 2.0  # of one coupling; a bound keeps the inverse exact in float32


class Coupling(nn.Module):
    """One affine coupling: half of the entries move by a scale and a shift that the other half decides.

        y = m x + (1 - m) (x exp(s(m x)) + t(m x)),   log |det dy/dx| = sum (1 - m) s(m x)

    Args:
        mask: m, 1 where entries stay as they are and 0 where they move; of the shape of one sample.
        network: from samples [N, C, ...] to scales and shifts [N, 2 C, ...].

    >>> coupling = Coupling(torch.tensor([1.0, 0.0]), nn.Linear(2, 4))
    >>> x = torch.randn(3, 2)
    >>> torch.allclose(coupling.inverse(coupling(x)), x, atol=1e-6)
    True

    Reference: Dinh et al. 2017.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)
        self.network = network

    def _held(self, x: Tensor) -> Tensor:
        """What stays as it is, of samples of the shape of the mask."""
        if not isinstance(x, Tensor) or x.shape[1:] != self.mask.shape or not x.is_floating_point():
            wanted = ", ".join(str(side) for side in self.mask.shape)
            raise ValueError(f"samples must be floating-point [N, {wanted}], got {shown(x)}; reshape them.")
        require_dense("samples", x)
        return self.mask * x

    def _scale_and_shift(self, held: Tensor) -> tuple[Tensor, Tensor]:
        raw, shift = self.network(held).chunk(2, dim=1)
        log_scale = LARGEST_LOG_SCALE * torch.tanh(raw / LARGEST_LOG_SCALE)
        moves = 1 - self.mask
        return moves * log_scale, moves * shift

    def with_log_determinant(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The moved samples, and the log-determinant of each [N]."""
        log_scale, shift = self._scale_and_shift(self._held(x))
        return x * log_scale.exp() + shift, log_scale.flatten(1).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        """The moved samples."""
        return self.with_log_determinant(x)[0]

    def inverse(self, y: Tensor) -> Tensor:
        """The samples that were moved there."""
        log_scale, shift = self._scale_and_shift(self._held(y))
        return (y - shift) * torch.exp(-log_scale)


class Flow(nn.Module):
    """Couplings one after another, named `layer1`, `layer2` and so on.

    Args:
        couplings: in the order of use.

    >>> flow = vector_flow(6, layers=4, width=16)
    >>> y, log_determinant = flow.with_log_determinant(torch.randn(3, 6))
    >>> y.shape, log_determinant.shape
    (torch.Size([3, 6]), torch.Size([3]))
    """

    def __init__(self, couplings: list[Coupling]) -> None:
        super().__init__()
        for place, coupling in enumerate(couplings, 1):
            self.add_module(f"layer{place}", coupling)

    @property
    def couplings(self) -> list[Coupling]:
        """In the order of use."""
        return [coupling for coupling in self.children() if isinstance(coupling, Coupling)]

    def with_log_determinant(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What comes out, and log |det| of each sample [N]."""
        total = x.new_zeros(len(x))
        for coupling in self.couplings:
            x, log_determinant = coupling.with_log_determinant(x)
            total = total + log_determinant
        return x, total

    def forward(self, x: Tensor) -> Tensor:
        """What comes out, of the shape of what goes in."""
        for coupling in self.couplings:
            x = coupling(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        """What went in."""
        for coupling in reversed(self.couplings):
            y = coupling.inverse(y)
        return y


def vector_flow(features: int, *, layers: int = 4, width: int = 64) -> Flow:
    """Couplings of vectors [N, features]; every other entry moves, in turns. Starts as the identity.

    Args:
        features: of a vector, at least 2.
        layers: couplings.
        width: of the hidden layer that decides scales and shifts.

    Returns:
        The flow, the identity.

    >>> x = torch.randn(3, 6)
    >>> torch.equal(vector_flow(6)(x), x)
    True
    """
    _require_sizes(layers, width)
    require_count("features", features, at_least=2, advice="a coupling moves one half by the other.")
    even = (torch.arange(features) % 2).float()
    return Flow([Coupling(_turned(even, layer), _mlp(features, width)) for layer in range(layers)])


def image_flow(channels: int, height: int, width_px: int, *, layers: int = 4, width: int = 32) -> Flow:
    """Couplings of images [N, channels, height, width_px]; every other pixel moves, as on a chessboard, in turns.

    Args:
        channels, height, width_px: of an image, at least 2 pixels; it need not be square.
        layers: couplings.
        width: channels of the hidden convolutions that decide scales and shifts.

    Returns:
        The flow, the identity.

    >>> image_flow(1, 14, 28)(torch.zeros(2, 1, 14, 28)).shape
    torch.Size([2, 1, 14, 28])
    """
    _require_sizes(layers, width)
    require_count("channels", channels, advice="1 for grey images, 3 for colour.")
    for name, side in (("height", height), ("width_px", width_px)):
        require_count(name, side, advice="count pixels.")
    require_count("pixels", height * width_px, at_least=2, advice="a coupling moves one half by the other.")
    rows, columns = torch.arange(height).unsqueeze(1), torch.arange(width_px)
    board = ((rows + columns) % 2).float().expand(channels, -1, -1).contiguous()
    return Flow([Coupling(_turned(board, layer), _convolutions(channels, width)) for layer in range(layers)])


def _require_sizes(layers: int, width: int) -> None:
    require_count("layers", layers, advice="4 is a good start; with 1 half of the entries stay as they are.")
    require_count("width", width, advice="64 is a good start for vectors, 32 for images.")


def _turned(mask: Tensor, layer: int) -> Tensor:
    return 1 - mask if layer % 2 else mask


def _mlp(features: int, width: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * features)
    )
    return _silent_at_first(layers)


def _convolutions(channels: int, width: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * channels, 3, padding=1),
    )
    return _silent_at_first(layers)


def _silent_at_first(network: nn.Sequential) -> nn.Sequential:
    last = network[-1]
    nn.init.zeros_(last.get_parameter("weight"))
    nn.init.zeros_(last.get_parameter("bias"))
    return network
