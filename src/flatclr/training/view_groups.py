"""How many views an image has, of which sizes, and from which epoch on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatclr.checks import require_count, require_number

FEWEST_VIEWS = 2  # an anchor and its positive
GROUPS_ADVICE = "say [[2, 24], [6, 16]] for two views of 24 pixels and six of 16."
SCHEDULE_ADVICE = "say [[0, 16], [80, 24]] for views of 16 pixels, and of 24 from epoch 80 on."


@dataclass(frozen=True)
class ViewGroup:
    """Views of one size: they are made in one launch and pass the encoder in one batch.

    Args:
        count: how many of each image.
        size: their side in pixels; None: that of the images.
    """

    count: int
    size: int | None


Groups = tuple[ViewGroup, ...]
ViewPlan = tuple[tuple[float, Groups], ...]  # (epoch from which on, groups), in order of time


def views_in(groups: Groups) -> int:
    """
    >>> views_in((ViewGroup(2, 24), ViewGroup(6, 16)))
    8
    """
    return sum(group.count for group in groups)


def groups_from(name: str, given: Any) -> Groups:
    """[[views, side], ...] as groups.

    >>> groups_from("view_sizes", [[2, 24], [6, 16]])
    (ViewGroup(count=2, size=24), ViewGroup(count=6, size=16))
    """
    if not _is_pairs(given):
        raise ValueError(f"{name} must be [[views, pixels], ...], got {given!r}; {GROUPS_ADVICE}")
    for count, size in given:
        require_count(f"{name} must be [[views, pixels], ...]: the number of views", count, advice=GROUPS_ADVICE)
        require_count(f"{name} must be [[views, pixels], ...]: their size", size, advice=GROUPS_ADVICE)
    sizes = [size for _, size in given]
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"{name} must name every size once, got {given!r}; add the views of a size up.")
    groups = tuple(ViewGroup(count, size) for count, size in given)
    if views_in(groups) < FEWEST_VIEWS:
        raise ValueError(f"{name} must have {FEWEST_VIEWS} views or more in all, got {given!r}; {GROUPS_ADVICE}")
    return groups


def plan_from(name: str, given: Any, views: int) -> ViewPlan:
    """[[epoch, side], ...] as a plan; in the place of a side, for all views, groups may stand.

    >>> plan_from("size_schedule", [[0, 16], [80, [[2, 24], [6, 16]]]], views=8)[1][1][0]
    ViewGroup(count=2, size=24)
    """
    if not _is_pairs(given):
        raise ValueError(f"{name} must be [[epoch, pixels], ...], got {given!r}; {SCHEDULE_ADVICE}")
    plan = []
    for epoch, sizes in given:
        require_number(f"{name} must be [[epoch, pixels], ...]: an epoch", epoch, advice=SCHEDULE_ADVICE)
        plan.append((float(epoch), groups_from(name, sizes if isinstance(sizes, Sequence) else [[views, sizes]])))
    epochs = [epoch for epoch, _ in plan]
    if epochs[0] != 0 or epochs != sorted(set(epochs)):
        raise ValueError(f"{name} must begin at epoch 0 and go on in order of time, got {given!r}; {SCHEDULE_ADVICE}")
    return tuple(plan)


def require_groups(name: str, given: Any) -> None:
    groups_from(name, given)


def require_plan(name: str, given: Any) -> None:
    plan_from(name, given, FEWEST_VIEWS)


def sized(plan: ViewPlan, image_size: int) -> ViewPlan:
    """The same with every size a number; none beyond that of the images, from which views are cut."""
    for _, groups in plan:
        for group in groups:
            if group.size is not None and group.size > image_size:
                raise ValueError(
                    f"views must be at most as large as the images, {image_size} pixels, got {group.size}; make "
                    "view_size smaller, or image_size larger."
                )
    return tuple((epoch, tuple(replace(g, size=g.size or image_size) for g in groups)) for epoch, groups in plan)


def _is_pairs(given: Any) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    return is_list and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in given)
