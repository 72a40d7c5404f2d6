"""What every objective shares: `loss = objective(z_a, z_b)`, `loss, stats = objective.with_stats(z_a, z_b)`.

An objective is one file of this folder: its equation, its module, and the traits it is registered with. Trainer,
command line and docs ask the traits; nothing else has to be touched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor, nn

from flatclr.checks import require_one_of, require_switch
from flatclr.contrast import ContrastOptions, ContrastStats, Options, PairSet, stats_of
from flatclr.contrast.options import Given, SharedOptions
from flatclr.objectives.ess_control import EssControl
from flatclr.objectives.graphed import GraphedCalls
from flatclr.objectives.sample_state import SampleState
from flatclr.objectives.temperature import ControlledScale, scale_source


@dataclass(frozen=True)
class Traits:
    """What trainer, command line and docs need to know of an objective.

    Args:
        summary: what it is, in one line.
        temperature: by default; None where it has no temperature.
        pairing: by default.
        bounded_scores: it has no lower bound where scores can grow, so that it refuses a learned scale and free
            features.
        accepts_control: an `EssControl` may take the place of the temperature.
        uses_negatives: it contrasts; without it, queues, hard negatives and drawn ones are refused.
        keeps_samples: it keeps numbers of every sample: its calls say by `index=` which samples they are.
        vanishes_when_solved: its gradient goes to 0 as the positives of a batch win, as InfoNCE's does; a bound at its
            ceiling then ends what is learnt.
        temperature_weighs: its temperature sets how negatives weigh against each other, as in a softmax, so that the
            ESS says whether it is too high or too low.
        training_options: arguments that the trainer makes it with unless told otherwise.

    >>> flatclr.FlatNCE.traits.bounded_scores, flatclr.FMICL.traits.pairing
    (True, 'within')
    """

    summary: str = ""  # one line
    temperature: float | None = 0.1  # by default; None: it has no temperature
    pairing: str = "two_view"  # by default
    bounded_scores: bool = False  # it has no lower bound where scores can grow: no learned scale, no free features
    accepts_control: bool = True  # an EssControl may take the place of the temperature
    uses_negatives: bool = True  # it contrasts
    keeps_samples: bool = False  # it keeps numbers of every sample, which its calls name by index=
    vanishes_when_solved: bool = False  # its gradient goes to 0 as the positives of a batch win
    temperature_weighs: bool = True  # its temperature sets how negatives weigh against each other
    training_options: Mapping[str, Any] = field(default_factory=dict)  # that the trainer makes it with


class Objective(nn.Module):
    """A loss on views. A new one defines `loss`; pairings, queues, ranks, stats and ESS control come with it.

    Args:
        temperature: a number > 0, or an `EssControl` that adapts it.
        learn_temperature: make its logarithm a parameter.
        traits: of this one where they differ from its class's.
        options: those of `flatclr.contrast_stats`: pairing, in_batch_negatives, negatives_per_anchor, generator,
            normalize, gather, backend, route, check_embeddings, false_negative_margin. And `graphed`: on a CUDA device
            calls of the same shape replay a CUDA graph that the first one captured, which spares a small loss its
            launches. Values are those of eager calls bit by bit. `with_stats` runs eagerly, and so does a call that
            cannot be captured, after a warning that says why.

    >>> class Gap(Objective):
    ...     def loss(self, pairs, inverse_temperature):
    ...         stats = stats_of(pairs, inverse_temperature)
    ...         return stats.mean(stats.gap), stats
    >>> Gap(temperature=1.0)(torch.eye(4), torch.eye(4))  # log 6 - 1
    tensor(0.7918)
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(
        self,
        temperature: float | EssControl = 0.1,
        *,
        learn_temperature: bool = False,
        traits: Traits | None = None,
        **options: Unpack[ContrastOptions],
    ) -> None:
        super().__init__()
        self._require_known(options)
        traits = traits or self.traits
        if traits.bounded_scores:
            require_bounded_scores(type(self).__name__, options, learn_temperature)
        if isinstance(temperature, EssControl) and not traits.accepts_control:
            raise ValueError(
                f"temperature of {type(self).__name__} must be a number, got an EssControl; it sets its scale itself."
            )
        if traits.pairing != Options.pairing:
            options.setdefault("pairing", traits.pairing)
        graphed = options.pop("graphed", False)
        require_switch("graphed", graphed)
        shared: SharedOptions = options
        # every rank averages over the same global anchors; who wants stats or is controlled will read the ESS
        self._options = Options(shared_loss=True, with_ess=isinstance(temperature, EssControl), **shared)
        self._options_of_stats = replace(self._options, with_ess=True)
        self.options = shared
        self._graphs = GraphedCalls(type(self).__name__, self._options) if graphed else None
        self.scale = scale_source(temperature, learn=learn_temperature)

    @classmethod
    def traits_with(cls, **options: Any) -> Traits:
        """The traits when it is made with these options.

        Args:
            options: arguments of the constructor.

        Returns:
            Those of the class, changed where an option changes them.
        """
        return cls.traits

    @classmethod
    def _require_known(cls, options: ContrastOptions) -> None:
        if "critic" in options and cls.traits.bounded_scores:
            raise ValueError(
                f"{cls.__name__} must have bounded scores, got critic=; its gap has no lower bound when scores can "
                "grow: leave it out for cosines, or use InfoNCE."
            )
        own = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "traits", "options")]
        for name in options:
            require_one_of(f"option of {cls.__name__}", name, [*own, *ContrastOptions.__annotations__])

    @property
    def inverse_temperature(self) -> float | Tensor:
        """What scores are multiplied with, to be read; where anchors have their own, the mean of the last batch."""
        beta = self.scale.forward()
        return beta.detach() if isinstance(beta, Tensor) else beta

    @property
    def keeps_samples(self) -> bool:
        """Whether its calls must say by `index=` which samples of the data they are."""
        return self.traits.keeps_samples

    def make_room(self, samples: int) -> None:
        """Get ready to keep numbers of so many samples, so that no call has to wait for the device to count them.

        Args:
            samples: of the data. Where nothing is kept of single samples, nothing happens.
        """
        for module in self.modules():
            if isinstance(module, SampleState):
                module.make_room(samples)

    @property
    def controls(self) -> list[EssControl]:
        """The controllers that set its temperatures: none, one, or one for each objective inside it."""
        return [module for module in self.modules() if isinstance(module, EssControl)]

    def loss(self, pairs: PairSet, inverse_temperature: float | Tensor) -> tuple[Tensor, ContrastStats | None]:
        """What a new objective defines: the scalar loss of the global batch, and the stats if it used them.

        Args:
            pairs: the batch, with every quantity that objectives are made of.
            inverse_temperature: what dot products are multiplied with.

        Returns:
            The loss, the same on every rank; and the stats, or None, in which case they are computed when asked for.
        """
        raise NotImplementedError

    def loss_of_samples(
        self, pairs: PairSet, inverse_temperature: float | Tensor, index: Tensor | None
    ) -> tuple[Tensor, ContrastStats | None]:
        """What an objective that keeps numbers of every sample defines instead of `loss`.

        Args:
            pairs: as in `loss`.
            inverse_temperature: as in `loss`.
            index: [n], which samples of the data this rank's are, as it came with the call; None: it did not.

        Returns:
            As `loss`.
        """
        if index is not None:
            raise ValueError(
                f"index must be left out for {type(self).__name__}, got one; it keeps nothing of single samples."
            )
        return self.loss(pairs, inverse_temperature)

    def forward(
        self, *views: Tensor, negatives: Tensor | None = None, index: Tensor | None = None, **given: Unpack[Given]
    ) -> Tensor:
        """The loss of two or more views [N, d], or of one tensor [V, N, d].

        Args:
            views: row i of each is a view of sample i.
            negatives: extra negatives [M, d], a queue.
            index: whole numbers [N], which samples of the data these are; for objectives that keep numbers of each.
            given: labels, ids, hard_negatives, negative_labels, negative_ids, as `flatclr.contrast_stats` takes them.

        Returns:
            A scalar.
        """
        if self._graphs is None:
            return self._evaluate(views, negatives, index, given, need_stats=False)[0]
        brought = {"negatives": negatives, "index": index, **given}
        inputs = {str(number): z for number, z in enumerate(views)}
        inputs |= {name: x for name, x in brought.items() if x is not None}  # type: ignore[misc]
        return self._graphs(self, inputs, partial(self._loss_of, len(views)))

    def _loss_of(self, views: int, inputs: dict[str, Tensor]) -> Tensor:
        """Of inputs by name: views by their number, then what else a call brings."""
        brought: dict[str, Any] = {name: x for name, x in inputs.items() if not name.isdigit()}
        negatives, index = brought.pop("negatives", None), brought.pop("index", None)
        given: Given = brought  # type: ignore[assignment]
        of_views = tuple(inputs[str(v)] for v in range(views))
        return self._evaluate(of_views, negatives, index, given, need_stats=False)[0]

    def with_stats(
        self, *views: Tensor, negatives: Tensor | None = None, index: Tensor | None = None, **given: Unpack[Given]
    ) -> tuple[Tensor, ContrastStats]:
        """The loss, and the stats of the batch at the temperature it was computed with.

        Args:
            views: as in a call of the objective.
            negatives: as in a call.
            index: as in a call.
            given: as in a call.

        Returns:
            The loss, and the stats, detached.
        """
        loss, stats = self._evaluate(views, negatives, index, given, need_stats=True)
        assert stats is not None
        return loss, stats.detach()

    def _evaluate(
        self,
        views: tuple[Tensor, ...],
        negatives: Tensor | None,
        index: Tensor | None,
        given: Given,
        *,
        need_stats: bool,
    ) -> tuple[Tensor, ContrastStats | None]:
        options = self._options_of_stats if need_stats else self._options
        pairs = PairSet.made(views, options, negatives, **given)
        scale = self.scale
        control = scale.control if isinstance(scale, ControlledScale) else None
        if control is not None:
            control.require_reachable(pairs.negatives)
        if control is not None and control.per_anchor:
            inverse_temperature: float | Tensor = control.solved(_ess_of(pairs), pairs.layout.anchors)
        else:
            inverse_temperature = scale.forward()
        if index is None and not self.traits.keeps_samples:
            loss, stats = self.loss(pairs, inverse_temperature)
        else:
            loss, stats = self.loss_of_samples(pairs, inverse_temperature, index)
        noting = control is not None and self.training and torch.is_grad_enabled()
        if stats is None and (need_stats or noting):
            with torch.no_grad():
                stats = stats_of(pairs, inverse_temperature)
        if control is not None and noting:
            assert stats is not None
            control.note(stats.ess if control.per_anchor else stats.mean(stats.ess), inverse_temperature)
            if not loss.requires_grad:
                control.advance()  # nothing learns from this call, so no optimizer's step will follow it
            if isinstance(stats.negatives, Tensor) and stats.negatives.device.type == "cpu":
                control.warn_of_few_negatives(stats.mean(1 / stats.negatives.clamp_min(1)))
        return loss, stats

    def extra_repr(self) -> str:
        graphed = {} if self._graphs is None else {"graphed": True}
        return ", ".join(f"{name}={value!r}" for name, value in {**self.options, **graphed}.items())


