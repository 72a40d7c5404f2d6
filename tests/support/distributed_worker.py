"""The ranks of the distributed tests: each runs every case on its slice of the batch and writes what it saw.

Started once by tests/test_distributed.py:  python -m tests.support.distributed_worker OUT WORLD...
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by DistributedDataParallel, in every rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import flatclr
from flatclr import Objective
from flatclr.contrast import route as contrast_route
from flatclr.contrast.kernels import strips, tiled_torch
from tests.support.harness import CASES, PAIRINGS, Batch
from tests.support.memory import LargestTensor

SAMPLES, FEATURES, QUEUE, DRAWN = 12, 5, 4, 3
MANY_SAMPLES, TILE_EDGE, STRIP_NUMBERS = 96, 16, 800  # a batch of several tiles and strips on each of four ranks
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


def runs(world: int) -> Iterator[tuple[str, Batch, Objective, Tensor | None]]:
    """(name, global batch, objective with gather=True, queue) of every case in every pairing, a queue in every other.

    Those that are more arithmetic on the stats take their own pairing; on more than two ranks every case takes one.
    """
    for turn, case in enumerate(CASES):
        for place, pairing in enumerate(PAIRINGS):
            if pairing != case.pairing if case.of_stats else world > 2 and place != turn % len(PAIRINGS):
                continue
            queue = QUEUE * ((turn // len(PAIRINGS) + place) % 2)
            batch = Batch.random(SAMPLES, FEATURES, pairing=pairing, queue=queue)
            yield f"{case.name}-{pairing}-{queue}", batch, case.objective(batch, gather=True), batch.tensors()[2]
        if not case.draws:
            continue
        batch = Batch.random(SAMPLES, FEATURES, pairing=case.pairing)
        generator = torch.Generator().manual_seed(3 + _rank())  # only the first rank's draw may count
        drawn = case.objective(batch, gather=True, negatives_per_anchor=DRAWN, generator=generator)
        yield f"{case.name}-drawn", batch, drawn, None
    batch = Batch.random(SAMPLES, FEATURES)
    for name, objective in {
        "learned": flatclr.InfoNCE(0.3, learn_temperature=True, gather=True),
        "controlled": flatclr.FlatNCE(flatclr.EssControl(target=0.5), gather=True),
        "controlled_rpc": flatclr.RPC(flatclr.EssControl(target=0.5), gather=True),
        **{f"strips-{p}": flatclr.InfoNCE(0.3, pairing=p, route="strips", gather=True) for p in PAIRINGS},
        "controlled_per_anchor": flatclr.FlatNCE(flatclr.EssControl(target=0.5, per_anchor=True), gather=True),
        "siglip_learned": flatclr.SigLIP(0.3, bias=-1.0, gather=True),
        "sogclr_averaged": flatclr.SogCLR(0.3, gamma=0.4, gather=True),
        "isogclr": flatclr.ISogCLR(0.3, gamma=0.4, rate=0.1, gather=True),
        "vicreg": flatclr.VICReg(gather=True),
        "barlow_twins": flatclr.BarlowTwins(gather=True),
        "matryoshka": flatclr.Matryoshka(flatclr.InfoNCE(0.3, learn_temperature=True, gather=True), (2, 5)),
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


RELATIONS: dict[str, dict[str, Any]] = {
    "views": {},
    "labels": {"labels": torch.arange(SAMPLES) % 5},
    "ids": {"ids": torch.arange(SAMPLES) // 2},
    "hard": {"hard": 2},
    "margin": {"false_negative_margin": 0.1},
    "queue": {"queue": QUEUE, "labels": torch.arange(SAMPLES) % 3, "negative_labels": torch.arange(QUEUE) % 3},
    "everything": {
        "hard": 2,
        "queue": QUEUE,
        "false_negative_margin": 0.3,
        "labels": torch.arange(SAMPLES) % 3,
        "negative_labels": torch.arange(QUEUE) % 3,
        "ids": torch.arange(SAMPLES) % 7,
        "negative_ids": torch.arange(QUEUE),
    },
}
DRAWS = {
    f"{name}-drawn": {**RELATIONS[name], "negatives_per_anchor": DRAWN} for name in ("labels", "ids", "everything")
}
RELATED: dict[str, Any] = {
    "info_nce": lambda **o: flatclr.InfoNCE(0.3, learn_temperature=True, **o),
    "flat_nce_controlled": lambda **o: flatclr.FlatNCE(flatclr.EssControl(target=0.6), **o),
    "sup_con": lambda **o: flatclr.SupCon(0.3, position="inside", learn_temperature=True, **o),
    "holder_inf": lambda **o: flatclr.HolderFlatNCE(0.3, gamma=float("inf"), **o),
    "holder_0": lambda **o: flatclr.HolderFlatNCE(0.3, gamma=0.0, **o),
    "dv": lambda **o: flatclr.DV(0.3, learn_temperature=True, **o),
    "rpc": lambda **o: flatclr.RPC(2.0, normalize=True, a=0.2, b=0.1, learn_temperature=True, **o),
    "fmicl": lambda **o: flatclr.FMICL("js", **o),
    "align_uniform": lambda **o: flatclr.AlignUniform(**o),
    "flo": lambda **o: flatclr.FLO(0.3, learn_temperature=True, **o),
    "siglip": lambda **o: flatclr.SigLIP(0.3, bias=-1.0, **o),
    "debiased": lambda **o: flatclr.Debiased(0.3, prior=0.07, learn_temperature=True, **o),
    "dclw": lambda **o: flatclr.DCLW(0.3, **o),
}


SOME = dict.fromkeys(
    ("flat_nce_controlled", "holder_inf", "holder_0", "dv", "rpc", "align_uniform"),
    ("views", "everything", "everything-drawn"),
)
SOME["flo"] = ("views", "ids", "hard")
SOME |= dict.fromkeys(("siglip", "debiased", "dclw"), ("labels", "everything"))


def related_runs() -> Iterator[tuple[str, Objective, dict[str, Any]]]:
    """(name, objective with gather=True, what is said) of several views, every pairing, routes and relations in turn."""
    turn = 0
    for name, build in RELATED.items():
        relations = {**RELATIONS, **DRAWS}
        for relation in SOME.get(name, relations):
            said, turn = dict(relations[relation]), turn + 1
            pairing = ("views", "cross", "one_way", "within")[turn % 4]
            options = {k: said.pop(k) for k in ("false_negative_margin", "negatives_per_anchor") if k in said}
            if "negatives_per_anchor" in options:
                options["generator"] = torch.Generator().manual_seed(3 + _rank())
            else:
                options["route"] = ("streamed", "strips", "auto", "dense", "strips")[turn % 5]
            yield f"{name}-{relation}-{pairing}", build(gather=True, pairing=pairing, **options).double(), said


def three_views() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    base = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return base + 0.7 * torch.randn(3, SAMPLES, FEATURES, generator=generator, dtype=torch.float64)


def own_said(said: dict[str, Any], encoder: nn.Module, rank: int, world: int) -> tuple[dict[str, Any], list[Tensor]]:
    """What this rank passes of a relation, and the leaves it is made of besides the encoder: the shared queue."""
    said, leaves = dict(said), []
    for name in ("labels", "ids"):
        if name in said:
            said[name] = own_slice(said[name], rank, world)
    if said.pop("queue", 0):
        shared = torch.linspace(-1, 1, QUEUE * FEATURES, dtype=torch.float64).view(QUEUE, FEATURES).requires_grad_()
        said["negatives"], leaves = shared.sin(), [shared]
    hard = said.pop("hard", 0)
    if hard:
        x = torch.randn(SAMPLES, hard, FEATURES, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        said["hard_negatives"] = encoder(own_slice(x, rank, world))
    return said, leaves


def related_step(objective: Objective, said: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Loss, stats, and gradients after averaging over ranks, of three views."""
    encoder = TwoHeads()
    views = [encoder(own_slice(z, rank, world)) for z in three_views()]
    views[1].retain_grad()
    brought, leaves = own_said(said, encoder, rank, world)
    loss, stats = objective.with_stats(*views, **brought)
    with counting_collectives() as in_backward:
        loss.backward()
    with counting_collectives() as in_stats:
        info_nce = stats.info_nce
    own = [p.grad for p in objective.parameters()]
    averaged = [p.grad.clone() for p in (encoder.weight, *leaves) if p.grad is not None]
    if world > 1:
        for gradient in averaged:
            dist.all_reduce(gradient)
            gradient /= world
    return {
        "loss": loss.detach(),
        "stats": [stats.positive, stats.negative_logsumexp, stats.ess, info_nce, stats.positive_logsumexp],
        "counts": [torch.as_tensor(stats.negatives), torch.as_tensor(stats.positives), torch.as_tensor(stats.left_out)],
        "averaged": averaged,
        "own": own,
        "buffers": {name: b.clone() for name, b in objective.named_buffers()},
        "d_view": views[1].grad,
        "collectives_in_backward": in_backward,
        "collectives_in_stats": [] if "labels" in said else in_stats,
    }


