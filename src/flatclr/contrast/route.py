"""Which way a contrast is reduced: the one place that decides.

dense      one tile of scores, kept for backward: small batches
streamed   tile by tile in PyTorch's operations, recomputed in backward: any device, any size
fused      tile by tile in Triton kernels: CUDA devices
strips     strip by strip through the library's matrix products, sums in Triton: wide embeddings on CUDA devices
drawn      the scores of drawn negatives alone; not to be asked for, it follows from negatives_per_anchor
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from flatclr.contrast import dense, operators
from flatclr.contrast.batch import Batch
from flatclr.contrast.drawn import candidate_scores
from flatclr.contrast.kernels import TRITON_MODULES, Kernels, fused_kernels_run, kernels_of, knows
from flatclr.contrast.numerics import Unchanged, dense_ess, no_autocast
from flatclr.contrast.phi import Phi, can_be_written
from flatclr.contrast.related import Positives, mean_phi_of, negatives_of
from flatclr.contrast.stats import ContrastStats, measured
from flatclr.contrast.streamed import reduce_streamed
from flatclr.contrast.whole import has_plan, reduce_whole
from flatclr.distributed import ALONE, Ranks, any_rank, group_of

LARGEST_DENSE = 2**20  # scores, one tile
LARGEST_DENSE_ON_GPU = 2**22  # of bfloat16, up to which the launches of fused kernels take longer than plain code
LARGEST_DENSE_BESIDE_PLANS = 2**18  # of bfloat16 on a GPU, where kernels would be launched by a plan (`whole`)
LARGEST_EXACT = 2**33  # multiplications of a tile up to which it is made in float32 whatever the embeddings' type
WIDEST_FUSED = 128  # features (results/loss_widths.jsonl)


def stats_of(pairs: Batch, inverse_temperature: float | Tensor) -> ContrastStats:
    """The stats of a batch that is ready to be contrasted: what `Objective.loss` calls.

    Args:
        pairs: a `PairSet`.
        inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].

    Returns:
        Stats of all anchors.

    >>> stats_of(flatclr.PairSet.of(torch.eye(4), torch.eye(4)), 2.0).negatives
    6
    """
    scale = pairs.scale(inverse_temperature)
    plain = _is_plain(pairs, scale)
    route = route_of(pairs, plain=plain, scale=scale)
    if not plain:
        return _related(pairs, scale, route)
    negatives = pairs.layout.negatives
    if route == "drawn":
        assert pairs.drawn_Ak is not None
        scores_Ak, positive = candidate_scores(pairs, scale, pairs.drawn_Ak), positive_scores(pairs, scale)
        total = scores_Ak.logsumexp(1)
        return ContrastStats(
            positive, total, total - positive, negatives, partial(dense_ess, scores_Ak, negatives), route
        )
    with no_autocast(pairs.views[0]):
        if route == "dense":
            positive, total, gap, measure_ess = dense.logsumexp_kept(pairs, scale, _tile_kernels(pairs))
            return ContrastStats(positive, total, gap, negatives, measure_ess)
        with_ess = _wants_ess(pairs, route)
        positive, total, gap, *ess = _streamed(pairs, scale, route, None, with_ess=with_ess)
    late_ess = partial(measured, *ess) if ess else _LateEss(pairs, scale, partial(_ess, pairs, scale, route)).measure
    return ContrastStats(positive, total, gap, negatives, late_ess, _public(route))


def _wants_ess(batch: Batch, route: str) -> bool:
    """Triton's kernels take a third longer for a sum of squares that few ask for; on ranks all must ask together."""
    return batch.options.with_ess or route not in TRITON_MODULES or batch.layout.ranks.size > 1


def _public(route: str) -> str:
    """As users call it."""
    return route.removesuffix("_torch")


def _streamed(
    batch: Batch, scale: float | Tensor, route: str, phi: Phi | None, *, with_ess: bool = True
) -> tuple[Tensor, ...]:
    """Of two views, tile by tile: (positive, log-sum-exp, their gap, ess if asked); given phi, (positive, its mean)."""
    if torch.compiler.is_compiling() and route in TRITON_MODULES and can_be_written(phi):
        return operators.reduce_traced(batch, scale, route, phi, with_ess=with_ess)
    if phi is None and not with_ess and route in TRITON_MODULES and isinstance(scale, float) and has_plan(batch, scale):
        found = reduce_whole(batch, scale, route)
        if found is not None:
            return found
    return reduce_streamed(batch, scale, route, phi, with_ess=with_ess)


def _ess(batch: Batch, scale: float | Tensor, route: str) -> Tensor:
    return _streamed(batch, scale, route, None)[3]


def _ess_related(batch: Batch, scale: float | Tensor, route: str, positives: Positives) -> Tensor:
    return negatives_of(batch, scale, route, positives).ess()


