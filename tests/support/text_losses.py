"""Losses of sentence-transformers' kind on two views, for `flatclr.diagnostics.check_loss` to try over ranks."""

from typing import Any

import torch
from torch import Tensor, nn


def of(z_a: Tensor, z_b: Tensor, **options: Any) -> Tensor:
    """With two hard negatives of every pair, made of both views."""
    from flatclr.integrations.sentence_transformers import FlatNCELoss  # not there for those who only collect tests

    return FlatNCELoss(nn.Identity(), gather_across_devices=True, **options).loss_of([z_a, z_b, z_a.flip(1), z_b - z_a])


def shared(z_a: Tensor, z_b: Tensor) -> Tensor:
    return of(z_a, z_b)


def own(z_a: Tensor, z_b: Tensor) -> Tensor:
    return of(z_a, z_b, shared_hard_negatives=False)


def both_directions(z_a: Tensor, z_b: Tensor) -> Tensor:
    return of(z_a, z_b, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction")


def joint(z_a: Tensor, z_b: Tensor) -> Tensor:
    directions = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
    return of(z_a, z_b, directions=directions, keep_positive=torch.is_grad_enabled())