def related_local_losses(rank: int, world: int) -> dict[str, list[Tensor]]:
    """Each rank averages its own anchors only, of stats that do not promise a shared loss, at a temperature per anchor."""
    results = {}
    for relation, said in {**RELATIONS, **DRAWS}.items():
        for pairing in ("views", "cross"):
            encoder, said = TwoHeads(), dict(said)
            options = {k: said.pop(k) for k in ("false_negative_margin", "negatives_per_anchor") if k in said}
            brought, leaves = own_said(said, encoder, rank, world)
            anchors = SAMPLES * (3 if pairing == "views" else 6)
            beta = torch.linspace(1, 4, anchors, dtype=torch.float64, requires_grad=True)
            stats = flatclr.contrast_stats(
                *(encoder(own_slice(z, rank, world)) for z in three_views()),
                inverse_temperature=beta,
                pairing=pairing,
                gather=True,
                generator=torch.Generator().manual_seed(3 + rank),
                **options,
                **brought,
            )
            per_anchor = stats.info_nce + stats.gap.square() + stats.positive_logsumexp
            own = per_anchor.view(-1, world, SAMPLES // world)[:, rank]
            counted = ~own.isnan()
            own.masked_fill(~counted, 0.0).mean().backward()
            gradients = [x.grad for x in (encoder.weight, beta, *leaves)]
            assert all(g is not None for g in gradients)
            if world > 1:
                for gradient in gradients:
                    dist.all_reduce(gradient)
            results[f"{relation}-{pairing}"] = [g / world for g in gradients]
    return results


def related_refusals(rank: int) -> dict[str, str]:
    """What a rank is told when one of them brings something else than the others."""
    first, z = rank == 0, torch.randn(3, 4, 3)
    labels = torch.arange(4)
    queue = torch.randn(5, 3)
    different: dict[str, tuple[Tensor, dict[str, Any]]] = {
        "labels missing": (z, {} if first else {"labels": labels}),
        "ids missing": (z, {"ids": labels} if first else {}),
        "labels short": (z, {"labels": labels[:3] if first else labels}),
        "labels of floats": (z, {"ids": labels.float() if first else labels}),
        "queue labels missing": (
            z,
            {"labels": labels, "negatives": queue, **({} if first else {"negative_labels": torch.arange(5)})},
        ),
        "hard negatives missing": (z, {"hard_negatives": torch.randn(4, 2, 3)} if first else {}),
        "hard negatives of another type": (
            z,
            {"hard_negatives": torch.randn(4, 2, 3, dtype=torch.float64 if first else torch.float32)},
        ),
        "fewer hard negatives": (z, {"hard_negatives": torch.randn(4, 2 + first, 3)}),
        "views": (z[: 2 + first], {}),
        "one label": (z, {"labels": torch.zeros(4).long()}),
    }
    heard = {}
    for name, (views, said) in different.items():
        try:
            flatclr.InfoNCE(gather=True)(*views, **said)
        except (TypeError, ValueError) as error:
            heard[name] = str(error)
    try:
        flatclr.SogCLR(gather=True)(*z, index=None if first else labels)
    except ValueError as error:
        heard["index missing"] = str(error)
    return heard


def own_slice(z: Tensor, rank: int, world: int) -> Tensor:
    return z.chunk(world)[rank].detach()


def step(batch: Batch, objective: Objective, queue: Tensor | None, rank: int, world: int) -> dict[str, Any]:
    """Loss, stats and the gradient of every parameter after averaging over ranks, as DDP does."""
    encoder = TwoHeads()
    x_a, x_b = (own_slice(z, rank, world) for z in batch.tensors()[:2])
    z_a, z_b = encoder(x_a), encoder(x_b)
    z_a.retain_grad()
    told = {}
    if objective.keeps_samples:
        told["index"] = own_slice(7 * torch.arange(SAMPLES) % 29, rank, world)
        objective(x_a, x_b, **told)  # so that there is an average to go on from
    loss, stats = objective.with_stats(z_a, z_b, negatives=queue, **told)
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


def sharded_trajectory(rank: int, world: int) -> dict[str, Any]:
    """Five steps of an encoder under fully_shard, by objective: first gradients, losses, last weights, all unsharded."""
    followed = {}
    for name, objective in {
        "flatnce": flatclr.FlatNCE(0.2, gather=True),
        "controlled": flatclr.FlatNCE(flatclr.EssControl(target=0.5), gather=True),
        "learned": flatclr.InfoNCE(0.3, learn_temperature=True, gather=True).double(),
    }.items():
        torch.manual_seed(0)
        layers = nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3)  # 3 rows: not as many for every rank
        encoder = nn.Sequential(*layers).double()
        if world > 1:
            for layer in (layers[0], layers[2], encoder):
                fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
        parameters = [*encoder.parameters(), *objective.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.05)
        views = [own_slice(z, rank, world) for z in three_views()]
        losses, gradients = [], []
        for _ in range(5):
            optimizer.zero_grad()
            loss = objective(*encoder(torch.cat(views)).chunk(3))
            loss.backward()
            gradients = gradients or [_whole(p.grad) for p in parameters if p.grad is not None]
            nn.utils.clip_grad_norm_(encoder.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
        weights = [_whole(p.detach()) for p in parameters]
        followed[name] = {"losses": losses, "gradients": gradients, "weights": weights}
    return followed


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def sharded_encoder_files(world: int) -> str:
    """What is said where a sharded encoder is to be saved; of its full state, what is loaded again."""
    torch.manual_seed(0)
    encoder, whole = (flatclr.models.build_encoder("mlp", channels=1, image_size=4, width=8) for _ in range(2))
    want = [p.detach().clone() for p in encoder.parameters()]
    fully_shard(encoder, mesh=init_device_mesh("cpu", (world,)))
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            flatclr.models.save_encoder(folder, encoder, description={})
        except ValueError as error:
            said = str(error)
        assert not list(Path(folder).iterdir())
        whole.load_state_dict(get_model_state_dict(encoder, options=StateDictOptions(full_state_dict=True)))
        flatclr.models.save_encoder(folder, whole, description={})
        loaded = flatclr.load_encoder(folder)
        assert all(torch.equal(p, q) for p, q in zip(loaded.parameters(), want, strict=True))
    return said


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
    every = [(c, p, QUEUE * (p == "cross")) for c in cases for p in PAIRINGS]
    for case, pairing, queued in every if world <= 2 else every[1::4]:
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


def compiled_runs(world: int) -> Iterator[tuple[str, Objective, dict[str, Tensor]]]:
    """(name, objective, what is said of all samples), each to be one graph."""
    labels, index = torch.arange(SAMPLES) % 4, torch.arange(SAMPLES)
    hard = Batch.random(SAMPLES, FEATURES).tensors()[0].detach().flip(0).unsqueeze(1)
    generator = torch.Generator().manual_seed(3 + _rank())  # only the first rank's draw may count
    yield "learned", flatclr.InfoNCE(0.3, learn_temperature=True, gather=True), {}
    yield "labels", flatclr.InfoNCE(0.3, gather=True, route="strips", backend="torch"), {"labels": labels}
    if world > 2:
        return
    yield "drawn", flatclr.InfoNCE(0.3, negatives_per_anchor=3, generator=generator, gather=True), {}
    yield "hard", flatclr.InfoNCE(0.3, gather=True), {"hard_negatives": hard}
    yield "sogclr", flatclr.SogCLR(0.3, samples=SAMPLES, gather=True), {"index": index}


def compiled_gradients(rank: int, world: int) -> dict[str, Tensor]:
    """Averaged gradients of model and loss in one graph on several ranks; one process runs them as they are."""
    found = {}
    for name, objective, said in compiled_runs(world):
        encoder, loss = TwoHeads(), objective.double()
        x_a, x_b = (own_slice(z.detach(), rank, world) for z in Batch.random(SAMPLES, FEATURES).tensors()[:2])
        own = {what: own_slice(value, rank, world) for what, value in said.items()}

        def model_and_loss(encoder: nn.Module = encoder, loss: Objective = loss, **own: Tensor) -> Tensor:
            value: Tensor = loss(encoder(own.pop("x_a")), encoder(own.pop("x_b")), **own)
            return value

        if world > 1:
            torch._dynamo.reset()
        call = torch.compile(model_and_loss, backend="aot_eager", fullgraph=True) if world > 1 else model_and_loss
        call(x_a=x_a, x_b=x_b, **own).backward()
        assert encoder.weight.grad is not None
        if world > 1:
            dist.all_reduce(encoder.weight.grad)
        found[name] = encoder.weight.grad / world
    return found


def compiled_refusals(rank: int) -> dict[str, str]:
    """What a rank is told by a graph when ranks differ, or when the second has bad input."""
    z, bad = torch.randn(6, 4), rank == 1
    calls: dict[str, tuple[Tensor, bool, dict[str, Tensor]]] = {
        "sizes": (torch.randn(3 + rank, 4), True, {}),
        "labels": (z, False, {"labels": torch.arange(5 if bad else 6)}),
        "hard": (z, True, {"hard_negatives": torch.randn(6, 2, 4, dtype=torch.float64 if bad else torch.float32)}),
    }
    heard = {}
    for name, (own, fullgraph, said) in calls.items():
        torch._dynamo.reset()
        call = torch.compile(flatclr.InfoNCE(gather=True), backend="aot_eager", fullgraph=fullgraph)
        try:
            call(own, own.clone(), **said)
        except ValueError as error:
            heard[name] = str(error)
    return heard


@contextmanager
def as_on_gpus(*, broken_rank: int | None = None) -> Iterator[None]:
    """Kernels that are interpreted here are preferred as those on a GPU are; on one rank they may not run."""
    before = contrast_route._is_half_on_gpu, contrast_route.fused_kernels_run
    contrast_route._is_half_on_gpu = lambda _: True
    contrast_route.fused_kernels_run = lambda _: _rank() != broken_rank
    contrast_route._ANSWERS.clear()
    try:
        yield
    finally:
        contrast_route._is_half_on_gpu, contrast_route.fused_kernels_run = before
        contrast_route._ANSWERS.clear()


def automatic(rank: int, world: int) -> dict[str, Any]:
    """Routes that "auto" takes on several ranks with GPUs, and averaged gradients; one process streams."""
    found: dict[str, Any] = {}
    labels = own_slice(torch.arange(SAMPLES) % 4, rank, world)
    for name, width, said, broken in (
        ("narrow", FEATURES, {}, None),
        ("wide", 130, {}, None),
        ("labels", FEATURES, {"labels": labels}, None),
        ("broken", FEATURES, {}, 1),
    ):
        views = [own_slice(z, rank, world).bfloat16() for z in Batch.random(SAMPLES, width).tensors()[:2]]
        leaves = [view.detach().requires_grad_() for view in views]
        options = {"gather": True} if world > 1 else {"route": "streamed"}
        objective = flatclr.InfoNCE(0.3, **options)
        with as_on_gpus(broken_rank=broken):
            loss, stats = objective.with_stats(*leaves, **said)
            found[name] = {"route": stats.route, "gradient": torch.autograd.grad(loss, leaves)}
            if broken is not None and world > 1:
                torch._dynamo.reset()
                compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
                found["in a graph"] = {
                    "route": "streamed",
                    "gradient": torch.autograd.grad(compiled(*leaves, **said), leaves),
                }
    return found


@contextmanager
def small_pieces() -> Iterator[None]:
    before = strips.STRIP_BYTES, tiled_torch.tile_edge
    strips.STRIP_BYTES, tiled_torch.tile_edge = 8 * STRIP_NUMBERS, lambda device: TILE_EDGE
    try:
        yield
    finally:
        strips.STRIP_BYTES, tiled_torch.tile_edge = before


def in_pieces(rank: int, world: int) -> dict[str, dict[str, Any]]:
    """Loss, averaged gradient and the largest tensor of a rank, piece by piece."""
    found = {}
    for route in ("streamed", "strips"):
        for pairing in PAIRINGS:
            batch = Batch.random(MANY_SAMPLES, FEATURES, pairing=pairing)
            encoder, own = TwoHeads(), [own_slice(z, rank, world) for z in batch.tensors()[:2]]
            objective = flatclr.InfoNCE(0.3, pairing=pairing, route=route, gather=True)
            with small_pieces(), LargestTensor() as largest:
                loss = objective(*(encoder(x) for x in own))
                loss.backward()
            assert encoder.weight.grad is not None
            if world > 1:
                dist.all_reduce(encoder.weight.grad)
            numbers = {"loss": loss.detach(), "gradient": encoder.weight.grad / world}
            found[f"{route}-{pairing}"] = {**numbers, "largest": largest.elements}
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
        "steps": {name: step(b, copy.deepcopy(o), q, rank, world) for name, b, o, q in runs(world)},
        "local": local_losses(batch, rank, world),
        "ddp": ddp_trajectory(batch, rank, world),
        "sharded": sharded_trajectory(rank, world),
        "sharded_files": sharded_encoder_files(world) if world > 1 else "",
        "queue": queue_gradient(batch, rank, world),
        "different": different_losses(batch, rank, world),
        "related": {name: related_step(objective, said, rank, world) for name, objective, said in related_runs()},
        "related_local": related_local_losses(rank, world),
        "related_refusals": related_refusals(rank) if world > 1 else {},
        "fused": fused_gradients(rank, world) if interprets_kernels() else {},
        "automatic": automatic(rank, world) if interprets_kernels() else {},
        "pieces": in_pieces(rank, world),
        "compiled": compiled_gradients(rank, world),
        "compiled_refusals": compiled_refusals(rank) if world == 2 else {},
        "refusals": refusals(rank) if world > 1 else {},
        "failure": shared_failure(rank) if world > 1 else "",
    }


def run_rank(rank: int, world: int, out: Path) -> None:
    store = (out / f"store{world}").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    torch.save(everything(rank, world), out / f"rank{rank}of{world}.pt")
    gc.collect()  # gloo may abort at exit while a DDP reducer is alive
    dist.barrier()
    dist.destroy_process_group()


def main(out: Path, worlds: list[int]) -> None:
    """One world after the other; ranks are forked, so that what they all import is imported once."""
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    for world in worlds:
        ranks = [fork.Process(target=run_rank, args=(rank, world, out)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(world) for world in sys.argv[2:]])
