"""FlatCLR: contrastive representation learning on a budget, and mutual-information estimation.

>>> import flatclr, torch
>>> objective = flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25))
>>> loss, stats = objective.with_stats(torch.randn(16, 8), torch.randn(16, 8))
>>> stats.negatives
30
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatclr import diagnostics, doctor, mi, objectives, studies
    from flatclr.contrast import ContrastStats, PairSet, Phi, contrast_stats, pairwise_mean, stats_from_scores, stats_of
    from flatclr.doctor import examine
    from flatclr.evaluation.embedding import embed
    from flatclr.evaluation.evaluator import evaluate
    from flatclr.models.saving import load_encoder
    from flatclr.models.trained import load_network
    from flatclr.objectives import (
        DCL,
        DCLW,
        DHEL,
        DV,
        FLO,
        FMICL,
        MACL,
        NWJ,
        RPC,
        AlignUniform,
        BarlowTwins,
        Debiased,
        EssControl,
        FlatNCE,
        HolderFlatNCE,
        InfoNCE,
        ISogCLR,
        Matryoshka,
        Objective,
        SigLIP,
        SogCLR,
        Spectral,
        SupCon,
        VICReg,
    )
    from flatclr.training import TrainConfig, train
    from flatclr.training.estimator import ContrastiveEncoder

__version__ = "0.1.0"

__all__ = [
    "DCL",
    "DCLW",
    "DHEL",
    "DV",
    "FLO",
    "FMICL",
    "MACL",
    "NWJ",
    "RPC",
    "AlignUniform",
    "BarlowTwins",
    "ContrastStats",
    "ContrastiveEncoder",
    "Debiased",
    "EssControl",
    "FlatNCE",
    "HolderFlatNCE",
    "ISogCLR",
    "InfoNCE",
    "Matryoshka",
    "Objective",
    "PairSet",
    "Phi",
    "SigLIP",
    "SogCLR",
    "Spectral",
    "SupCon",
    "TrainConfig",
    "VICReg",
    "contrast_stats",
    "diagnostics",
    "doctor",
    "embed",
    "evaluate",
    "examine",
    "load_encoder",
    "load_network",
    "mi",
    "objectives",
    "pairwise_mean",
    "stats_from_scores",
    "stats_of",
    "studies",
    "train",
]

MODULES = (
    "contrast",
    "data",
    "diagnostics",
    "doctor",
    "evaluation",
    "mi",
    "models",
    "objectives",
    "optim",
    "plots",
    "studies",
    "training",
)
HOMES = {  # of the names above; PyTorch takes seconds to import, which `flatclr --help` does not need
    "flatclr.contrast": (
        "ContrastStats",
        "PairSet",
        "Phi",
        "contrast_stats",
        "pairwise_mean",
        "stats_from_scores",
        "stats_of",
    ),
    "flatclr.doctor": ("examine",),
    "flatclr.evaluation.embedding": ("embed",),
    "flatclr.evaluation.evaluator": ("evaluate",),
    "flatclr.models.saving": ("load_encoder",),
    "flatclr.models.trained": ("load_network",),
    "flatclr.objectives": (
        "DCL",
        "DCLW",
        "DHEL",
        "DV",
        "FLO",
        "FMICL",
        "MACL",
        "NWJ",
        "RPC",
        "AlignUniform",
        "BarlowTwins",
        "Debiased",
        "EssControl",
        "FlatNCE",
        "HolderFlatNCE",
        "InfoNCE",
        "ISogCLR",
        "Matryoshka",
        "Objective",
        "SigLIP",
        "SogCLR",
        "Spectral",
        "SupCon",
        "VICReg",
    ),
    "flatclr.training": ("TrainConfig", "train"),
    "flatclr.training.estimator": ("ContrastiveEncoder",),
}
_HOME_OF = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name in MODULES:
        return importlib.import_module(f"flatclr.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'flatclr' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *MODULES, "__version__"})