def _ess_of(pairs: PairSet) -> Callable[[Tensor], Tensor]:
    """The ESS of every anchor as a function of its inverse temperature, in one pass over the pairs."""
    alone = pairs.detach()
    return lambda beta_A: stats_of(alone, beta_A).ess


OBJECTIVES: dict[str, type[Objective]] = {}
"""Every registered objective by the name that configs and `flatclr train --objective` call it."""

ObjectiveT = TypeVar("ObjectiveT", bound=type[Objective])


def register(name: str, traits: Traits | None = None) -> Callable[[ObjectiveT], ObjectiveT]:
    """Make an objective known by name to `flatclr train`, with its traits.

    Args:
        name: by which configs and the command line call it; one that is taken is refused.
        traits: of the class; None keeps those of its base.

    Returns:
        A decorator of a subclass of `Objective`.

    >>> @register("gap", Traits("mean log-sum-exp of the negatives less the positive", bounded_scores=True))
    ... class Gap(Objective):
    ...     pass
    >>> OBJECTIVES.pop("gap").traits.bounded_scores
    True
    """

    def add(objective: ObjectiveT) -> ObjectiveT:
        if name in OBJECTIVES:
            raise ValueError(f"an objective must have a name of its own, got {name!r} again; choose another.")
        if traits is not None:
            objective.traits = traits
        OBJECTIVES[name] = objective
        return objective

    return add


def require_bounded_scores(name: str, options: ContrastOptions, learn_temperature: bool) -> None:
    """Refuse what lets scores grow without bound."""
    if not options.get("normalize", True):
        raise ValueError(
            f"{name} must have bounded scores, got normalize=False; its gap has no lower bound "
            "when scores can grow and training diverges: keep normalize=True, or use InfoNCE."
        )
    if learn_temperature:
        raise ValueError(
            f"{name} must not learn its temperature, got learn_temperature=True; its gap has no lower bound "
            "in the scale of the scores: fix it, pass an EssControl, or use InfoNCE."
        )


def require_sphere(name: str, options: ContrastOptions) -> None:
    """Refuse embeddings off the unit sphere."""
    if not options.get("normalize", True):
        raise ValueError(f"{name} must work on the unit sphere, got normalize=False; leave it out.")
