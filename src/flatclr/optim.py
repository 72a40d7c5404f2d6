"""Optimizers, learning-rate scaling and the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatclr.checks import require_count, require_number, require_one_of, shown

OPTIMIZERS = ("sgd", "adamw", "lars")
SCALING_RULES = ("linear", "sqrt", "none")
SHARE = "share_of_rate"  # of a group that has one
SCALAR_RATE = 0.01  # of the learning rate, by sgd and lars, for what is a single number
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017), for large batches.

        local = trust ||w|| / (||g|| + weight_decay ||w||)         1 where the fraction is undefined, or adapt=False
        v     = momentum v + lr local (g + weight_decay w)
        w     = w - v

    `adapt` is an option of a parameter group. Nothing waits for the device; with a tensor `lr` a step may be captured
    in a CUDA graph.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        if not isinstance(lr, Tensor):
            require_not_negative("lr", lr)
        require_not_negative("momentum", momentum, below=1)
        require_not_negative("weight_decay", weight_decay)
        require_number("trust", trust, above=0, advice="0.001 is the published value.")
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                self._step_group(group, weights)
        return loss

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        changes = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            rates = group["lr"] * self._local_rates(group, weights, gradients)
            torch._foreach_mul_(changes, rates.unbind())
        else:
            torch._foreach_mul_(changes, group["lr"])
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        velocities = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, changes)
        torch._foreach_sub_(weights, velocities)

    @staticmethod
    def _local_rates(group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> Tensor:
        # float32 at least: a norm over a large half-precision tensor overflows
        kind = torch.float64 if weights[0].dtype == torch.float64 else torch.float32
        size = torch.stack(torch._foreach_norm(weights, dtype=kind))
        pull = torch.stack(torch._foreach_norm(gradients, dtype=kind)) + group["weight_decay"] * size
        return torch.where((size > 0) & (pull > 0), group["trust"] * size / pull, 1.0)


def build_optimizer(
    name: str,
    modules: nn.Module | Iterable[nn.Module],
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.999),
    capturable: bool = False,
) -> torch.optim.Optimizer:
    """An optimizer over every parameter that needs a gradient.

    Biases, parameters of normalisation layers and all others with at most one dimension (a learned temperature) get no
    weight decay and no LARS adaptation. Single numbers (a learned temperature, a bias) sum the gradients of all pairs,
    and leave their range at the rate of the weights: by sgd and lars theirs is a hundredth of it.

    Args:
        name: "sgd", "adamw" or "lars".
        modules: encoder, head, objective; a parameter they share counts once.
        momentum: of sgd and lars.    betas: of adamw.
        capturable: hold the learning rate in a tensor on the parameters' device and never wait for it, so that a step
            can be captured in a CUDA graph and `set_learning_rate` steers its replays.

    >>> optimizer = build_optimizer("sgd", torch.nn.Linear(3, 2), learning_rate=0.1, weight_decay=1e-4)
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.0001, 0.0]
    >>> objective = flatclr.SigLIP(0.1)
    >>> [group["lr"] for group in build_optimizer("sgd", objective, learning_rate=0.1, weight_decay=0.0).param_groups]
    [0.001]
    """
    require_one_of("optimizer", name, OPTIMIZERS)
    require_number("learning_rate", learning_rate, above=0)
    require_not_negative("weight_decay", weight_decay)
    require_not_negative("momentum", momentum, below=1)
    for beta in betas:
        require_not_negative("betas", beta, below=1)
    decayed, plain = _split([modules] if isinstance(modules, nn.Module) else list(modules))
    every = decayed + plain
    if not every:
        raise ValueError("modules must have parameters that need a gradient, got none; unfreeze some.")
    single = [parameter for parameter in plain if parameter.dim() == 0 and name != "adamw"]
    device = every[0].device

    def rate_of(share: float) -> Any:
        return torch.tensor(share * learning_rate, device=device) if capturable else share * learning_rate

    rate = rate_of(1.0)
    left_alone = {"weight_decay": 0.0} | ({"adapt": False} if name == "lars" else {})
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": [p for p in plain if not any(p is s for s in single)], **left_alone},
        {"params": single, **left_alone, "lr": rate_of(SCALAR_RATE), SHARE: SCALAR_RATE},
    ]
    groups = [group for group in groups if group["params"]]
    # fused: the kernel reads a tensor rate on the device, the others fetch it to the host
    fused = True if capturable else None
    if name == "lars":
        return LARS(groups, rate, momentum=momentum)
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, rate, momentum=momentum, fused=fused)
        if capturable and momentum:
            # from zero, as it starts anyway: a skipped first step would leave what PyTorch allocated but never wrote
            for parameter in every:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    return torch.optim.AdamW(groups, rate, betas=betas, fused=fused, capturable=capturable)


def _split(modules: list[nn.Module]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters to decay, and the others, in the order of the modules."""
    plain_by_parameter: dict[nn.Parameter, bool] = {}
    for root in modules:
        for module in root.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    plain = isinstance(module, NORMALISATIONS) or name == "bias" or parameter.dim() <= 1
                    plain_by_parameter.setdefault(parameter, plain)
    return (
        [parameter for parameter, plain in plain_by_parameter.items() if not plain],
        [parameter for parameter, plain in plain_by_parameter.items() if plain],
    )


def scaled_learning_rate(base: float, batch_size: int, rule: str = "linear", reference_batch: int = 256) -> float:
    """The learning rate for a batch, from the one for `reference_batch` images.

    "linear" (Goyal et al. 2017): base B / reference.    "sqrt" (Krizhevsky 2014): base sqrt(B / reference).

    >>> scaled_learning_rate(0.4, 64), scaled_learning_rate(0.4, 64, "sqrt"), scaled_learning_rate(0.4, 64, "none")
    (0.1, 0.2, 0.4)
    """
    require_number("base", base, above=0)
    require_count("batch_size", batch_size, advice="count the images of all ranks together.")
    require_count("reference_batch", reference_batch, advice="256 is usual.")
    require_one_of("rule", rule, SCALING_RULES)
    ratio = batch_size / reference_batch
    return base * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


def warmup_cosine(step: int, *, total_steps: int, warmup_steps: int, final: float = 0.0) -> float:
    """What to multiply the learning rate with: a line up to 1 at `warmup_steps`, then half a cosine down to `final`.

    Step 0 already learns, with 1 / (warmup_steps + 1); after `total_steps` it stays at `final`.

    >>> [warmup_cosine(step, total_steps=6, warmup_steps=2) for step in (1, 2, 4, 6)]
    [0.6666666666666666, 1.0, 0.5, 0.0]
    """
    require_count("total_steps", total_steps, advice="count optimizer steps of the whole run.")
    require_not_negative("final", final)
    for name, value in (("step", step), ("warmup_steps", warmup_steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number >= 0, got {shown(value)}; count optimizer steps from 0.")
    if warmup_steps > total_steps:
        raise ValueError(
            f"warmup_steps must be <= total_steps = {total_steps}, got {warmup_steps}; train longer or warm up less."
        )
    if step >= total_steps:
        return final
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, base: float, multiplier: float) -> None:
    """Let every group learn with base * multiplier, or its share of it.

    A tensor rate (`capturable=True`) is filled in place without waiting: replays of a captured step see the new value.
    `load_state_dict` puts another tensor in its place, so restore a checkpoint before capturing.
    """
    for group in optimizer.param_groups:
        rate = base * multiplier * group.get(SHARE, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def require_not_negative(name: str, value: Any, *, below: float = math.inf) -> None:
    require_number(name, value, below=below)
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}; 0 switches it off.")