class _LateEss:
    """The ESS of a contrast that was reduced without it, in a pass of its own when it is first read."""

    def __init__(self, batch: Batch, scale: float | Tensor, again: Callable[[], Tensor]) -> None:
        self.batch, self.again = batch, again
        self.found: Tensor | None = None
        self.unchanged = Unchanged(*batch.views, batch.given_queue, batch.hard_nHd, scale)

    @torch.no_grad()
    def measure(self) -> Tensor:
        if self.found is None:
            self.unchanged.require(
                "the ESS",
                "embeddings, queue, temperature or hard negatives",
                "read it earlier, or pass with_ess=True",
            )
            with no_autocast(self.batch.views[0]):
                self.found = self.again()
        return self.found


def _related(batch: Batch, scale: float | Tensor, route: str) -> ContrastStats:
    """Of any relation."""
    positives = Positives(batch, scale, route)
    with_ess = _wants_ess(batch, route)
    negatives = negatives_of(batch, scale, route, positives, with_ess=with_ess)
    again = partial(_ess_related, batch, scale, route, positives)
    return ContrastStats(
        None,
        negatives.logsumexp,
        None,
        negatives.count,
        negatives.ess if with_ess else _LateEss(batch, scale, again).measure,
        _public(route),
        positives.as_of_now(),
        negatives.counted,
        not batch.plain and batch.chosen,
    )


