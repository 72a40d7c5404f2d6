"""Objectives that read a critic: the cosine by default, or a network that scores every pair."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from flatclr.checks import require_count, require_number, require_one_of, shown
from flatclr.contrast import ContrastOptions, ContrastStats, PairSet, stats_from_scores, stats_of
from flatclr.models.critics import Bilinear, Joint, Separable
from flatclr.objectives.base import Objective, Traits
from flatclr.objectives.ess_control import EssControl

COSINE = "cosine"
CRITICS = (COSINE, "bilinear", "separable", "mlp")
"""Names that `critic=` of InfoNCE, DV, NWJ and FLO takes, besides a module."""
PAIRINGS_OF_CRITICS = ("cross", "one_way")  # a critic may tell its first argument from its second
HIDDEN = 256


class CriticObjective(Objective):
    """An objective whose scores may come from a critic, and that may stop at a given bound.

    Args:
        temperature: as in `flatclr.Objective`; a critic's scores are divided by it too, so that 1 leaves them.
        critic: "cosine", or of embeddings as they are "bilinear" (x^T W y), "separable" (<g(x), h(y)> + a(x) + b(y)) or
            "mlp" (a network of [x, y], which is dear); or a module called as critic(x, y) that returns scores [N, N].
            Its parameters are parameters of this module. Pairings are then "cross", the default, or "one_way".
        critic_dim: the dimension of an embedding, which a critic by name is made for.
        stop_at_nats: if given, the loss is how far the bound is from so many nats.
        learn_temperature: make its logarithm a parameter.
        options: those of `flatclr.Objective`.

    >>> objective = flatclr.InfoNCE(1.0, critic="bilinear", critic_dim=4)
    >>> objective(torch.zeros(8, 4), torch.zeros(8, 4))  # log 8
    tensor(2.0794, grad_fn=<MeanBackward0>)
    """

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        critic: str | nn.Module = COSINE,
        critic_dim: int | None = None,
        stop_at_nats: float | None = None,
        learn_temperature: bool = False,
        traits: Traits | None = None,
        **options: Unpack[ContrastOptions],
    ) -> None:
        module = _made(critic, critic_dim)
        if module is not None:
            options.setdefault("pairing", "cross")
            options.setdefault("normalize", False)
            require_one_of("pairing of a critic", options["pairing"], PAIRINGS_OF_CRITICS)
        super().__init__(temperature, learn_temperature=learn_temperature, traits=traits, **options)
        if module is not None:
            _require_all_pairs(type(self).__name__, options, temperature)
        if stop_at_nats is not None:
            require_number("stop_at_nats", stop_at_nats, above=0, advice="say 2.0, or leave it out.")
        self.critic, self.stop_at_nats = module, stop_at_nats

    def stats(self, pairs: PairSet, inverse_temperature: float | Tensor) -> ContrastStats:
        """Of the scores: cosines, or the critic's."""
        if self.critic is None:
            return stats_of(pairs, inverse_temperature)
        if pairs.queue is not None or not pairs.plain:
            raise ValueError(
                f"{type(self).__name__} with a critic must have two views of a batch alone, got a queue, labels, ids, "
                "hard negatives or more views; leave them out, or use critic='cosine'."
            )
        x_Nd, y_Nd = pairs.everyone_VNd
        scores_NN: Tensor = self.critic(x_Nd, y_Nd)
        if scores_NN.shape != (len(x_Nd), len(y_Nd)):
            raise ValueError(
                f"critic(x, y) must return scores of all pairs, shape {[len(x_Nd), len(y_Nd)]}, got "
                f"{list(scores_NN.shape)}; row i is f(x_i, y_1), f(x_i, y_2) and so on."
            )
        scores_NN = scores_NN * inverse_temperature
        if pairs.options.pairing == "one_way":
            return stats_from_scores(scores_NN)
        return _both(stats_from_scores(scores_NN), stats_from_scores(scores_NN.T))

    def towards(self, loss: Tensor, stats: ContrastStats | None = None) -> Tensor:
        """The loss itself; where the bound is to stop, how far it is from there.

        Args:
            loss: minus the bound, or with stats the ceiling less the bound.
            stats: whose ceiling that is.

        Returns:
            A scalar.
        """
        if self.stop_at_nats is None:
            return loss
        ceiling = 0.0 if stats is None else stats.ceiling_nats
        return (ceiling - loss - self.stop_at_nats).abs()


def _made(critic: str | nn.Module, dim: int | None) -> nn.Module | None:
    """The network of a critic; None: cosines need none."""
    if isinstance(critic, nn.Module):
        return critic
    if not isinstance(critic, str):
        raise TypeError(
            f"critic must be one of {', '.join(CRITICS)} or a module, got {shown(critic)}; wrap the function in one."
        )
    require_one_of("critic", critic, CRITICS)
    if critic == COSINE:
        return None
    require_count("critic_dim", dim, advice=f"the {critic} critic is made for embeddings of one dimension.")
    assert dim is not None
    if critic == "bilinear":
        return _started(Bilinear(dim, dim), dim)
    return Separable(dim, dim, hidden=HIDDEN) if critic == "separable" else Joint(dim, dim, hidden=HIDDEN)


def _started(critic: Bilinear, dim: int) -> Bilinear:
    """W = I / sqrt(d): at W = 0 encoders have no gradient."""
    nn.init.eye_(critic.weight)
    critic.weight.data.div_(math.sqrt(dim))
    return critic


def _require_all_pairs(name: str, options: ContrastOptions, temperature: float | EssControl) -> None:
    """Nothing that is asked for may be passed over because a critic scores the pairs."""
    if isinstance(temperature, EssControl):
        raise ValueError(f"temperature of {name} with a critic must be a number, got an EssControl; say 1.0.")
    for option, unset in (("route", "auto"), ("backend", "auto")):
        if options.get(option, unset) != unset:
            raise ValueError(
                f"{option} must be left out with a critic, got {options.get(option)!r}; it makes the scores."
            )
    for option in ("negatives_per_anchor", "false_negative_margin"):
        if options.get(option) is not None:
            raise ValueError(
                f"{option} must be left out with a critic, got {options.get(option)}; it scores all pairs."
            )


def _both(there: ContrastStats, back: ContrastStats) -> ContrastStats:
    """Anchors of both directions."""

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(there, name), getattr(back, name)])

    return ContrastStats(
        joined("positive"), joined("negative_logsumexp"), joined("gap"), there.negatives, lambda: joined("ess")
    )
