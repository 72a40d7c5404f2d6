"""The one primitive, as it is called: embeddings and options in, three numbers per anchor out."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from flatclr.checks import LARGEST_SCALE, require_dense, require_number
from flatclr.contrast.batch import Batch
from flatclr.contrast.options import CallOptions, apart
from flatclr.contrast.phi import Phi
from flatclr.contrast.route import mean_phi, stats_of
from flatclr.contrast.stats import ContrastStats


def contrast_stats(
    *views: Tensor, inverse_temperature: float | Tensor, **options: Unpack[CallOptions]
) -> ContrastStats:
    """Positive score, log-sum-exp of the negatives and effective sample size of every anchor, in O(N d) memory.

    Args:
        views: two or more embeddings [N, d], or one tensor [V, N, d]; row i of each is a view of sample i. float16 and
            bfloat16 accumulate in float32.
        inverse_temperature: scores are this times the dot product; a 0-dim tensor, or one value per anchor [A], may
            require gradient.
        pairing: "views" (also "two_view"), "cross", "one_way" or "within" (see `flatclr.contrast.relation`).
        labels: whole numbers [N]; rows of one label are positives of each other, not negatives.
        ids: whole numbers [N]; rows of other samples with the same id are never used: known duplicates, several
            captions of one picture.
        hard_negatives: [N, H, d], row n for the anchors of sample n alone, besides the others; gradients reach them,
            they are never gathered.
        false_negative_margin: negatives whose cosine is above the mean positive cosine by more than this are left out.
        negatives: extra negatives [M, d] for every anchor (a queue); never gathered, the same on every rank.
        negative_labels: of the queue [M]; needed with labels. Its rows of the anchor's label are left out, they do not
            become positives.
        negative_ids: of the queue [M]; needed with ids. Its rows of the anchor's id are left out.
        in_batch_negatives: False contrasts with `negatives` only.
        negatives_per_anchor: draw this many distinct negatives per anchor; with `gather` the first rank draws for all.
        generator: source of that draw.
        normalize: put embeddings on the unit sphere first, so that scores are cosines times `inverse_temperature`.
        gather: contrast with every rank's batch; the stats are global, in one-process order.
        backend: "torch" (any device), "triton" (kernels on a CUDA device; products in the embeddings' own type, sums in
            float32; not float64) or "auto": "triton" for half-precision batches on one GPU that are large or have a
            queue, else "torch".
        route: "dense" (one kept tile), "streamed" (tile by tile), "fused" (Triton), "strips" (strips of scores and the
            library's matrix products, for wide embeddings and every relation) or "auto", by size, type and device.
        check_embeddings: look for NaN, Inf and zero rows first (waits for the device).
        shared_loss: promise that every rank computes the same loss from the global stats, say a mean over all
            anchors; backward then needs no collective. Without it the ranks' upstream gradients are averaged first.
        with_ess: the ESS will be read, so measure it in the same pass; else Triton's routes take another when it is.

    Returns:
        Stats of all anchors. `positive` and `negative_logsumexp` carry gradients to embeddings, queue, hard negatives
        and `inverse_temperature`; `ess` carries none.

    >>> stats = contrast_stats(torch.eye(4), torch.eye(4), inverse_temperature=2.0)
    >>> stats.positive[0], stats.negatives, stats.route
    (tensor(2.), 6, 'dense')
    """
    require_inverse_temperature(inverse_temperature)
    asked, given = apart("contrast_stats", options)
    return stats_of(Batch.made(views, asked, **given), inverse_temperature)


def pairwise_mean(
    *views: Tensor, phi: Phi, inverse_temperature: float | Tensor = 1.0, **options: Unpack[CallOptions]
) -> Tensor:
    """Mean of a function of the score over the negatives of every anchor, in O(N d) memory.

        mean_j phi(s_ij),  s_ij = inverse_temperature <z_i, z_j>

    Args:
        views: two or more embeddings [N, d], or one tensor [V, N, d].
        phi: the function, with its derivative. What it closes over gets no gradient.
        inverse_temperature: a number, a 0-dim tensor, or one value per anchor [A].
        options: those of `contrast_stats`.

    Returns:
        [A].

    >>> square = Phi("square", value=lambda s: s * s, derivative=lambda s: 2 * s)
    >>> pairwise_mean(torch.eye(2), torch.eye(2), phi=square)
    tensor([0., 0., 0., 0.])
    """
    require_inverse_temperature(inverse_temperature)
    if not isinstance(phi, Phi):
        raise TypeError(
            f"phi must be a flatclr.Phi(name, value, derivative), got {type(phi).__name__}; wrap the function in one."
        )
    asked, given = apart("pairwise_mean", options)
    _, mean, _ = mean_phi(Batch.made(views, asked, **given), phi, inverse_temperature)
    return mean


def require_inverse_temperature(value: float | Tensor) -> None:
    """A tensor on another device is trusted: to look at its value would wait for it."""
    if isinstance(value, Tensor):
        require_dense("inverse_temperature", value)
        if value.numel() == 0 or (value.dim() > 1 and value.numel() > 1):
            raise ValueError(
                f"inverse_temperature must be a number, a 0-dim tensor or one value per anchor, got "
                f"{list(value.shape)}; pass one of these."
            )
        if value.device.type != "cpu" or torch.compiler.is_compiling():
            return
        low, value = value.min().item(), value.max().item()
        require_number("inverse_temperature", low, above=0, advice="pass 1 / temperature.")
    require_number("inverse_temperature", value, above=0, advice="pass 1 / temperature.")
    if value >= LARGEST_SCALE:
        raise ValueError(
            f"inverse_temperature must be < {LARGEST_SCALE:g}, got {value:g}; float32 cannot hold its scores."
        )