def mean_phi(batch: Batch, phi: Phi, inverse_temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """(mean positive score, mean of phi over the negatives) of every anchor, and which have negatives; None: all."""
    scale = batch.scale(inverse_temperature)
    plain = _is_plain(batch, scale)
    route = route_of(batch, phi, plain=plain)
    if not plain:
        positives = Positives(batch, scale, route)
        return positives.mean_score, *mean_phi_of(batch, scale, route, phi, positives)
    if route == "drawn":
        assert batch.drawn_Ak is not None
        scores_Ak = candidate_scores(batch, scale, batch.drawn_Ak)
        return positive_scores(batch, scale), phi.applied(scores_Ak).mean(1), None
    with no_autocast(batch.views[0]):
        if route == "dense":
            return *dense.mean_phi_kept(batch, scale, phi, _tile_kernels(batch)), None
        positive, mean = _streamed(batch, scale, route, phi)
    return positive, mean, None


def positives_of(batch: Batch, inverse_temperature: float | Tensor) -> Positives:
    """The positives of a batch, to be looked at one by one."""
    return Positives(batch, batch.scale(inverse_temperature), route_of(batch, plain=False))


def positive_scores(batch: Batch, scale: float | Tensor) -> Tensor:
    """Mean score of every anchor's positives."""
    if not batch.plain:
        return Positives(batch, scale, route_of(batch, plain=False)).mean_score
    view_a, view_b = batch.everyone_VNd
    cosine_A = (view_a * view_b).sum(1).repeat(len(batch.layout.groups))
    positive: Tensor = scale * cosine_A
    return positive


def route_of(batch: Batch, phi: Phi | None = None, *, plain: bool, scale: float | Tensor | None = None) -> str:
    """The route of a batch, for its log-sum-exp or for a phi; refuses one that was asked for and cannot be.

    `plain`: two views on a diagonal at one temperature; the fused route knows no other relation. `scale`: of a
    log-sum-exp for which Triton's kernels may be launched by a plan.
    """
    options, layout = batch.options, batch.layout
    if batch.drawn_Ak is not None:
        if options.route in TRITON_MODULES or options.backend == "triton":
            raise ValueError(
                "negatives_per_anchor must be left out with Triton's routes, got both; leave route and backend out: "
                "drawn negatives are scored by themselves."
            )
        return "drawn"
    if options.route != "auto" or options.backend != "auto":
        asked = _asked(options.route, options.backend, batch.views[0])
        if asked == "triton":
            asked = _with_triton(batch.views[0], plain=plain)
        if asked != "auto":
            _require_possible(asked, batch, phi, plain=plain)
            return asked
    z, scores = batch.views[0], layout.anchors * (layout.negatives if batch.known is None else _widest(batch))
    alone = layout.ranks.size == 1
    largest = LARGEST_DENSE
    if plain and z.is_cuda and z.dtype == torch.bfloat16:
        largest = LARGEST_DENSE_ON_GPU
        if LARGEST_DENSE_BESIDE_PLANS < scores <= LARGEST_DENSE_ON_GPU and options.backend == "auto":
            with_plan = isinstance(scale, float) and has_plan(batch, scale) and prefers_triton(z)
            largest = LARGEST_DENSE_BESIDE_PLANS if with_plan else LARGEST_DENSE_ON_GPU
    is_small = alone and scores <= largest
    if is_small and (not plain or (batch.queue is None and layout.tile is not None)):
        return "dense"
    if options.backend == "auto" and prefers_triton(batch.views[0], layout.ranks):
        best = _with_triton(batch.views[0], plain=plain)
        return best if knows(best, phi) else "streamed"
    return "streamed"


def _tile_kernels(batch: Batch) -> Kernels | None:
    """What makes embeddings of a kept tile ready that are multiplied in their own type; None: products are exact.

    A large tile of wide bfloat16 rows is: a product in float32 would take a GPU too long. float16 has too few exponents
    for pair weights.
    """
    layout, z = batch.layout, batch.views[0]
    if z.dtype != torch.bfloat16 or layout.anchors * layout.negatives * z.shape[1] <= LARGEST_EXACT:
        return None
    with_triton = z.is_cuda and not torch.compiler.is_compiling() and fused_kernels_run(z.device)
    return kernels_of("fused" if with_triton else "strips_torch")


def _widest(batch: Batch) -> int:
    """Candidates of an anchor in the largest tile: its negatives, or with labels the rows that may be positives."""
    layout = batch.layout
    if batch.known is None or batch.known.labels is None:
        return layout.negatives
    return max(layout.negatives, len(layout.groups[0].candidates) * layout.samples)


def prefers_triton(embeddings: Tensor, ranks: Ranks = ALONE) -> bool:
    """Whether streaming these is a matter for Triton's kernels.

    In half precision on a GPU the fused ones were faster at every size that is streamed, 1.5 times at 2,048 rows,
    26 times at 65,536 (`results/loss_gpu.jsonl`); strips are faster than those where features are many. On several
    ranks these were not timed; there they also gather embeddings in the type they came in.
    """
    if not _is_half_on_gpu(embeddings):
        return False
    if ranks.size == 1:
        return _triton_takes(embeddings)
    # ranks trace and trace again at times of their own, so a graph cannot ask whether all of them take the same route
    return not torch.compiler.is_compiling() and triton_runs_everywhere(embeddings.device, ranks)


def _is_half_on_gpu(embeddings: Tensor) -> bool:
    return embeddings.is_cuda and embeddings.dtype in (torch.bfloat16, torch.float16)


def triton_runs_everywhere(device: torch.device, ranks: Ranks) -> bool:
    """Whether the kernels run on every rank, which must all gather the same; a process group is asked once."""
    answers = _ANSWERS.setdefault(group_of(ranks), {})
    if device not in answers:
        answers[device] = not any_rank(not fused_kernels_run(device), device, ranks)
    return answers[device]


_ANSWERS: WeakKeyDictionary[object, dict[torch.device, bool]] = WeakKeyDictionary()


def _is_plain(batch: Batch, scale: float | Tensor) -> bool:
    """Whether it is two views on a diagonal at one temperature; dense, where no tile serves, goes the other way."""
    if not batch.plain or (isinstance(scale, Tensor) and scale.dim()):
        return False
    return batch.options.route != "dense" or (batch.queue is None and batch.layout.tile is not None)


def _with_triton(embeddings: Tensor, *, plain: bool) -> str:
    """The faster of the routes that need Triton."""
    half = embeddings.dtype in (torch.bfloat16, torch.float16)
    return "strips" if not plain or (half and embeddings.shape[1] > WIDEST_FUSED) else "fused"


def _asked(route: str, backend: str, embeddings: Tensor) -> str:
    """What route and backend ask for together; strips are made with Triton, or in PyTorch's operations without it."""
    if backend == "triton" and route in ("dense", "streamed"):
        raise ValueError(f"route must be 'fused' or 'strips' with backend='triton', got {route!r}; leave one out.")
    if backend == "torch" and route == "fused":
        raise ValueError("backend must be 'triton' with route='fused', got 'torch'; leave one of them out.")
    if route == "strips" and (backend == "torch" or (backend == "auto" and not _triton_takes(embeddings))):
        return "strips_torch"
    return "triton" if backend == "triton" and route == "auto" else route


def _triton_takes(embeddings: Tensor) -> bool:
    """Whether Triton's kernels run on them."""
    if embeddings.dtype == torch.float64:
        return False
    if torch.compiler.is_compiling():
        from flatclr.contrast.kernels.tracing import fused_kernels_run_there

        return bool(fused_kernels_run_there(embeddings.device))
    return fused_kernels_run(embeddings.device)


def _require_possible(route: str, batch: Batch, phi: Phi | None, *, plain: bool) -> None:
    if route not in TRITON_MODULES:
        return
    if route == "fused" and not plain:
        raise ValueError(
            "route='fused' must be asked of two views at one temperature without labels, ids, hard negatives or a "
            "margin, got more; use route='strips' or 'streamed'."
        )
    if torch.compiler.is_compiling() and can_be_written(phi):
        return  # the operator looks when it runs
    kernels = kernels_of(route)
    kernels.require_usable(batch.views[0])
    if phi is not None:
        kernels.require_known(phi)
