"""One rank of the distributed tests: runs every case on its slice of the batch and writes what it saw.

Started once per world size by tests/test_distributed.py:  python -m tests.support.distributed_worker RANK WORLD STORE OUT
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import flatclr
from flatclr import Objective
from tests.support.harness import CASES, PAIRINGS, Batch

SAMPLES, FEATURES, QUEUE, DRAWN = 12, 5, 4, 3
COLLECTIVES = [
    name
    for name in (
        "all_gather_single",
        "all_gather_into_tensor",
        "all_gather",
        "all_reduce",
        "broadcast",
        "reduce",
        "reduce_scatter",
    )
    if hasattr(dist, name)
]


class TwoHeads(nn.Module):
    """A small encoder whose parameters see both views."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(FEATURES, FEATURES, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


def runs() -> Iterator[tuple[str, Batch, Objective, Tensor | None]]:
    """(name, global batch, objective with gather=True, queue) of every case in every pairing, with and without a queue."""
    for case in CASES:
        for pairing in PAIRINGS:
            for queue in (0, QUEUE):
                batch = Batch.random(SAMPLES, FEATURES, pairing=pairing, queue=queue)
                yield f"{case.name}-{pairing}-{queue}", batch, case.objective(batch, gather=True), batch.tensors()[2]
        batch = Batch.random(SAMPLES, FEATURES, pairing=case.pairing)
        generator = torch.Generator().manual_seed(3 + _rank())  # only the first rank's draw may count
        drawn = case.objective(batch, gather=True, negatives_per_anchor=DRAWN, generator=generator)
        yield f"{case.name}-drawn", batch, drawn, None
    batch = Batch.random(SAMPLES, FEATURES)
    for name, objective in {
        "learned": flatclr.InfoNCE(0.3, learn_temperature=True, gather=True),
        "controlled": flatclr.FlatNCE(flatclr.EssControl(target=0.5), gather=True),
        "controlled_rpc": flatclr.RPC(flatclr.EssControl(target=0.5), gather=True),
    }.items():
        yield name, batch, objective.double(), None


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def counting_collectives() -> Iterator[list[str]]:
    seen: list[str] = []
    originals = {name: getattr(dist, name) for name in COLLECTIVES}

    def counted(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return originals[name](*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, counted(name))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def own_slice(z: Tensor, rank: int, world: int) -> Tensor:
    return z.chunk(world)[rank].detach()


def step(batch: Batch, objective: Objective, queue: Tensor | None, rank: int, world: int) -> dict[str, Any]:
    """Loss, stats and the gradient of every parameter after averaging over ranks, as DDP does."""
    encoder = TwoHeads()
    x_a, x_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
    z_a, z_b = encoder(x_a), encoder(x_b)
    z_a.retain_grad()
    loss, stats = objective.with_stats(z_a, z_b, negatives=queue)
    with counting_collectives() as in_backward:
        loss.backward()
    parameters = {f"encoder.{n}": p for n, p in encoder.named_parameters()}
    parameters |= {f"objective.{n}": p for n, p in objective.named_parameters()}
    averaged = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    before_averaging = {name: g.clone() for name, g in averaged.items()}
    if world > 1:
        for gradient in averaged.values():
            dist.all_reduce(gradient)
            gradient /= world
    return {
        "loss": loss.detach(),
        "stats": (stats.positive, stats.negative_logsumexp, stats.ess, torch.tensor(stats.negatives)),
        "gradients": averaged,
        "unaveraged": before_averaging,
        "d_z_a": z_a.grad,
        "collectives_in_backward": in_backward,
        "buffers": {name: b.clone() for name, b in objective.named_buffers()},
    }


def local_losses(batch: Batch, rank: int, world: int) -> dict[str, Tensor]:
    """Each rank averages its own anchors of the global stats only; DDP's average is then the global mean."""
    results = {}
    for pairing in PAIRINGS:
        for draw in (None, DRAWN):
            encoder = TwoHeads()
            x_a, x_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
            stats = flatclr.contrast_stats(
                encoder(x_a),
                encoder(x_b),
                inverse_temperature=3.0,
                pairing=pairing,
                gather=True,
                negatives_per_anchor=draw,
                generator=torch.Generator().manual_seed(3 + rank),
            )
            own = stats.info_nce.view(-1, world, SAMPLES // world)[:, rank]
            own.mean().backward()
            assert encoder.weight.grad is not None
            if world > 1:
                dist.all_reduce(encoder.weight.grad)
            results[f"{pairing}-{draw}"] = encoder.weight.grad / world
    return results


def ddp_trajectory(batch: Batch, rank: int, world: int) -> Tensor:
    """Ten steps of real DistributedDataParallel with a learned temperature in its own wrapper."""
    encoder: nn.Module = TwoHeads()
    objective = flatclr.InfoNCE(0.3, learn_temperature=True, gather=True).double()
    parameters = [*encoder.parameters(), *objective.parameters()]
    if world > 1:
        encoder = nn.parallel.DistributedDataParallel(encoder)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    x_a, x_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
    for _ in range(10):
        optimizer.zero_grad()
        z = encoder(torch.cat([x_a, x_b]))
        objective(*z.chunk(2)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


def refusals(rank: int) -> dict[str, str]:
    """What a rank is told when ranks differ."""
    first = rank == 0
    unequal = {
        "batch": (torch.randn(3 + rank, 4), None),
        "width": (torch.randn(3, 4 + rank), None),
        "queue": (torch.randn(3, 4), torch.randn(5 + rank, 4)),
        "dtype": (torch.randn(3, 4, dtype=torch.float32 if first else torch.float64), None),
        "empty": (torch.randn(3 if first else 0, 4), None),
    }
    heard = {}
    for name, (z, queue) in unequal.items():
        try:
            flatclr.InfoNCE(gather=True)(z, z, negatives=queue)
        except ValueError as error:
            heard[name] = str(error)
    return heard


def queue_gradient(batch: Batch, rank: int, world: int) -> Tensor:
    """Gradient of a queue every rank computes from one shared parameter, after averaging."""
    shared = torch.linspace(-1, 1, QUEUE * FEATURES, dtype=torch.float64).view(QUEUE, FEATURES).requires_grad_()
    z_a, z_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
    flatclr.InfoNCE(0.3, gather=True)(z_a, z_b, negatives=shared.sin()).backward()
    assert shared.grad is not None
    if world > 1:
        dist.all_reduce(shared.grad)
    return shared.grad / world


def different_losses(batch: Batch, rank: int, world: int) -> Tensor:
    """The first rank's loss uses the positives only, the others' the negatives only; one process averages them."""
    encoder = TwoHeads()
    x_a, x_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
    stats = flatclr.contrast_stats(encoder(x_a), encoder(x_b), inverse_temperature=3.0, gather=True)
    losses = stats.positive.mean(), stats.negative_logsumexp.mean()
    if world == 1:
        return torch.stack([torch.autograd.grad(loss, encoder.weight, retain_graph=True)[0] for loss in losses])
    losses[min(rank, 1)].backward()
    assert encoder.weight.grad is not None
    dist.all_reduce(encoder.weight.grad)
    return encoder.weight.grad / world


def interprets_kernels() -> bool:
    """Whether the fused kernels run on the CPU here."""
    return importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"


def fused_gradients(rank: int, world: int) -> dict[str, Tensor]:
    """Averaged gradient of the encoder through the fused kernels on several ranks; one process takes the tiled ones."""
    backend, found = "torch" if world == 1 else "triton", {}
    cases = [case for case in CASES if case.name in ("info_nce", "fmicl_js")]
    for case, pairing, queued in [(c, p, QUEUE * (p == "cross")) for c in cases for p in PAIRINGS]:
        batch = Batch.random(SAMPLES, FEATURES, pairing=pairing, queue=queued)
        encoder = TwoHeads().float()
        x_a, x_b = (own_slice(z, rank, world).float() for z in batch.tensors()[:2])
        objective = case.build(**batch.options(), gather=True, backend=backend)
        objective(encoder(x_a), encoder(x_b), negatives=batch.tensors(torch.float32)[2]).backward()
        assert encoder.weight.grad is not None
        if world > 1:
            dist.all_reduce(encoder.weight.grad)
        found[f"{case.name}-{pairing}"] = encoder.weight.grad / world
    return found


def shared_failure(rank: int) -> str:
    """One rank has a NaN; all of them must hear of it."""
    z = torch.randn(4, 3)
    if rank == 1:
        z[2, 0] = torch.nan
    try:
        flatclr.InfoNCE(gather=True, check_embeddings=True)(z, z)
    except ValueError as error:
        return str(error)
    return ""


def everything(rank: int, world: int) -> dict[str, Any]:
    batch = Batch.random(SAMPLES, FEATURES)
    return {
        "steps": {name: step(b, copy.deepcopy(o), q, rank, world) for name, b, o, q in runs()},
        "local": local_losses(batch, rank, world),
        "ddp": ddp_trajectory(batch, rank, world),
        "queue": queue_gradient(batch, rank, world),
        "different": different_losses(batch, rank, world),
        "fused": fused_gradients(rank, world) if interprets_kernels() else {},
        "refusals": refusals(rank) if world > 1 else {},
        "failure": shared_failure(rank) if world > 1 else "",
    }


def main(rank: int, world: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=Path(store).as_uri(), rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    torch.save(everything(rank, world), Path(out) / f"rank{rank}.pt")
    gc.collect()  # gloo may abort at exit while a DDP reducer is alive
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
