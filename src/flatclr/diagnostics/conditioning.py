"""How a map stretches its inputs: singular values of its Jacobian, and what its inverse gives back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from flatclr.checks import require_count, shown


def jacobian_singular_values(module: nn.Module, inputs: Tensor, *, chunk: int = 16) -> Tensor:
    """Singular values of the Jacobian of each sample's output by its input, exactly; in evaluation mode.

    Args:
        module: any that treats samples apart from each other and is plain PyTorch.
        inputs: samples [N, ...].
        chunk: rows of a Jacobian, and samples, that are computed at once; fewer take less memory. Samples of a module
            that `torch.vmap` refuses are computed one by one.

    Returns:
        [N, min(inputs, outputs)], in float64, the largest first.

    >>> jacobian_singular_values(nn.Linear(3, 2), torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.is_floating_point() or not len(inputs):
        raise ValueError(f"inputs must be floating-point samples [N, ...], got {shown(inputs)}; pass a batch.")
    require_count("chunk", chunk, advice="16 is the default.")

    def output(sample: Tensor) -> Tensor:
        row = module(sample.unsqueeze(0))
        if not isinstance(row, Tensor):
            raise TypeError(
                f"module must return one tensor, got {type(row).__name__}; wrap it to return the one meant."
            )
        return row.flatten()

    training = {part: part.training for part in module.modules()}
    module.eval()  # statistics of a batch would tie samples to each other
    try:
        jacobians = _over_samples(torch.func.jacrev(output, chunk_size=chunk), inputs, chunk)
    finally:
        for part, state in training.items():
            part.training = state
    values: Tensor = torch.linalg.svdvals(jacobians.detach().flatten(2).double())
    return values


def _over_samples(jacobian: Callable[[Tensor], Tensor], inputs: Tensor, chunk: int) -> Tensor:
    try:
        together: Tensor = torch.vmap(jacobian, chunk_size=chunk)(inputs)
    except RuntimeError:  # control flow by values, or what has no rule for batches: what else is wrong is said below
        return torch.stack([jacobian(sample) for sample in inputs])
    return together


def condition_number(module: nn.Module, inputs: Tensor, *, chunk: int = 16) -> Tensor:
    """The largest over the smallest singular value of the Jacobian at each sample; in evaluation mode.

    Args:
        module: any that treats samples apart from each other and is plain PyTorch.
        inputs: samples [N, ...].
        chunk: rows of a Jacobian, and samples, that are computed at once.

    Returns:
        [N], at least 1: 1 for a rotation, infinite where a direction is lost.

    >>> stretch = nn.Linear(2, 2, bias=False)
    >>> stretch.weight.data = torch.tensor([[4.0, 0.0], [0.0, 0.5]])
    >>> condition_number(stretch, torch.zeros(1, 2))
    tensor([8.], dtype=torch.float64)
    """
    values = jacobian_singular_values(module, inputs, chunk=chunk)
    return torch.where(values[:, -1] == 0, torch.inf, values[:, 0] / values[:, -1])


def inversion_error(module: nn.Module, inputs: Tensor) -> Tensor:
    """How far `module.inverse(module(x))` is from x, the largest entry of each sample.

    Args:
        module: with a method `inverse`, such as the encoder "realnvp".
        inputs: samples [N, ...].

    Returns:
        [N].

    >>> inversion_error(flatclr.models.vector_flow(4), torch.ones(2, 4))
    tensor([0., 0.])
    """
    inverse = getattr(module, "inverse", None)
    if not isinstance(module, nn.Module) or inverse is None:
        raise TypeError(f"module must have a method inverse, got {type(module).__name__}; pass a flow.")
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.is_floating_point() or not len(inputs):
        raise ValueError(f"inputs must be floating-point samples [N, ...], got {shown(inputs)}; pass a batch.")
    with torch.no_grad():
        back: Tensor = inverse(module(inputs))
    return (back.reshape(inputs.shape) - inputs).flatten(1).abs().amax(1)
