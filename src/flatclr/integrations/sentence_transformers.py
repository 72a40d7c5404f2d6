"""FlatNCE for sentence-transformers: drop-ins for MultipleNegativesRankingLoss and its cached form.

Shape suffixes: n texts of this rank, N of all ranks, M candidates of a query, H hard negatives of a query, d features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatclr import distributed
from flatclr.checks import require_number, require_switch
from flatclr.contrast import stats_from_scores
from flatclr.extras import needed
from flatclr.objectives import EssControl, FlatNCE

_BY = "flatclr.integrations.sentence_transformers"
needed("sentence_transformers", by=_BY)

from sentence_transformers.base.losses.gradcache import CachedLossMixin  # noqa: E402
from sentence_transformers.util import cos_sim  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
PARTITION_MODES = ("joint", "per_direction")


class FlatNCELoss(nn.Module):
    """FlatNCE in the place of `MultipleNegativesRankingLoss`: the same columns, arguments and value, another gradient.

    Columns are (anchor, positive), (anchor, positive, negative) or (anchor, positive, negative_1, ..., negative_H). The
    value equals that of MultipleNegativesRankingLoss; the gradient does not vanish when small batches become easy. Over
    ranks it is that of one process with all texts.

    Args:
        model: a SentenceTransformer.
        scale: the inverse temperature; 20 is a temperature of 0.05.
        similarity_fct: must be the cosine: the gradient of FlatNCE has no bound on free scores.
        gather_across_devices: use the texts of all ranks.
        directions: which similarities are contrasted, of "query_to_doc" (always), "query_to_query", "doc_to_query" and
            "doc_to_doc". With the first alone, and by "per_direction", no score matrix is kept.
        partition_mode: "joint" contrasts with all of them at once, "per_direction" averages a loss of each.
        temperature: instead of `scale`, a number > 0 or a `flatclr.EssControl` that adapts it, by one step for every
            step of the trainer's optimizer.
        shared_hard_negatives: contrast each query with the hard negatives of all queries, as
            MultipleNegativesRankingLoss does; False: with its own alone.
        keep_positive: InfoNCE's gradient, which is that of MultipleNegativesRankingLoss.

    >>> z = torch.eye(4)  # for texts that an encoder took apart
    >>> FlatNCELoss(torch.nn.Identity(), scale=1.0).loss_of([z, z])
    tensor(0.7437)

    Reference: Chen et al. 2021; Henderson et al. 2017.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        gather_across_devices: bool = False,
        directions: tuple[str, ...] = ("query_to_doc",),
        partition_mode: str = "joint",
        *,
        temperature: float | EssControl | None = None,
        shared_hard_negatives: bool = True,
        keep_positive: bool = False,
    ) -> None:
        super().__init__()
        require_number("scale", scale, above=0, advice="20 is usual.")
        require_switch("shared_hard_negatives", shared_hard_negatives)
        if similarity_fct is not cos_sim:
            raise ValueError(
                "similarity_fct must be sentence_transformers.util.cos_sim, got another; FlatNCE diverges on scores "
                "that can grow: use MultipleNegativesRankingLoss for these."
            )
        _require_directions(directions, partition_mode, shared_hard_negatives)
        if (
            isinstance(temperature, EssControl)
            and temperature.per_anchor
            and self._is_joint(directions, partition_mode)
        ):
            raise ValueError(
                "temperature must be one for all queries where directions are joint, got EssControl(per_anchor=True); "
                "leave per_anchor out."
            )
        self.model = model
        self.gather_across_devices, self.shared_hard_negatives = gather_across_devices, shared_hard_negatives
        self.directions, self.partition_mode = tuple(directions), partition_mode
        self.objective = FlatNCE(
            1 / scale if temperature is None else temperature,
            keep_positive=keep_positive,
            pairing="one_way",
            gather=gather_across_devices,
        )

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch.

        Args:
            sentence_features: of every column, as the trainer collates them.
            labels: not used; the positive of a query is the document of its row.

        Returns:
            A scalar in nats.
        """
        return self.loss_of([self.model(features)["sentence_embedding"] for features in sentence_features])

    def loss_of(self, embeddings: list[Tensor]) -> Tensor:
        """The loss of the embeddings of every column.

        Args:
            embeddings: [n, d] of anchors, positives and any hard negatives.

        Returns:
            A scalar in nats.
        """
        if len(embeddings) < 2:
            raise ValueError(
                f"columns must be anchor, positive and any negatives, got {len(embeddings)}; add the others."
            )
        queries, documents, *hard = embeddings
        if self._is_joint(self.directions, self.partition_mode):
            return self._joint(queries, [documents, *hard])
        brought = self._hard_negatives(hard)
        loss: Tensor = self.objective(queries, documents, **brought)
        return loss if len(self.directions) == 1 else (loss + self.objective(documents, queries)) / 2

    @staticmethod
    def _is_joint(directions: tuple[str, ...], partition_mode: str) -> bool:
        return len(directions) > 1 and partition_mode == "joint"

    def _hard_negatives(self, hard: list[Tensor]) -> dict[str, Tensor]:
        if not hard:
            return {}
        if not self.shared_hard_negatives:
            return {"hard_negatives": torch.stack(hard, 1)}
        return {"negatives": self._gathered(torch.cat(hard))}

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, with their gradients; this rank's come first."""
        ranks = distributed.ranks_sharing_a_batch(self.gather_across_devices)
        everyone = distributed.gather_views_with_gradient(rows.unsqueeze(0), ranks, shared_loss=False).squeeze(0)
        return everyone.roll(-ranks.rank * len(rows), 0)

    def _joint(self, queries: Tensor, documents: list[Tensor]) -> Tensor:
        """One softmax over the scores of several directions, which are kept."""
        beta = self.objective.scale.forward()
        scores_nM, masked = self._scores(*(F.normalize(z.float(), dim=1) for z in (queries, *documents)))
        stats = stats_from_scores(beta * scores_nM)
        columns = scores_nM.shape[1] - 1
        self._control(stats.ess * (columns / (columns - masked)), columns - masked)
        # the similarity of a pair is among those from query to document, and again from document to query
        copies = math.log(1 + ("doc_to_query" in self.directions))
        value = copies + F.softplus(stats.gap - copies)
        if self.objective.keep_positive:
            return value.mean()
        return (value.detach() + stats.gap - stats.gap.detach()).mean()

    def _scores(self, queries: Tensor, *documents: Tensor) -> tuple[Tensor, int]:
        """Cosines with all candidates, the positive of row i in column i, and how many of a row are -inf."""
        n, all_queries, every = len(queries), self._gathered(queries), [self._gathered(z) for z in documents]
        N, candidates = len(all_queries), torch.cat(every)
        itself_nN = torch.eye(n, N, dtype=torch.bool, device=queries.device)
        of_one_query = itself_nN.repeat(1, len(documents))
        scores = [queries @ candidates.T]
        if "query_to_query" in self.directions:
            scores.append((queries @ all_queries.T).masked_fill(itself_nN, -torch.inf))
        if "doc_to_query" in self.directions:
            scores.append((documents[0] @ all_queries.T).masked_fill(itself_nN, -torch.inf))
        if "doc_to_doc" in self.directions:
            scores.append((documents[0] @ candidates.T).masked_fill(of_one_query, -torch.inf))
        return torch.cat(scores, 1), sum(part.shape[1] // N for part in scores[1:])

    def _control(self, ess_n: Tensor, negatives: int) -> None:
        for control in self.objective.controls:
            control.require_reachable(negatives)
            if self.objective.training and torch.is_grad_enabled():
                ranks = distributed.ranks_sharing_a_batch(self.gather_across_devices)
                control.note(distributed.average_over_ranks(ess_n.detach().mean(), ranks))

    def get_config_dict(self) -> dict[str, Any]:
        """What a model card says of the loss."""
        return {
            "scale": float(self.objective.inverse_temperature),
            "gather_across_devices": self.gather_across_devices,
            "directions": self.directions,
            "partition_mode": self.partition_mode,
            "shared_hard_negatives": self.shared_hard_negatives,
            "keep_positive": self.objective.keep_positive,
        }

    @property
    def citation(self) -> str:
        """BibTeX of the loss, for a model card."""
        return (
            "@misc{chen2021simpler,\n    title={Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive "
            "Learners With FlatNCE},\n    author={Junya Chen and others},\n    year={2021},\n"
            "    eprint={2107.01152},\n    archivePrefix={arXiv}\n}"
        )


class CachedFlatNCELoss(CachedLossMixin, FlatNCELoss):  # type: ignore[misc]
    """`FlatNCELoss` of a large batch through a small memory, in the place of `CachedMultipleNegativesRankingLoss`.

    Texts are encoded in mini-batches, twice; the gradient is that of the whole batch. However many mini-batches there
    are, one step of the optimizer is one step of a controller.

    Args:
        model: as in `FlatNCELoss`.
        scale: as in `FlatNCELoss`.
        similarity_fct: as in `FlatNCELoss`.
        mini_batch_size: texts that are encoded at once.
        mini_batch_num_tokens: or tokens that are.
        show_progress_bar: over mini-batches.
        options: the others of `FlatNCELoss`, by name.

    >>> z = torch.eye(4)
    >>> CachedFlatNCELoss(torch.nn.Identity(), scale=1.0, mini_batch_size=2).calculate_loss([z.split(2), z.split(2)])
    tensor(0.7437)

    Reference: Gao et al. 2021.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        *,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> None:
        FlatNCELoss.__init__(self, model, scale, similarity_fct, **options)
        require_number("mini_batch_size", mini_batch_size, above=0, advice="32 is the default.")
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """As `FlatNCELoss.forward`."""
        return CachedLossMixin.forward_cached(self, sentence_features, labels)  # type: ignore[no-any-return]

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the embeddings of all mini-batches, carried back to these where asked for.

        Args:
            reps: of every column, of every mini-batch.
            labels: not used.
            with_backward: carry gradients back to the embeddings at once.

        Returns:
            A scalar, detached after a backward pass.
        """
        loss = self.loss_of([torch.cat(column) for column in reps])
        if not with_backward:
            return loss
        loss.backward()
        return loss.detach()


class KeepLossState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps the temperature of a controlled loss in the trainer's checkpoints, and restores it on resume.

        trainer = SentenceTransformerTrainer(model, ..., loss=loss, callbacks=[KeepLossState(loss)])

    The numbers stand in `trainer_state.json`.

    Args:
        loss: `FlatNCELoss` or `CachedFlatNCELoss`.

    >>> loss = FlatNCELoss(torch.nn.Identity(), temperature=flatclr.EssControl(0.25))
    >>> kept = KeepLossState(loss).state()["attributes"]["objective"]
    >>> [value for name, value in kept.items() if name.endswith("inverse_temperature")]
    [10.0]
    """

    def __init__(self, loss: FlatNCELoss | None = None) -> None:
        if not isinstance(loss, FlatNCELoss):
            raise TypeError(
                f"loss must be a FlatNCELoss, got {type(loss).__name__}; pass the trainer's, and leave "
                "restore_callback_states_from_checkpoint out: this one restores itself."
            )
        self.loss = loss

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it: the objective's state as plain numbers."""
        objective = self.loss.objective.state_dict()
        return {"args": {}, "attributes": {"objective": {name: x.tolist() for name, x in objective.items()}}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore what the checkpoint that is resumed from holds.

        Args:
            args: of the trainer.
            state: of the trainer, with what was saved.
            control: of the trainer.
            kwargs: what else it tells.
        """
        kept = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        if kept:
            now = self.loss.objective.state_dict()
            saved = kept["attributes"]["objective"]
            self.loss.objective.load_state_dict(
                {name: torch.as_tensor(saved[name], dtype=x.dtype) for name, x in now.items()}
            )


def _require_directions(directions: tuple[str, ...], partition_mode: str, shared_hard_negatives: bool) -> None:
    if not set(directions) <= set(DIRECTIONS) or "query_to_doc" not in directions:
        raise ValueError(
            f"directions must be a tuple with 'query_to_doc' and any of {', '.join(DIRECTIONS[1:])}, got "
            f"{directions!r}; name them."
        )
    if partition_mode not in PARTITION_MODES:
        raise ValueError(f"partition_mode must be one of {', '.join(PARTITION_MODES)}, got {partition_mode!r}.")
    if partition_mode == "per_direction" and {"query_to_query", "doc_to_doc"} & set(directions):
        raise ValueError(
            f"partition_mode must be 'joint' for directions without the positive pair, got {directions!r}; say joint."
        )
    if not shared_hard_negatives and len(directions) > 1 and partition_mode == "joint":
        raise ValueError(
            f"shared_hard_negatives must be True where directions are joint, got False with {directions!r}; use one "
            "direction, or partition_mode='per_direction'."
        )
