"""One file per experiment of the literature; each defines `STUDY`."""

from __future__ import annotations

from importlib import import_module

from flatclr.checks import require_one_of
from flatclr.studies.study import Study

STUDIES = {
    name: f"{__name__}.{name.replace('-', '_')}"
    for name in (
        "precision-or-starvation",
        "log-k-curse",
        "ess-evolution",
        "bounds-and-limits",
        "convergence",
        "gradient-noise",
        "small-batches",
        "equal-footing",
        "temperature-free",
        "large-batches",
        "imagenet-style",
        "flo-attempts",
        "cost",
        "f-information",
        "nine-methods",
        "gaussian-or-cosine",
        "align-uniform",
        "negatives-theory",
        "negatives-cifar",
        "infomax-is-not-enough",
        "critics-and-architectures",
        "circle",
        "model-choice",
    )
}
"""The module of every study by its name on the command line."""


def load_study(name: str) -> Study:
    """A study by its name.

    Args:
        name: on the command line.

    Returns:
        The study: its runs, what is drawn of them, and its claims.

    Raises:
        ValueError: for a name that is none, with the nearest that is.

    >>> load_study("f-information").seeds
    1
    """
    require_one_of("study", name, STUDIES)
    study: Study = import_module(STUDIES[name]).STUDY
    return study
